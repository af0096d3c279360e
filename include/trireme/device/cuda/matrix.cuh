// Instructions of tensor cores, and asynchronous copies from global to shared memory (PTX ISA,
// "mma.sync", "ldmatrix", "cp.async"; compute capability 8.0). All lanes of a warp must call the
// matrix functions together; below g = lane / 4 and t = lane % 4.
#pragma once

#include <cuda_runtime.h>

namespace trireme::device::cuda {

// Two numbers rounded to bf16 in one register, `low` in the lower half.
__device__ __forceinline__ unsigned PackBf16(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// d [16, 8] += a [16, 16] b [16, 8], in bf16 with sums in fp32. Elements that a lane holds:
//   a[0..3]  row g, g + 8, g, g + 8; two columns each, from 2t, 2t, 2t + 8, 2t + 8 on
//   b0, b1   column g; two rows each, from 2t, 2t + 8 on
//   d[0..3]  row g, g, g + 8, g + 8; column 2t, 2t + 1, 2t, 2t + 1
__device__ __forceinline__ void MultiplyMatrices(const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                 float (&d)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane 8 i + j passes the address
// of row j of matrix i, aligned to 16 bytes. Each lane gets elements 2t and 2t + 1 of row g of each
// matrix.
__device__ __forceinline__ void LoadMatrices(const void* row, unsigned (&to)[4]) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
// The same, transposed: the lane gets element g of rows 2t and 2t + 1.
__device__ __forceinline__ void LoadMatricesTransposed(const void* row, unsigned (&to)[4]) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

inline constexpr int kCopyBytes = 16;

// Begins to copy kCopyBytes bytes from global to shared memory, both aligned to as many bytes. If
// not `inside`, writes zeros and reads nothing.
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, bool inside) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(__cvta_generic_to_global(global)), "r"(inside ? kCopyBytes : 0)
               : "memory");
}
// Closes the group of copies that this thread has begun since its last group.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for this thread's groups but the last kPending. Other threads see them after a barrier.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

}  // namespace trireme::device::cuda
