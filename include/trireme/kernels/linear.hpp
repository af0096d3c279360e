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

// Roof: the speed at which this machine multiplies matrices right now.

// FLOP/s of the best of several products of 1024 x 1024 matrices in about a tenth of a second, of
// two if ranks share cores and one takes longer, through the same seam as the model's. All ranks
// measure at the same time, as they will train.
double MeasureRoof(const device::Stream& stream, Dtype dtype);

// Matrix products: every product of the program passes through here.

enum class Form { kPlain, kTransposed };

// c = form_a(a) form_b(b), or c += with `accumulate`. c: [M, N]; strides are free; any dimension
// may be 0 (an empty sum is 0). All of one dtype. The matrix library runs with the threads set by
// device::ConfigureThreads, inside an OpenMP parallel region on the calling thread alone.
//
// On a canonical stream the product is Trireme's own, with the stream's threads, and each element
// of c is one chain of operations: for each block of 256 inner indices, in order, c = c + s, with s
// starting at 0 and s = fma(a, b, s) in the order of the indices; c starts at +0 without
// `accumulate`. The bits of an element depend on its row of form_a(a), its column of form_b(b) and
// their length alone.
//
// On a bf16 stream the operands of fp32 products are rounded to bf16 (to nearest, ties to even;
// bf16 subnormals may count as 0) and added up in fp32. RunError if the stream is canonical too, or
// the CPU has no bf16 instructions.
extern const Kernel<void(Form form_a, const Matrix& a, Form form_b, const Matrix& b,
                         const Matrix& c, bool accumulate)>
    MatrixMultiply;

// Name and version of the CPU's matrix library, for --version: "oneDNN 2.6.3".
const char* MatrixLibrary();

// The transposed fp8 form of a matrix, which a product writes beside the form that it multiplies:
// the layer's weight gradient then need not read the matrix.
struct Fp8Transpose {
  void* memory = nullptr;        // a byte per element; null: it is not kept
  mutable bool written = false;  // by the products since the memory was taken
};
// Transposes of a layer's input x and of dy, the gradient of its output. Both matrices must keep
// their values up to the weight gradient.
struct Fp8Transposes {
  Fp8Transpose x, dy;
};

// Gradients of a layer's biases, which LinearWeightGradient adds to: of each part, sums += the sum
// over the rows of dy's columns from `first` on. On a GPU the product's epilogue may sum them.
struct BiasGradients {
  struct Sum {
    std::int64_t first = 0;
    Matrix sums;  // [1, columns]; Empty(): none
  };
  Sum parts[2];
  Matrix scratch;  // as of ColumnSum
  // Other ranks sum the same rows and must find the same bits, though their weights may be of
  // another shape: no product sums them.
  bool alike = false;
};

// A linear layer of the model: y = x form(weight). weight: [out, in] with Form::kTransposed, [in,
// out] with Form::kPlain.
struct Linear {
  int site = -1;  // number in the model, under which fp8 scales are kept; < 0: never fp8
  Form form = Form::kTransposed;
  Matrix weight;
  // There are few rows. On the CPU LinearForward and LinearActivation then run at the speed of the
  // weight's memory, with other rounding; canonical and bf16 streams keep their own products.
  bool thin = false;
  const class PackedWeights* packed = nullptr;  // may have a second copy of the weight, if thin
  const Fp8Transposes* transposes = nullptr;    // fp8, on GPUs; null: nothing is kept
  const BiasGradients* biases = nullptr;        // of LinearWeightGradient; null: none
};

// Second copies of layers' weights, which thin products of two rows and more read in the order of
// memory: panels of as many outputs as two cache lines hold, and in a panel one inner index after
// another. The bits are the same.
class PackedWeights {
 public:
  // Whether products of up to `rows` rows of this type read copies: 2 to 32 rows on CPUs, neither
  // canonical nor in bf16.
  static bool Serve(const device::Stream& stream, Dtype dtype, std::int64_t rows);

  PackedWeights() = default;  // no copies
  // Takes the memory. Weights of `layers` stay where they are.
  PackedWeights(const device::Stream& stream, std::vector<Linear> layers);
  // Copies the weights as they are now, by the stream's threads; they change no more.
  void Pack();
  // The copy of the weight that lies at this address; null: there is none, or none yet.
  const void* Of(const void* weight) const;
  std::int64_t Bytes() const { return device::BytesOf(panels_); }

 private:
  device::Stream stream_;
  std::vector<Linear> layers_;
  std::map<const void*, std::int64_t> begins_;  // bytes of a weight's copy in panels_
  device::Buffer panels_;
  bool packed_ = false;
};

// y = x form(weight) + bias. x: [rows, in]; bias: [1, out] or Empty(); y: [rows, out], overwritten.
// Calls then(rows) for ranges of rows of y, each row once, as soon as a range is complete, on the
// CPU by the thread that has it in its cache. Several threads may call it at once; it must neither
// throw nor multiply with another `then`.
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

// dhidden = dy form(weight)^T, then dpre from it as in ActivationBackward: the gradient of the
// input of the activation before this layer. `from`: the activation's `pre`, for kRelu its output.
// dy: [rows, out]; dhidden: [rows, in], overwritten; dpre: of the shape of `from`, overwritten.
extern const Kernel<void(const Linear& linear, const Matrix& dy, ActivationKind kind,
                         const Matrix& from, const Dropout& dropout, const Matrix& dhidden,
                         const Matrix& dpre)>
    LinearActivationGradient;

// dweight += x^T dy, transposed if linear.form is kTransposed. x: [rows, in]; dy: [rows, out];
// dweight: of the weight's shape and the sums' type. linear.weight is not read. Adds the gradients
// of linear.biases, too.
extern const Kernel<void(const Linear& linear, const Matrix& x, const Matrix& dy,
                         const Matrix& dweight)>
    LinearWeightGradient;

}  // namespace trireme::kernels
