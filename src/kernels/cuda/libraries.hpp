// State of a GPU's math libraries (kernels/libraries.hpp): algorithms of products, fp8 scales and
// memory, cuDNN's plans.
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

// Owners of cuBLASLt's handles, and its status codes as exceptions.

// RunError "what: cuBLASLt says the requested functionality is not supported (15)".
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

// One matrix product of a GPU: its operands, its key (all properties that an algorithm may depend
// on), and its description for cuBLASLt.

cudaDataType_t TypeOf(Dtype dtype);

// Operation on the sums before they are stored.
enum class Epilogue {
  kNone,
  kBias,          // + bias
  kRelu,          // relu(sum)
  kReluBias,      // relu(sum + bias)
  kGelu,          // aux = sum, gelu(aux)
  kGeluBias,      // aux = sum + bias, gelu(aux)
  kGeluGradient,  // sum gelu'(aux)
  kSumsOfA,       // bias = sum of form_a(a) over the inner index, overwritten: [rows]
  kSumsOfB,       // bias = sum of form_b(b), likewise: [columns]
};
inline bool SumsOperand(Epilogue epilogue) {
  return epilogue == Epilogue::kSumsOfA || epilogue == Epilogue::kSumsOfB;
}

// A matrix in memory: row-major, `stride` elements from row to row.
struct Operand {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  Form form = Form::kPlain;
  std::int64_t stride = 0;
  const float* scale = nullptr;  // of fp8, on the GPU: factor of stored values
};

// c = form_a(a) form_b(b), or c += ; c: [rows, columns], with `inner` products per element; no
// dimension is 0.
struct Product {
  Operand a, b;
  void* c = nullptr;
  cudaDataType_t c_type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, inner = 0, c_stride = 0;
  bool accumulate = false;
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // [columns], of c's type; sums of an operand: written
  void* aux = nullptr;         // [rows, columns], of c's type
  std::int64_t aux_stride = 0;
  bool fast_sums = false;  // of fp8: sums stay in the tensor cores, with some 14 bits
};

// The product of two matrices, not yet with an epilogue.
Product MakeProduct(Form form_a, const Matrix& a, Form form_b, const Matrix& b, const Matrix& c,
                    bool accumulate);

// All properties that an algorithm may depend on. Alignments are in bytes, those of 256 and more
// alike.
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
  // "bf16 x bf16 -> bf16, nt, 16384 x 2304 x 768, strides 768 768 2304, aligned 256 256 256, bias":
  // different for different keys.
  std::string Text() const;
};

// A product as cuBLASLt describes it: matrices are column-major there, so c^T = form(b)^T form(a)^T
// is computed, with b as its first operand.
class Plan {
 public:
  explicit Plan(const Product& product);

  const ProductKey& Key() const { return key_; }
  // Up to `most` algorithms that the library proposes, the best first, which sum in a fixed order;
  // returns how many. `workspace`: bytes they may use.
  int Propose(cublasLtHandle_t handle, std::int64_t workspace, int most,
              cublasLtMatmulHeuristicResult_t* proposals) const;
  // Whether the algorithm can compute this product with so much workspace.
  bool Admits(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
              std::int64_t workspace) const;
  // Queues it. trial: a product that accumulates adds the smallest normal number times its sums,
  // which leaves c as it is (but for zeros, which then are as small), and takes as long.
  cublasStatus_t Run(cublasLtHandle_t handle, const device::GpuContext& gpu, const Product& product,
                     const cublasLtMatmulAlgo_t& algorithm, bool trial) const;

 private:
  void SetPointers(const Product& product) const;

  ProductKey key_;
  Operation operation_;
  Layout first_, second_, result_;
};

// cuBLASLt's algorithm of each product: found by timing when a product is first met, kept as text,
// taken over from other ranks and earlier runs. The library computes the same bits each time with
// the same algorithm, version and kind of card, and other bits with another algorithm.

class Algorithms {
 public:
  explicit Algorithms(const device::GpuContext& gpu);

  // Queues the product. False, with nothing queued, if the library has no algorithm for it (for
  // some epilogues, types and alignments), or if `apart` was clearly faster when the algorithm was
  // chosen: it queues the same result by a product without the epilogue and a pass of its own.
  // Sums of an operand are left to `apart` unless they have been timed, and have come out with the
  // same bits several times.
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
  using Algorithm = std::optional<cublasLtMatmulAlgo_t>;  // none: apart is faster
  struct Choice {
    Plan plan;
    Algorithm algorithm;
    bool known = true;  // false: the library has no algorithm
  };
  using Kept = std::map<std::string, Algorithm>;  // by ProductKey::Text

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
  Kept kept_;  // adopted, of products that may not have been met yet
  bool sealed_ = false;
  bool warned_ = false;
};

// Operands of linear layers in fp8 (Micikevicius et al. 2022): values and weights in e4m3,
// gradients in e5m2. Each tensor has one scale, which follows from its largest magnitudes in the
// last steps (delayed scaling), so that one pass rounds and finds the next maximum.

// Operands of a linear layer's products: each has a scale of its own.
enum class Fp8Role { kValue, kWeight, kGradient };
using gpu::kFp8InverseStep;
using gpu::kFp8Places;
using gpu::kFp8Roles;
using gpu::kFp8Unit;
constexpr Fp8Role RoleOf(int tensor) { return static_cast<Fp8Role>(tensor % kFp8Roles); }
// Largest number of a role's type: e5m2 or e4m3.
constexpr float LargestOf(Fp8Role role) { return role == Fp8Role::kGradient ? 57344.0f : 448.0f; }
// Bound that keeps a scale times its inverse finite.
inline constexpr float kFp8LargestScale = 1e30f;
inline constexpr int kFp8History = 16;  // steps whose maxima count

// Scales of all tensors, on the GPU: [tensors] each, tensor = site * kFp8Roles + role, then
// kFp8Places * kFp8Roles more for operands outside of training.
struct Fp8Scales {
  float* scale = nullptr;       // stored = value * scale
  float* inverse = nullptr;     // value = stored * inverse; kFp8InverseStep numbers apart
  unsigned* largest = nullptr;  // of this step: the bits of a float >= 0, whose order is theirs
  int tensors = 0;
};

class Fp8 {
 public:
  // RunError if the card has no fp8 and there are sites.
  Fp8(const device::Stream& stream, int sites);

  // As in kernels::Libraries.
  void Reserve(std::int64_t bytes);
  void KeepWeights(std::span<const Linear> layers);
  void SetTraining(bool training);

  // Rounds a bf16 matrix to the role's type, into the memory of `place`, 0 or 1 for the two
  // operands of a product; valid until that place is used again. Dense, [rows, columns], or
  // [columns, rows] with `transposed`; both must be multiples of kFp8Unit. The operand's form is
  // kPlain.
  Operand Quantise(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                   bool transposed, int place);
  // The matrix as it is, likewise, in the memory of place 0; its transpose goes to `transpose`, if
  // that has memory.
  Operand QuantiseBoth(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                       const Fp8Transpose& transpose);
  // Its transpose, rounded now unless `transpose` has it.
  Operand Transposed(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                     const Fp8Transpose& transpose);
  // A layer's weight, or its transpose, likewise: the one that is kept, which is rounded first
  // unless it is that of this step, or one in the memory of place 1.
  Operand Weight(const device::Stream& stream, const Linear& linear, bool transposed);

  // Scale = largest number of the type / largest magnitude of the last kFp8History steps, ignoring
  // zeros and values that are not finite.
  void QueueLargest(const device::Stream& stream);
  std::span<float> Largest();
  void UpdateScales(const device::Stream& stream);
  bool Scaled() const { return scaled_ || scales_.tensors == 0; }
  // [tensors, 1 + kFp8History]: the scale (0: never met), and magnitudes, the last step's first.
  std::vector<float> State() const { return scaled_ ? state_ : std::vector<float>(); }
  bool SetState(const device::Stream& stream, std::span<const float> state);

 private:
  struct KeptWeight {
    std::byte* memory = nullptr;  // as it is, then transposed
    std::int64_t bytes = 0;
    Matrix weight = {};  // what was rounded in this step; Empty(): nothing
  };

  std::byte* Place(int place, std::int64_t bytes) const;
  // Number of an operand, whose scale is known from then on.
  int FindScale(const device::Stream& stream, int site, Fp8Role role, const Matrix& x, int place);
  // A matrix with `stride` columns, rounded at the scale of this number.
  Operand OperandOf(int tensor, const std::byte* data, std::int64_t stride) const;
  void ForgetWeights();
  void FindDelayedScale(const device::Stream& stream, const Matrix& x, int tensor);
  void FindCurrentScale(const device::Stream& stream, const Matrix& x, int tensor) const;
  void Upload(const device::Stream& stream);

  device::Buffer memory_;  // of scales_
  Fp8Scales scales_;
  device::PinnedBuffer largest_;   // [tensors]
  device::PinnedBuffer uploaded_;  // scales and their inverses, being copied
  std::vector<float> state_;
  bool scaled_ = false;
  std::vector<char> met_;  // [tensors]: whether it has a scale
  bool training_ = true;
  device::Buffer rooms_[kFp8Places];
  std::int64_t reserved_ = 0;             // bytes of a room
  std::vector<KeptWeight> weights_;       // [sites]
  device::Buffer kept_;                   // memory of weights_
  std::vector<device::Buffer> outgrown_;  // earlier rooms, which recorded graphs may still name
};

// Launchers (fp8.cu). x: bf16.
// largest = max(largest, |x|).
void Fp8Largest(const device::Stream& stream, const Matrix& x, unsigned* largest);
// The scale of one tensor from its `largest` of this step alone.
void Fp8FirstScale(const device::Stream& stream, const Fp8Scales& scales, int tensor);
// The forms that a pass writes, dense: [rows, columns], and its transpose. One may be null.
struct Fp8Forms {
  std::byte* plain = nullptr;
  std::byte* transposed = nullptr;
};
// out = fp8(x * scale), and `largest` as above.
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
  // State of cuDNN, made by its first caller (cudnn_plan.hpp); null before, and without cuDNN.
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
