// Kernels of attention's tiles for one instruction set. Files compiled for different instruction
// sets include this header: it and the headers that include it must not define inline functions
// that files could share.
#ifndef TRIREME_SRC_KERNELS_CPU_ATTENTION_KERNELS_HPP_
#define TRIREME_SRC_KERNELS_CPU_ATTENTION_KERNELS_HPP_

#include <cstdint>

namespace trireme::kernels {

// Packed rows are padded to a multiple of this many elements: the widest vector.
inline constexpr std::int64_t kAttentionPad = 16;

// Keys of a tile, counted from its first, that consecutive queries can see: query i sees
// clamp(first + i * step, 0, keys).
struct AttentionVisible {
  std::int64_t first, step, keys;
};

// Logarithms and exponentials are to base 2: packed keys hold log2(e) / sqrt(head_dim) besides, so
// that scores are exponents of 2. Strides count elements. No function allocates or reads beyond
// what is padded.
template <typename T>
struct AttentionKernelsOf {
  std::int64_t rows;  // most rows of a call of multiply: what registers hold

  // to[k * to_stride + i] = scale * from[i * stride + k] for i < rows, k < columns; zeros for i
  // from rows to the next multiple of kAttentionPad.
  void (*pack_transposed)(const T* from, std::int64_t stride, std::int64_t rows,
                          std::int64_t columns, T scale, T* to, std::int64_t to_stride);
  // to[i * to_stride + k] = from[i * stride + k], zeros for k from columns to the next multiple.
  void (*pack)(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* to,
               std::int64_t to_stride);

  // c = keep c + a b, keep with a factor per row; c = a b without keep. Element (i, k) of a lies
  // at i * a_row + k * a_inner; b has `inner` padded rows. Every element is one chain of fused
  // multiply-adds in the order of k.
  void (*multiply)(std::int64_t rows, std::int64_t columns, std::int64_t inner, const T* a,
                   std::int64_t a_row, std::int64_t a_inner, const T* b, std::int64_t b_stride,
                   const T* keep, T* c, std::int64_t c_stride);

  // Scores s of rows <= `rows` queries become 2^(s - m), zero if they are not visible, with m
  // the maximum of the scores and `top`, which becomes m. keep = 2^(top - m); sum = keep sum + the
  // new terms. Columns of s: visible.keys, padded; those of top, sum, keep: rows.
  void (*softmax)(std::int64_t rows, const AttentionVisible& visible, T* s, std::int64_t stride,
                  T* top, T* sum, T* keep);
  // out /= sum; lse (natural) = ln 2 top + ln sum. No keys, sum = 0: lse = -infinity.
  void (*finish)(std::int64_t rows, std::int64_t columns, const T* top, const T* sum, T* out,
                 std::int64_t stride, T* lse, std::int64_t lse_stride);

  // Row by row, dot = x y^T. A vector after the last may be written.
  void (*dot)(std::int64_t rows, std::int64_t columns, const T* x, std::int64_t x_stride,
              const T* y, std::int64_t y_stride, T* dot);
  // Scores p become weights 2^(p - lse), and the weights' gradient d that of the scores, scale p (d
  // - inner); both zero if not visible. Columns: visible.keys, padded; lse, inner: rows.
  void (*gradient)(std::int64_t rows, const AttentionVisible& visible, T scale, const T* lse,
                   const T* inner, T* p, T* d, std::int64_t stride);
};

struct AttentionKernels {
  const char* name;
  AttentionKernelsOf<float> fp32;
  AttentionKernelsOf<double> fp64;
};

extern const AttentionKernels kAttentionPortable;
extern const AttentionKernels kAttentionAvx2;    // x86-64-v3 only
extern const AttentionKernels kAttentionAvx512;  // x86-64-v4 only

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_ATTENTION_KERNELS_HPP_
