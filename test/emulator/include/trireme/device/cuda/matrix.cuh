// Tensor cores and copies beside the thread, emulated; shadows the header of the same name.
#ifndef TRIREME_DEVICE_CUDA_MATRIX_CUH_
#define TRIREME_DEVICE_CUDA_MATRIX_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>

namespace emulator {

// Of one lane. The last lane of the warp that comes has the operation done for all.
struct MatrixRequest {
  enum class Kind { kMultiply, kLoad, kLoadTransposed } kind;
  const void* row = nullptr;    // kLoad
  unsigned* to = nullptr;       // kLoad: four registers
  const unsigned* a = nullptr;  // kMultiply: four registers
  unsigned b[2] = {};
  float* d = nullptr;  // kMultiply: four sums
};
void DoInWarp(MatrixRequest& request);

// Copies reach shared memory when their thread waits for them, and not before: until then the place
// holds NaN.
void BeginCopy(void* shared, const void* global, bool inside);
void CloseCopies();
void AwaitCopies(int pending);

}  // namespace emulator

namespace trireme::device::cuda {

inline unsigned PackBf16(float low, float high) {
  const auto bits = [](float value) {
    return unsigned{std::bit_cast<unsigned short>(__float2bfloat16_rn(value))};
  };
  return bits(low) | bits(high) << 16;
}

inline void MultiplyMatrices(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&d)[4]) {
  emulator::MatrixRequest request{
      .kind = emulator::MatrixRequest::Kind::kMultiply, .a = a, .b = {b0, b1}, .d = d};
  emulator::DoInWarp(request);
}
inline void LoadMatrices(const void* row, unsigned (&to)[4]) {
  emulator::MatrixRequest request{
      .kind = emulator::MatrixRequest::Kind::kLoad, .row = row, .to = to};
  emulator::DoInWarp(request);
}
inline void LoadMatricesTransposed(const void* row, unsigned (&to)[4]) {
  emulator::MatrixRequest request{
      .kind = emulator::MatrixRequest::Kind::kLoadTransposed, .row = row, .to = to};
  emulator::DoInWarp(request);
}

inline constexpr int kCopyBytes = 16;

__forceinline__ void CopyAsync(void* shared, const void* global, bool inside) {
  emulator::BeginCopy(shared, global, inside);
}
__forceinline__ void CommitCopies() { emulator::CloseCopies(); }
template <int kPending>
__forceinline__ void WaitForCopies() {
  emulator::AwaitCopies(kPending);
}

}  // namespace trireme::device::cuda

#endif  // TRIREME_DEVICE_CUDA_MATRIX_CUH_
