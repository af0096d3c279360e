// Operands of linear layers in fp8 (Micikevicius et al. 2022): values and weights in e4m3,
// gradients in e5m2. Each tensor has one scale, which follows from its largest magnitudes in the
// last steps (delayed scaling), so that one pass rounds and finds the next maximum.
#ifndef TRIREME_SRC_KERNELS_CUDA_FP8_HPP_
#define TRIREME_SRC_KERNELS_CUDA_FP8_HPP_

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/products_plan.hpp"
#include "gpu_sizes.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::kernels::cuda {

// Operands of a linear layer's products: each has a scale of its own.
enum class Fp8Role { kValue, kWeight, kGradient };
using gpu::kFp8InverseStep;
using gpu::kFp8Places;
using gpu::kFp8Roles;
constexpr Fp8Role RoleOf(int tensor) { return static_cast<Fp8Role>(tensor % kFp8Roles); }
// Largest number of a role's type: e5m2 or e4m3.
constexpr float LargestOf(Fp8Role role) { return role == Fp8Role::kGradient ? 57344.0f : 448.0f; }
// Bound that keeps a scale times its inverse finite.
inline constexpr float kFp8LargestScale = 1e30f;
inline constexpr int kFp8History = 16;        // steps whose maxima count
inline constexpr std::int64_t kFp8Unit = 16;  // all dimensions of an fp8 product are multiples

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
  void SetTraining(bool training) { training_ = training; }

  // Rounds a bf16 matrix to the role's type, into the memory of `place`, 0 or 1 for the two
  // operands of a product; valid until that place is used again. Dense, [rows, columns], or
  // [columns, rows] with `transposed`; both must be multiples of kFp8Unit. The operand's form is
  // kPlain.
  Operand Quantise(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                   bool transposed, int place);

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
  std::byte* Place(int place, std::int64_t bytes) const;
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
  std::vector<device::Buffer> outgrown_;  // earlier rooms, which recorded graphs may still name
};

// Launchers (fp8.cu). x: bf16.
// largest = max(largest, |x|).
void Fp8Largest(const device::Stream& stream, const Matrix& x, unsigned* largest);
// The scale of one tensor from its `largest` of this step alone.
void Fp8FirstScale(const device::Stream& stream, const Fp8Scales& scales, int tensor);
// out = fp8(x * scale), and `largest` as above. out: dense, [rows, columns] or its transpose.
void Fp8Round(const device::Stream& stream, const Matrix& x, const Fp8Scales& scales,
              int tensor, bool transposed, unsigned char* out);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_FP8_HPP_
