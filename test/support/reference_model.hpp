// The whole Transformer in fp64, forward and backward, from the mathematics alone: one process, no
// parallelism, nothing of src/. The model's losses, logits and gradients are compared with it.
#ifndef TRIREME_TEST_SUPPORT_REFERENCE_MODEL_HPP_
#define TRIREME_TEST_SUPPORT_REFERENCE_MODEL_HPP_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/model/options.hpp"

namespace trireme::test {

// Global parameters by name, row-major.
using Parameters = std::map<std::string, std::vector<double>>;

// Name and shape (one or two extents) of every parameter, from the embedding to the head.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> ParameterShapes(
    const model::Options& options);

// Random parameters at which no term of the model is negligible: norm weights near 1, the rest
// uniform in
// [-scale, scale]. The same values on every machine.
Parameters RandomParameters(const model::Options& options, std::uint32_t seed, double scale = 0.4);

// Random tokens and targets; the last `masked` positions of the last sequence are past its end.
// Ordinals do not follow each other and the last needs more than 32 bits.
data::Entry RandomBatch(std::int64_t vocabulary, std::int64_t sequences, std::int64_t length,
                        std::int64_t masked, std::uint32_t seed);

struct ReferenceResult {
  double loss_sum = 0;         // nats, over valid targets
  std::int64_t valid = 0;      // number of valid targets
  Parameters gradients;        // of loss_sum, one for each parameter
  std::vector<double> logits;  // [B * T, vocabulary]
  std::vector<bool> relu_on;   // every ReLU's side: a finite difference must not cross a kink
};

// training: dropout on (keyed by seed). Throws std::out_of_range for a missing parameter and
// std::invalid_argument for one of a wrong size.
ReferenceResult RunReference(const model::Options& options, const Parameters& parameters,
                             const data::Entry& batch, std::uint32_t seed, double label_smoothing,
                             bool training, bool causal = true);

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_REFERENCE_MODEL_HPP_
