// State of a GPU's math libraries (kernels/libraries.hpp): algorithms of matrix products, scales
// and memory of fp8, cuDNN's plans.
#pragma once

#include <cublasLt.h>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "backends.hpp"
#include "trireme/base/function_ref.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::kernels::cuda {

// Owning handles of cuBLASLt, and its status codes as exceptions.

// RunError "what: cuBLASLt says the requested functionality is not supported (15)", unless success.
void Check(cublasStatus_t status, const char* what);

template <auto Destroy>
struct Release {
  template <typename T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
template <typename Pointer, auto Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, Release<Destroy>>;

using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <typename Value>
void Set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  Check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value),
        "a property of a matrix product");
}

template <typename Value>
void Set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  Check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "a preference among algorithms");
}

// A matrix product on a GPU: its operands, its key and its description for cuBLASLt.

cudaDataType_t TypeOf(Dtype dtype);

// What is applied to the sums before they are stored in c.
enum class Epilogue {
  kNone,
  kBias,          // c = sum + bias
  kRelu,          // c = relu(sum)
  kReluBias,      // c = relu(sum + bias)
  kGelu,          // aux = sum, c = gelu(aux)
  kGeluBias,      // aux = sum + bias, c = gelu(aux)
  kGeluGradient,  // c = sum * gelu'(aux)
  kSumsOfA,       // c = sum; bias = sum of form_a(a) over the inner index, overwritten: [rows]
  kSumsOfB,       // the same with form_b(b): [columns]
};
inline bool SumsOperand(Epilogue epilogue) {
  return epilogue == Epilogue::kSumsOfA || epilogue == Epilogue::kSumsOfB;
}

// A row-major matrix in memory; `stride`: elements from row to row.
struct Operand {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  Form form = Form::kPlain;
  std::int64_t stride = 0;
  const float* scale = nullptr;  // fp8, on the GPU: value = stored * *scale
};

// c = form_a(a) form_b(b), or c += with `accumulate`. c: [rows, columns]; inner: length of the
// inner dimension. No dimension is 0.
struct Product {
  Operand a, b;
  void* c = nullptr;
  cudaDataType_t c_type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, inner = 0, c_stride = 0;
  bool accumulate = false;
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // [columns], of c's type; with kSumsOf*: output
  void* aux = nullptr;         // [rows, columns], of c's type
  std::int64_t aux_stride = 0;
  bool fast_sums = false;  // fp8: sums stay in the tensor cores, with about 14 bits
};

// The product of two matrices, or of two operands, without an epilogue.
Product MakeProduct(Form form_a, const Matrix& a, Form form_b, const Matrix& b, const Matrix& c,
                    bool accumulate);
Product MakeProduct(const Operand& a, const Operand& b, const Matrix& c, std::int64_t inner,
                    bool accumulate);

// All properties on which an algorithm may depend. Alignments in bytes; 256 means 256 or more.
struct ProductKey {
  cudaDataType_t a_type, b_type, c_type;
  Form a_form, b_form;
  std::int64_t rows, columns, inner;
  std::int64_t a_stride, b_stride, c_stride, aux_stride;
  std::uint32_t a_aligned, b_aligned, c_aligned, bias_aligned, aux_aligned;
  bool accumulate, fast_sums;
  Epilogue epilogue;

  explicit ProductKey(const Product& product);
  auto operator<=>(const ProductKey&) const = default;
  // Unique text, e.g. "bf16 x bf16 -> bf16, nt, 16384 x 2304 x 768, strides 768 768 2304, aligned
  // 256 256 256, bias".
  std::string Text() const;
};

// A product as cuBLASLt describes it. The library is column-major, so it computes c^T = form(b)^T
// form(a)^T, with b as its first operand.
class Plan {
 public:
  explicit Plan(const Product& product);

  const ProductKey& Key() const { return key_; }
  // Proposes up to `most` algorithms that add in a fixed order, best first; returns their number.
  // workspace: bytes they may use.
  int Propose(cublasLtHandle_t handle, std::int64_t workspace, int most,
              cublasLtMatmulHeuristicResult_t* proposals) const;
  // Whether the algorithm can compute this product with `workspace` bytes.
  bool Admits(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
              std::int64_t workspace) const;
  // Queues the product. trial (for timing): a product that accumulates adds only the smallest
  // normal number times its sums, which takes as long and leaves c unchanged (but for zeros).
  cublasStatus_t Run(cublasLtHandle_t handle, const device::GpuContext& gpu, const Product& product,
                     const cublasLtMatmulAlgo_t& algorithm, bool trial) const;

 private:
  void SetPointers(const Product& product) const;

  ProductKey key_;
  Operation operation_;
  Layout first_, second_, result_;
};

// cuBLASLt's algorithm for each product: chosen by timing when a product first occurs, kept as
// text, and taken over from other ranks and earlier runs. The same algorithm, library version and
// kind of card always give the same bits; another algorithm may give others.

class Algorithms {
 public:
  explicit Algorithms(const device::GpuContext& gpu);

  // Queues the product. Returns false, and queues nothing, if the library has no algorithm for it
  // (some epilogues, types, alignments), or if `apart` was clearly faster when the algorithm was
  // chosen. `apart` queues the same result by a product without epilogue and a separate pass.
  // Epilogues that sum an operand are used only if timed, with the same bits several times.
  bool Run(const device::Stream& stream, const Product& product,
           const FunctionRef<void()>* apart = nullptr);
  // Queues a trial (Plan::Run) of a product without an epilogue.
  void Try(const device::Stream& stream, const Product& product);

  // As in kernels::Libraries.
  std::string Chosen() const;
  bool Adopt(const std::vector<std::string>& texts);
  void Seal() { sealed_ = true; }
  bool Sealed() const { return sealed_; }

 private:
  using Algorithm = std::optional<cublasLtMatmulAlgo_t>;  // empty: use `apart`
  struct Choice {
    Plan plan;
    Algorithm algorithm;
    bool known = true;  // false: the library has no algorithm for it
  };
  using Kept = std::map<std::string, Algorithm>;  // key: ProductKey::Text

  const Choice& ChoiceOf(const device::Stream& stream, const Product& product,
                         const FunctionRef<void()>* apart);
  Choice Choose(const device::Stream& stream, const Product& product,
                const FunctionRef<void()>* apart);
  const Algorithm* FindKept(const Plan& plan, const Kept& kept);
  std::string Library() const;
  bool Read(const std::string& text, Kept& kept) const;

  const device::GpuContext& gpu_;
  Handle handle_;
  std::map<ProductKey, Choice> choices_;
  Kept kept_;  // what Adopt took over, also for products that have not occurred yet
  bool sealed_ = false;
  bool warned_ = false;
};

// fp8 operands of linear layers (Micikevicius et al. 2022): values and weights in e4m3, gradients
// in e5m2. Each tensor has one scale, which follows from its largest magnitudes in the last steps
// (delayed scaling), so that a single pass both rounds and finds the new maximum.

// The operands of a linear layer's products; each has a scale of its own.
enum class Fp8Role { kValue, kWeight, kGradient };
using gpu::kFp8InverseStep;
using gpu::kFp8Places;
using gpu::kFp8Roles;
using gpu::kFp8Unit;
constexpr Fp8Role RoleOf(int tensor) { return static_cast<Fp8Role>(tensor % kFp8Roles); }
// Largest number of the role's type: e5m2 for gradients, else e4m3.
constexpr float LargestOf(Fp8Role role) { return role == Fp8Role::kGradient ? 57344.0f : 448.0f; }
// Upper bound of scales: keeps them finite, and their inverses above 0.
inline constexpr float kFp8LargestScale = 1e30f;
inline constexpr int kFp8History = 16;  // number of steps whose maxima count

// Scales of all tensors, on the GPU. Each array holds number site * kFp8Roles + role, [tensors],
// then kFp8Places * kFp8Roles more for operands outside of training.
struct Fp8Scales {
  float* scale = nullptr;       // stored = value * scale
  float* inverse = nullptr;     // value = stored * inverse; kFp8InverseStep numbers apart
  unsigned* largest = nullptr;  // of this step: a float >= 0 as bits, which sort like the floats
  int tensors = 0;
};

class Fp8 {
 public:
  // RunError if there are sites but the card has no fp8.
  Fp8(const device::Stream& stream, int sites);

  // As in kernels::Libraries.
  void Reserve(std::int64_t bytes);
  void KeepWeights(std::span<const Linear> layers);
  void SetTraining(bool training);

  // Rounds a bf16 matrix to the role's type and returns it as an operand of form kPlain: dense,
  // [rows, columns], or [columns, rows] with `transposed`; both sizes must be multiples of
  // kFp8Unit. It lies in the memory of `place` (0 or 1: which operand of the product), valid until
  // that place is used again.
  Operand Quantise(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                   bool transposed, int place);
  // The same, untransposed, in place 0; also writes the transpose to `transpose` if it has memory.
  Operand QuantiseBoth(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                       const Fp8Transpose& transpose);
  // The transposed operand: from `transpose` if it was written, else rounded now.
  Operand Transposed(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                     const Fp8Transpose& transpose);
  // A layer's weight, or its transpose: the kept copy (rounded first if that has not happened in
  // this step) or, if none is kept, a copy in place 1.
  Operand Weight(const device::Stream& stream, const Linear& linear, bool transposed);

  // Scale = largest number of the type / largest magnitude in the last kFp8History steps; zeros and
  // values that are not finite are ignored.
  void QueueLargest(const device::Stream& stream);
  std::span<float> Largest();
  void UpdateScales(const device::Stream& stream);
  bool Scaled() const { return scaled_ || scales_.tensors == 0; }
  // [tensors, 1 + kFp8History]: scale (0: never seen), then largest magnitudes, latest step first.
  std::vector<float> State() const { return scaled_ ? state_ : std::vector<float>(); }
  bool SetState(const device::Stream& stream, std::span<const float> state);

 private:
  struct KeptWeight {
    std::byte* memory = nullptr;  // the weight's plain form, then its transpose
    std::int64_t bytes = 0;
    Matrix weight = {};  // which weight was rounded in this step; Empty(): none
  };

  std::byte* Place(int place, std::int64_t bytes) const;
  // Number of an operand's tensor; makes sure that it has a scale.
  int FindScale(const device::Stream& stream, int site, Fp8Role role, const Matrix& x, int place);
  // The operand that is stored at `data`, with `stride` columns, and has this tensor's scale.
  Operand OperandOf(int tensor, const std::byte* data, std::int64_t stride) const;
  void ForgetWeights();
  void Upload(const device::Stream& stream);

  device::Buffer memory_;  // of scales_
  Fp8Scales scales_;
  device::PinnedBuffer largest_;   // [tensors]
  device::PinnedBuffer uploaded_;  // scales and inverses on their way to the GPU
  std::vector<float> state_;
  bool scaled_ = false;
  std::vector<char> met_;  // [tensors]: whether the tensor has a scale
  bool training_ = true;
  device::Buffer rooms_[kFp8Places];
  std::int64_t reserved_ = 0;             // bytes of each room
  std::vector<KeptWeight> weights_;       // [sites]
  device::Buffer kept_;                   // memory of weights_
  std::vector<device::Buffer> outgrown_;  // earlier buffers, which recorded graphs may still use
};

// Launchers (fp8.cu). x: bf16. Fp8Largest: largest = max(largest, |x|).
void Fp8Largest(const device::Stream& stream, const Matrix& x, unsigned* largest);
// Computes one tensor's scale from its `largest` of this step alone.
void Fp8FirstScale(const device::Stream& stream, const Fp8Scales& scales, int tensor);
// What a pass writes, dense: the matrix [rows, columns], and its transpose. Either may be null.
struct Fp8Forms {
  std::byte* plain = nullptr;
  std::byte* transposed = nullptr;
};
// out = fp8(x * scale); also updates `largest` as Fp8Largest does.
void Fp8Round(const device::Stream& stream, const Matrix& x, const Fp8Scales& scales, int tensor,
              const Fp8Forms& out);

class GpuLibraries final : public Libraries {
 public:
  GpuLibraries(const device::Stream& stream, int sites);

  std::string Chosen() const override { return algorithms_.Chosen(); }
  bool Adopt(const std::vector<std::string>& texts) override { return algorithms_.Adopt(texts); }
  void Seal() override { algorithms_.Seal(); }
  bool Sealed() const override { return algorithms_.Sealed(); }
  void Reserve(std::int64_t fp8_elements) override { fp8_.Reserve(fp8_elements); }
  void KeepWeights(std::span<const Linear> layers) override { fp8_.KeepWeights(layers); }
  void SetTraining(bool training) override { fp8_.SetTraining(training); }
  void QueueLargest(const device::Stream& stream) override { fp8_.QueueLargest(stream); }
  std::span<float> Largest() override { return fp8_.Largest(); }
  void UpdateScales(const device::Stream& stream) override { fp8_.UpdateScales(stream); }
  bool Scaled() const override { return fp8_.Scaled(); }
  std::vector<float> Scales() const override { return fp8_.State(); }
  bool SetScales(const device::Stream& stream, std::span<const float> scales) override {
    return fp8_.SetState(stream, scales);
  }

  // As Algorithms::Run.
  bool Run(const device::Stream& stream, const Product& product,
           const FunctionRef<void()>* apart = nullptr) {
    return algorithms_.Run(stream, product, apart);
  }
  void Try(const device::Stream& stream, const Product& product) {
    algorithms_.Try(stream, product);
  }
  Fp8& Quantiser() { return fp8_; }
  // State of cuDNN, created by its first user (cudnn_plan.hpp); null before, and without cuDNN.
  std::unique_ptr<device::LibraryState>& Attention() { return attention_; }

 private:
  Algorithms algorithms_;
  Fp8 fp8_;
  std::unique_ptr<device::LibraryState> attention_;
};

// Libraries of the stream. RunError if it has none.
GpuLibraries& GpuLibrariesOf(const device::Stream& stream);

// Queues a product. RunError if cuBLASLt has no algorithm for it.
void Multiply(const device::Stream& stream, const Product& product);

}  // namespace trireme::kernels::cuda
