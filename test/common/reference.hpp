// The plain fp64 reference of the Transformer: layers, models, training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/model/options.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::test {

// The Transformer's operations as the textbook writes them, in fp64 and plain loops: what the
// kernels and layers are tested against. Shares nothing with src/; every backward pass recomputes
// what it needs from the forward pass's inputs.

// A row-major matrix of doubles; a vector is a matrix of one row. Empty where a term does not
// exist.
struct Array {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;

  Array() = default;
  Array(std::int64_t r, std::int64_t c)
      : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  Array(std::int64_t r, std::int64_t c, std::vector<double> v);  // throws when sizes disagree

  bool Empty() const { return values.empty(); }
  double& operator()(std::int64_t r, std::int64_t c) {
    return values[static_cast<std::size_t>(r * columns + c)];
  }
  double operator()(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * columns + c)];
  }
};

Array Transpose(const Array& a);
Array Multiply(const Array& a, const Array& b);  // [m, k] [k, n]
Array Add(const Array& a, const Array& b);
Array AddRow(const Array& a, const Array& row);  // row [1, columns] to every row; may be empty
Array SumRows(const Array& a);                   // [1, columns]: a bias's gradient

// x, y: [tokens, dim]; weight, bias: [1, dim], bias empty for none (and for RMSNorm).
Array NormForward(model::Norm kind, double epsilon, const Array& x, const Array& weight,
                  const Array& bias);
struct NormGradients {
  Array input, weight, bias;
};
NormGradients NormBackward(model::Norm kind, double epsilon, const Array& x, const Array& weight,
                           const Array& output_gradient);

double Relu(double x);
double ReluDerivative(double x);  // 0 at the kink
double Gelu(double x);            // tanh form
double GeluDerivative(double x);
double Silu(double x);
double SiluDerivative(double x);

// Factor of one element under dropout: 0, or 1 / probability kept. lane_index: feature, or key
// position.
struct DropoutSite {
  double probability = 0;  // 0: every factor is 1
  PhiloxKey key = {0, 0};
};
double DropoutFactor(const DropoutSite& site, std::uint64_t ordinal, std::int64_t position,
                     std::int64_t lane_index);
// x: [B * T, features], each element times its factor (the backward pass is the same call).
Array Dropout(const DropoutSite& site, const std::vector<std::uint64_t>& ordinals,
              std::int64_t length, const Array& x);
// Drops whole rows: all of a sequence together or, with words ([B * T]), all of a word in it.
Array DropRows(const DropoutSite& site, const std::vector<std::uint64_t>& ordinals,
               std::int64_t length, const std::vector<std::int32_t>& words, const Array& x);

// A block's matrix, or its gradient, without the elements that weight dropout drops in a step.
// number: among the blocks' matrices.
Array DropWeight(double probability, std::uint32_t seed, std::int64_t step, std::uint32_t number,
                 const Array& x);

// Angles per position of the pairs of a head, and the factor of what is turned.
struct RotaryTurns {
  std::vector<double> frequencies;  // [head_dim / 2]
  double magnitude = 1;
};
RotaryTurns PlainTurns(double theta, std::int64_t head_dim);  // theta^(-2 i / head_dim)
// By the options' rope_scaling, step by step as Hugging Face's modeling_rope_utils.py.
RotaryTurns TurnsOf(const model::Options& options);

// Rotates pairs (i, i + head_dim / 2) of every head of x [B * T, heads * head_dim] by direction * t
// * frequency i, times the magnitude; direction -1 is the transpose, its gradient. t: the position,
// from the begin of the row's document if there are begins, [B * T].
Array Rotate(const Array& x, std::int64_t head_dim, std::int64_t length, const RotaryTurns& turns,
             double direction, const std::vector<std::int32_t>& begins = {});

struct AttentionShape {
  std::int64_t heads = 1, kv_heads = 1, head_dim = 1;
  std::int64_t length = 1;  // T; the batch is the number of ordinals
  bool causal = true;
  double dropout = 0;  // of the normalised weights
  std::uint32_t seed = 0;
  std::int64_t layer = 0;
  std::vector<std::uint64_t> ordinals;         // [B]
  std::vector<std::int32_t> begins = {};       // [B * T] of documents, which do not see each other
  std::int64_t keys = 0;                       // rows of keys of a sequence; 0: T
  std::vector<std::int32_t> key_lengths = {};  // [B] of keys that are no padding; none: all
  double divisor = 0;                          // of scores; 0: sqrt(head_dim)

  std::int64_t Keys() const { return keys > 0 ? keys : length; }
};
// query: [B * T, heads * head_dim]; key, value: [B * Keys(), kv_heads * head_dim]; result as query.
Array AttentionForward(const AttentionShape& shape, const Array& query, const Array& key,
                       const Array& value);
struct AttentionGradients {
  Array query, key, value;
};
AttentionGradients AttentionBackward(const AttentionShape& shape, const Array& query,
                                     const Array& key, const Array& value,
                                     const Array& output_gradient);

// What a loss has beside the cross entropy; a number alone is the smoothing.
struct LossTerms {
  LossTerms(double share = 0, double factor = 0) : smoothing(share), z(factor) {}  // NOLINT
  double smoothing;                                                                // of labels
  double z;  // factor of (ln Z)^2, which gradients know and the sum of losses does not
};
struct LossResult {
  double sum = 0;        // nats, over valid targets
  double objective = 0;  // what the gradient differentiates: with the terms of z
  std::int64_t valid = 0;
  Array gradient;  // of the objective, [tokens, vocabulary]
};
// logits: [tokens, vocabulary]; target -1: no loss, no gradient.
LossResult CrossEntropy(const Array& logits, const std::vector<std::int32_t>& targets,
                        const LossTerms& terms);

// The whole Transformer in fp64, forward and backward, from the mathematics alone: one process, no
// parallelism, nothing of src/. The model's losses, logits and gradients are compared with it.

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
  double objective = 0;        // with the terms of z
  std::int64_t valid = 0;      // number of valid targets
  Parameters gradients;        // of the objective, one for each parameter
  std::vector<double> logits;  // [B * T, vocabulary]
  std::vector<bool> relu_on;   // every ReLU's side: a finite difference must not cross a kink
  std::vector<std::vector<double>> blocks;  // output of each block, [B * T, dim]
};

// training: dropout on (keyed by seed). Throws std::out_of_range for a missing parameter and
// std::invalid_argument for one of a wrong size.
ReferenceResult RunReference(const model::Options& options, const Parameters& parameters,
                             const data::Entry& batch, std::uint32_t seed, const LossTerms& terms,
                             bool training, bool causal = true);

// Training steps of the plain reference model in fp64: AdamW with clipping, as the papers write
// them.

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
