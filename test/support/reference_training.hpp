// Training steps of the plain reference model in fp64: AdamW with clipping, as the papers write
// them.
#ifndef TRIREME_TEST_SUPPORT_REFERENCE_TRAINING_HPP_
#define TRIREME_TEST_SUPPORT_REFERENCE_TRAINING_HPP_

#include <cstdint>

#include "reference_model.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::test {

class ReferenceTraining {
 public:
  // seed: of dropout.
  ReferenceTraining(const model::Options& options, const train::OptimizerOptions& optimizer,
                    Parameters start, std::uint32_t seed);

  // One step; the mean loss before it, nats a token.
  double Step(const data::Entry& batch, double learning_rate);

 private:
  // Takes the mean loss's gradient times this factor.
  void Update(const std::string& name, const std::vector<double>& gradient, double factor,
              double rate);

  model::Options options_;
  train::OptimizerOptions optimizer_;
  std::uint32_t seed_;
  std::int64_t step_ = 0;               // so far
  Parameters values_, first_, second_;  // moments: empty before the first step
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_REFERENCE_TRAINING_HPP_
