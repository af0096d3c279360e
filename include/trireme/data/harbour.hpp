// The harbour corpus: plain English sentences in WikiText's form from a unifilar finite-state
// grammar. Its entropy rate, known in closed form, is a floor below every honest model's loss.
#ifndef TRIREME_DATA_HARBOUR_HPP_
#define TRIREME_DATA_HARBOUR_HPP_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

// The grammar: states, each with a distribution over words, each (state, word) leading to one next
// state. Its stationary distribution gives the entropy rate h = sum_s pi(s) H(words | s).
class HarbourGrammar {
 public:
  HarbourGrammar();
  ~HarbourGrammar();
  std::int64_t States() const;
  const Vocabulary& Words() const;
  double EntropyRate() const;  // nats per token, of the stationary process

  // Generates `count` tokens of the stream (seed, split). Random numbers have coordinates (Philox),
  // so that a shorter stream is the beginning of a longer one.
  std::vector<std::int32_t> Generate(std::uint32_t seed, Split split, std::int64_t count) const;

  // Loss of the exact predictor, which starts from the stationary distribution over states and
  // filters forward: [length], -ln p(target_t | inputs_0..t) in nats. inputs, targets: [length].
  std::vector<double> PredictiveLoss(std::span<const std::int32_t> inputs,
                                     std::span<const std::int32_t> targets) const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_HARBOUR_HPP_
