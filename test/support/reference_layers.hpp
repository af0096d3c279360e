// The Transformer's operations as the textbook writes them, in fp64 and plain loops: what the
// kernels and layers are tested against. Shares nothing with src/; every backward pass recomputes
// what it needs from the forward pass's inputs.
#ifndef TRIREME_TEST_SUPPORT_REFERENCE_LAYERS_HPP_
#define TRIREME_TEST_SUPPORT_REFERENCE_LAYERS_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/model/options.hpp"

namespace trireme::test {

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

struct LossResult {
  double sum = 0;  // nats, over valid targets
  std::int64_t valid = 0;
  Array gradient;  // of the sum, [tokens, vocabulary]
};
// logits: [tokens, vocabulary]; target -1: no loss, no gradient.
LossResult CrossEntropy(const Array& logits, const std::vector<std::int32_t>& targets,
                        double label_smoothing);

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_REFERENCE_LAYERS_HPP_
