// Matrix products of a linear layer, each with the bias, activation or gradient that follows: in
// the product's epilogue if the matrix library has one, else in a separate pass.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/kernel.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// The roof is the speed at which this machine multiplies matrices right now.

// Measures the roof in FLOP/s: multiplies 1024 x 1024 matrices (on a GPU larger ones, too) as the
// model does, for about a tenth of a second (at least twice, if ranks share cores and a product
// takes longer) and returns the best. All ranks should measure at the same time, as they will
// train.
double MeasureRoof(const device::Stream& stream, Dtype dtype);

// Matrix products: every product of the program goes through MatrixMultiply.

enum class Form { kPlain, kTransposed };

// c = form_a(a) form_b(b), or c += that with `accumulate`. c: [M, N]; any stride; any dimension may
// be 0 (an empty sum is 0); all matrices have one dtype. The matrix library uses the threads that
// device::ConfigureThreads has set; inside an OpenMP parallel region, the calling thread alone.
//
// On a canonical stream the product is Trireme's own, on the stream's threads, and each element of
// c is one fixed chain of operations: c starts at +0 (or at its value, with `accumulate`); for each
// block of 256 inner indices, in order, c = c + s, where s starts at 0 and s = fma(a, b, s) in the
// order of the indices. So the bits of an element depend only on its row of form_a(a), its column
// of form_b(b) and their length.
//
// On a bf16 stream the operands of fp32 products are rounded to bf16 (to nearest, ties to even;
// bf16 subnormals may count as 0) and added up in fp32. RunError if the stream is canonical too, or
// if the CPU has no bf16 instructions and the stream does not say bf16_by_fp32. With that an
// element is the canonical chain of the rounded operands on x86-64 with AVX2.
extern const Kernel<void(Form form_a, const Matrix& a, Form form_b, const Matrix& b,
                         const Matrix& c, bool accumulate)>
    MatrixMultiply;

// Name and version of the CPU's matrix library, for --version: "oneDNN 2.6.3".
const char* MatrixLibrary();

// The transposed fp8 form of a matrix, which a product writes beside the form that it multiplies,
// so that the layer's weight gradient need not read the matrix again.
struct Fp8Transpose {
  void* memory = nullptr;        // one byte per element; null: do not keep the transpose
  mutable bool written = false;  // whether a product has written it since it got its memory
};
// Transposes of a layer's input x and of its output's gradient dy. Both matrices must keep their
// values until the weight gradient is computed.
struct Fp8Transposes {
  Fp8Transpose x, dy;
};

// Gradients of a layer's biases, to which LinearWeightGradient adds: for each part, sums += the sum
// over rows of dy's columns from `first` on. On a GPU the product's epilogue may compute them.
struct BiasGradients {
  struct Sum {
    std::int64_t first = 0;
    Matrix sums;  // [1, columns]; Empty(): none
  };
  Sum parts[2];
  Matrix scratch;  // as in ColumnSum
  // Whether other ranks sum the same rows and must get the same bits, though their weights may have
  // other shapes. Then the sums are a pass of their own, never part of a product.
  bool alike = false;
};

// A linear layer of the model: y = x form(weight). weight: [out, in] with Form::kTransposed, [in,
// out] with Form::kPlain.
struct Linear {
  int site = -1;  // number of the layer in the model, for its fp8 scales; < 0: never fp8
  Form form = Form::kTransposed;
  Matrix weight;
  // Set if there are few rows: on the CPU LinearForward and LinearActivation then run at the speed
  // of the weight's memory, with slightly different rounding. Canonical and bf16 streams ignore it.
  bool thin = false;
  const class PackedWeights* packed = nullptr;  // if thin: may have a copy of the weight
  const Fp8Transposes* transposes = nullptr;    // fp8 on GPUs; null: no transposes are kept
  const BiasGradients* biases = nullptr;        // read by LinearWeightGradient; null: none
};

// Second copies of layers' weights, stored in the order in which thin products of two or more rows
// read them: in panels of as many outputs as fill two cache lines, and within a panel by inner
// index. The results have the same bits as without.
class PackedWeights {
 public:
  // Whether products of up to `rows` rows of this type read the copies: 2 to 32 rows, on CPU
  // streams that are neither canonical nor bf16.
  static bool Serve(const device::Stream& stream, Dtype dtype, std::int64_t rows);

  PackedWeights() = default;  // no copies
  // Allocates the copies. `layers` must keep their weights at their addresses.
  PackedWeights(const device::Stream& stream, std::vector<Linear> layers);
  // Copies the current weights, using the stream's threads; the weights must not change afterwards.
  void Pack();
  // The copy of the weight at this address; null: there is none, or Pack has not run yet.
  const void* Of(const void* weight) const;
  std::int64_t Bytes() const { return device::BytesOf(panels_); }

 private:
  device::Stream stream_;
  std::vector<Linear> layers_;
  std::map<const void*, std::int64_t> begins_;  // weight -> where its copy begins in panels_, bytes
  device::Buffer panels_;
  bool packed_ = false;
};

// y = x form(weight) + bias. x: [rows, in]; bias: [1, out] or Empty(); y: [rows, out], overwritten.
// Calls then(rows) once for each row range of y, as soon as it is complete; on the CPU the thread
// that has the range in its cache does so. Several threads may call `then` at once; it must neither
// throw nor compute a product with a `then` of its own.
extern const Kernel<void(const Linear& linear, const Matrix& x, const Matrix& bias, const Matrix& y,
                         FunctionRef<void(const Part& rows)> then)>
    LinearForward;

// pre = x form(weight) + bias, out = dropout(act(pre)), with pre and out as in ActivationForward.
// x: [rows, in]; bias: [1, out] or Empty(); pre, out: overwritten.
extern const Kernel<void(const Linear& linear, const Matrix& x, const Matrix& bias,
                         ActivationKind kind, const Dropout& dropout, const Matrix& pre,
                         const Matrix& out)>
    LinearActivation;

// dx = dy form(weight)^T. dy: [rows, out]; dx: [rows, in], overwritten.
extern const Kernel<void(const Linear& linear, const Matrix& dy, const Matrix& dx)>
    LinearInputGradient;

// dhidden = dy form(weight)^T, then dpre from dhidden as in ActivationBackward: the gradient with
// respect to the input of the activation before this layer. `from`: the activation's `pre`, for
// kRelu its output. dy: [rows, out]; dhidden: [rows, in], overwritten; dpre: shape of `from`,
// overwritten.
extern const Kernel<void(const Linear& linear, const Matrix& dy, ActivationKind kind,
                         const Matrix& from, const Dropout& dropout, const Matrix& dhidden,
                         const Matrix& dpre)>
    LinearActivationGradient;

// dweight += x^T dy, transposed if linear.form is kTransposed. x: [rows, in]; dy: [rows, out];
// dweight: shape of the weight, in the sums' type. linear.weight is not read. Also adds the
// gradients of linear.biases.
extern const Kernel<void(const Linear& linear, const Matrix& x, const Matrix& dy,
                         const Matrix& dweight)>
    LinearWeightGradient;

}  // namespace trireme::kernels
