// Element-wise passes around the products: biases, the residual stream, activations.
#pragma once

#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/kernel.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// Dropout as a pure function of global coordinates: an element has the same mask in every layout.

// A place of the model where dropout acts, and its mask. Row r of a matrix is row R = first_row + r
// of the micro-batch: sequence R / length, position positions.At(R % length); column c is feature f
// = first_feature + c. An element is kept, and multiplied by 65536 / (65536 - threshold), if the
// 16-bit lane f % 8 of
//   Philox({f / 8, position, ordinal low, ordinal high}, MakeKey(seed, purpose, layer, site))
// is at least the threshold. Besides, whole rows may be dropped together: RowDropped.
struct Dropout {
  double probability = 0;
  std::uint32_t seed = 0;
  Purpose purpose = Purpose::kResidualDropout;
  std::uint32_t layer = 0;
  std::uint32_t site = 0;  // number of this place in its layer; in attention the head
  const std::uint64_t* ordinals = nullptr;  // [sequences]: global sample numbers; or null
  std::int64_t length = 1;                  // positions of a sequence on this rank
  std::int64_t first_row = 0;               // where a shard of the rows begins in the micro-batch
  std::int64_t first_feature = 0;           // where a slice of the features begins
  Positions positions = {};                 // of the `length` rows within their sequence
  // Stored mask, GPU only (then first_feature is 0); null: none. Bit f % 8 of kept[row *
  // kept_stride + f / 8] is 1 if the element is kept. ResidualForward and ResidualNormForward write
  // it; NormBackward and DropoutForward read it instead of drawing again.
  std::uint8_t* kept = nullptr;
  std::int64_t kept_stride = 0;  // bytes from row to row: KeptBytes(features)
  // Probability that a row is dropped; what is kept is scaled by this too. The rows of a sequence
  // share one draw or, with `words`, those with the same word do.
  double row_probability = 0;
  Purpose row_purpose = Purpose::kLayerDropout;
  const std::int32_t* words = nullptr;  // [rows of the micro-batch], where `ordinals` are; or null
  std::uint64_t ordinal = 0;            // of all rows, if `ordinals` is null

  static std::int64_t KeptBytes(std::int64_t features) {
    return CeilDivide(features, std::int64_t{8});
  }
  // Dropout for the rows of a matrix from its row `rows` on.
  Dropout From(std::int64_t rows) const {
    Dropout later = *this;
    later.first_row += rows;
    if (kept != nullptr) later.kept += rows * kept_stride;
    return later;
  }
  bool Active() const { return Threshold() > 0 || RowThreshold() > 0; }
  std::uint32_t Threshold() const { return ThresholdOf(probability); }
  std::uint32_t RowThreshold() const { return ThresholdOf(row_probability); }
  std::int64_t PositionOf(std::int64_t row) const {
    return positions.At((first_row + row) % length);
  }
  double Scale() const {
    return 65536.0 / (65536.0 - Threshold()) * (65536.0 / (65536.0 - RowThreshold()));
  }

 private:
  static std::uint32_t ThresholdOf(double p) { return static_cast<std::uint32_t>(p * 65536 + 0.5); }
};

// Whether the rows with word `word` (0 without words) of a sequence are dropped. key: of
// Dropout::row_purpose, with the layer and site. Drawn like the element of feature 0 at position
// `word`.
constexpr bool RowDropped(PhiloxKey key, std::uint32_t threshold, std::uint32_t word,
                          std::uint64_t ordinal) {
  const PhiloxCounter words = Philox(
      {0, word, static_cast<std::uint32_t>(ordinal), static_cast<std::uint32_t>(ordinal >> 32)},
      key);
  return (words[0] & 0xFFFF) < threshold;
}

// out = dropout(x); out may be x. x, out: [rows, features].
extern const Kernel<void(const Matrix& x, const Dropout& dropout, const Matrix& out)>
    DropoutForward;

// x += bias in each row. x: [rows, columns], bias: [1, columns].
extern const Kernel<void(const Matrix& x, const Matrix& bias)> AddBias;

// out = residual + dropout(branch + bias), [rows, dim]. bias: [1, dim] or Empty(). branch may be
// overwritten; out may be residual or branch.
extern const Kernel<void(const Matrix& residual, const Matrix& branch, const Matrix& bias,
                         const Dropout& dropout, const Matrix& out)>
    ResidualForward;

// x = 0. [rows, columns].
extern const Kernel<void(const Matrix& x)> Clear;

// y = x, element by element. [rows, columns].
extern const Kernel<void(const Matrix& x, const Matrix& y)> Copy;

// y += x, element by element. [rows, columns].
extern const Kernel<void(const Matrix& x, const Matrix& y)> Add;

// y = factor x, element by element; y may be x. [rows, columns].
extern const Kernel<void(const Matrix& x, double factor, const Matrix& y)> Scale;

enum class ActivationKind { kRelu, kGelu, kSwiglu };

// pre += bias (unless Empty()), then out = dropout(act(pre)). out: [rows, ffn], overwritten.
//   kRelu, kGelu  pre: [rows, ffn]; kGelu is the tanh form (Hendrycks and Gimpel 2016);
//                 out = pre is allowed for kRelu
//   kSwiglu       pre: [rows, 2 ffn], gate then up; out = silu(gate) * up (Shazeer 2020)
extern const Kernel<void(ActivationKind kind, const Matrix& pre, const Matrix& bias,
                         const Dropout& dropout, const Matrix& out)>
    ActivationForward;

// Overwrites dpre (shape of pre), given dout: [rows, ffn]. `pre`: as the forward pass left it; for
// kRelu it is the forward pass's `out`. All kinds allow dpre = pre (same memory and stride), kRelu
// and kGelu also dpre = dout.
extern const Kernel<void(ActivationKind kind, const Matrix& pre, const Dropout& dropout,
                         const Matrix& dout, const Matrix& dpre)>
    ActivationBackward;

// Token embedding on a slice of the vocabulary, then positions and dropout on a shard of the rows.

// out[r] = scale * weight[tokens[r] - first], or 0 for tokens outside this slice of the vocabulary,
// [first, first + weight.rows). tokens: [rows]; weight: [slice, dim]; out: [rows, dim],
// overwritten.
extern const Kernel<void(const std::int32_t* tokens, std::int32_t first, const Matrix& weight,
                         double scale, const Matrix& out)>
    EmbeddingForward;

// dweight[tokens[r] - first] += scale * dout[r] for the tokens of this slice, in the order of the
// rows for any number of threads. tokens: [rows]; dout: [rows, dim]; dweight: [slice, dim].
extern const Kernel<void(const std::int32_t* tokens, std::int32_t first, double scale,
                         const Matrix& dout, const Matrix& dweight)>
    EmbeddingBackward;

// In PositionForward and PositionBackward t is the position of row r as `dropout` gives it, less
// begins[dropout.first_row + r]. begins: [rows of the micro-batch] in the stream's memory, as in
// AttentionShape; null: nothing is subtracted. Dropout masks do not depend on begins.

// x[r] = dropout(x[r] + positions[t]). x: [rows, dim], in place; positions: [all positions that
// occur, dim] or Empty().
extern const Kernel<void(const Matrix& positions, const std::int32_t* begins,
                         const Dropout& dropout, const Matrix& x)>
    PositionForward;

// dpositions[t] += dout[r], in the order of the rows; does nothing if dpositions is Empty(). dout:
// [rows, dim], already masked; dpositions: shape of positions.
extern const Kernel<void(const std::int32_t* begins, const Dropout& dropout, const Matrix& dout,
                         const Matrix& dpositions)>
    PositionBackward;

// Fills `table`, in host memory, with the fixed positions of Vaswani et al. 2017, section 3.5:
// [t, 2i] = sin(t / 10000^(2i/dim)), [t, 2i+1] = cos of the same. table: [positions, dim].
void SinusoidalPositions(const Matrix& table);

// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), and sums over rows.

enum class NormKind { kLayerNorm, kRmsNorm };

//   statistics    [rows, 2], overwritten: mean, rstd; dense (no stride is read, as for all scratch)
extern const Kernel<void(NormKind kind, const Matrix& x, const Matrix& weight, const Matrix& bias,
                         double epsilon, const Matrix& y, const Matrix& statistics)>
    NormForward;

// dweight += its gradient; dbias += its gradient (unless Empty()). Same bits for any number of
// threads. CPU only.
//   dy, x           [rows, dim]
//   dweight, dbias  [1, dim]
//   statistics      [rows, 2], from NormForward
//   scratch         [kReductionBlocks, 2 * dim]
extern const Kernel<void(const Matrix& dy, const Matrix& x, const Matrix& statistics,
                         const Matrix& dweight, const Matrix& dbias, const Matrix& scratch)>
    NormBackwardWeight;

// A residual addition and the norm after it in one pass: sum = residual + dropout(branch + bias),
// then y = norm(sum) with statistics as in NormForward. Matrices: [rows, dim]; weight, norm_bias,
// bias: [1, dim]; both biases may be Empty(). branch is not changed; sum may be residual or branch.
extern const Kernel<void(NormKind kind, const Matrix& residual, const Matrix& branch,
                         const Matrix& bias, const Dropout& dropout, const Matrix& sum,
                         const Matrix& weight, const Matrix& norm_bias, double epsilon,
                         const Matrix& y, const Matrix& statistics)>
    ResidualNormForward;

// The backward pass of a norm and of the dropout before it in one pass. With g = dy + more:
//   dx = residual + gradient of g through the norm
//   dbranch = gradient of dx through the dropout
//   dweight, dbias += gradients of the norm's parameters, as in NormBackwardWeight
// Empty() means: more = 0, residual = 0; dbranch, dweight, dbias not wanted. dx may be residual, dy
// or more; dbranch may be none of them.
//   dy, more, x, residual, dx, dbranch  [rows, dim]
//   weight, dweight, dbias              [1, dim]
//   statistics                          [rows, 2], from NormForward
//   scratch                             [kReductionBlocks, 2 * dim]
struct NormBackwardPass {
  NormKind kind = NormKind::kLayerNorm;
  Matrix dy = {}, more = {}, x = {}, weight = {}, statistics = {}, residual = {};
  Dropout dropout = {};
  Matrix dx = {}, dbranch = {}, dweight = {}, dbias = {}, scratch = {};
};
extern const Kernel<void(const NormBackwardPass& pass)> NormBackward;

// Number of blocks into which a sum over rows is cut; their sums are added up in order. Fixed, so
// that the result is the same for any number of threads.
inline constexpr int kReductionBlocks = 16;

// sums += sum over rows of x. x: [rows, columns], sums: [1, columns], scratch: [kReductionBlocks,
// columns].
extern const Kernel<void(const Matrix& x, const Matrix& sums, const Matrix& scratch)> ColumnSum;

}  // namespace trireme::kernels
