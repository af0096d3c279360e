// Our own matrix product, in fp32, fp64 and bf16. fp32 and fp64 have the canonical form: each
// element of c is one chain of operations, independent of the rest of the matrix, the threads and
// the instruction set (doc/reference/numerics.md). bf16: operands are rounded while packed, and
// multiplied by bf16 instructions or, in the canonical form, as fp32 numbers.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/kernels/linear.hpp"

namespace trireme::kernels {

struct MatrixProduct;

// Kernels of our own matrix product for one instruction set: packing, and the product of one block
// of the inner dimension. Files compiled for different instruction sets include this header: it,
// and headers that include it, must not define inline functions that those files could share.

// Number of inner indices in one chain of fused multiply-adds; the chains are added to c in order.
inline constexpr std::int64_t kInnerBlock = 256;
// The same for bf16, which multiplies two inner indices at a time.
inline constexpr std::int64_t kBf16Block = 512;

// A word of a packed bf16 operand: two consecutive inner indices of a lane. Elsewhere: one element.
struct Bf16Pair {
  std::uint16_t first, second;
};
// A bf16 number as an fp32 one: the word of operands that are rounded for fp32 products.
struct RoundedFloat {
  float value;
};
template <typename Word>
inline constexpr int kInnerOfWord = 1;
template <>
inline constexpr int kInnerOfWord<Bf16Pair> = 2;

// An operand in memory: element (lane, k) is at lane * lane_stride + k * inner_stride; one of the
// strides is 1. A lane is a row of the left operand or a column of the right one.
template <typename T>
struct ProductSource {
  const T* data;
  std::int64_t lane_stride, inner_stride;
};

// A left operand in words: word k of row i is at i / rows * panel_stride + i % rows * row_stride +
// k * word_stride, where `rows` is the number of rows of a tile.
template <typename Word>
struct LeftPanels {
  const Word* data;
  std::int64_t panel_stride, row_stride, word_stride;
};

// Memory that is read next, prefetched while a block is multiplied. Any address is allowed.
template <typename T>
struct Ahead {
  const T* data;
  std::int64_t rows, columns, stride;
};

template <typename T, typename WordType = T>
struct ProductKernels {
  using Scalar = T;
  using Word = WordType;
  std::int64_t rows, columns;  // of a tile: lanes per panel of the left and of the right operand
  std::int64_t block;          // most inner indices per call; a multiple of kInnerOfWord

  // Pack lanes [0, lanes) x inner indices [0, inner) into panels: panel p holds, for each word of
  // inner indices, `rows` (or `columns`) lanes from p * rows on, zeros beyond the last lane and
  // index. They may write up to one vector beyond the end.
  void (*pack_left)(const ProductSource<T>& from, std::int64_t lanes, std::int64_t inner, Word* to);
  void (*pack_right)(const ProductSource<T>& from, std::int64_t lanes, std::int64_t inner,
                     Word* to);

  // c = (add ? c : +0) + left right for one block of `words` words. c: [rows, columns].
  void (*multiply)(const LeftPanels<Word>& left, const Word* right, std::int64_t words,
                   std::int64_t rows, std::int64_t columns, T* c, std::int64_t stride, bool add,
                   const Ahead<T>& ahead);
  // The same for a left operand [rows, inner] whose rows are contiguous in k. next: offset in
  // elements from a panel's rows to the memory that is read after them.
  void (*multiply_rows)(const T* left, std::int64_t left_stride, const Word* right,
                        std::int64_t inner, std::int64_t rows, std::int64_t columns, T* c,
                        std::int64_t stride, bool add, std::int64_t next);
};

// Kernels of one instruction set. All sets give the same bits.
struct ProductSet {
  const char* name;
  ProductKernels<float> fp32;
  ProductKernels<double> fp64;
  ProductKernels<float, RoundedFloat> rounded;  // to bf16, while packed
};

struct Bf16Kernels {
  ProductKernels<float, Bf16Pair> product;
  // Rounds to nearest, ties to even.
  void (*round)(const float* from, std::int64_t count, std::uint16_t* to);
};

extern const ProductSet kProductPortable;
extern const ProductSet kProductAvx2;    // x86-64 with AVX2 and FMA only
extern const ProductSet kProductAvx512;  // x86-64-v4 only
extern const Bf16Kernels kBf16Avx512;    // x86-64-v4 with AVX512-BF16 only

// Kernel sets that this CPU can run, fastest first; all give the same bits.
std::span<const ProductSet> UsableProductSets();

// Whether one of the sets is made for this CPU, and so about as fast as a library.
bool HasFastKernels();

// Kernels in bf16 for this CPU; null if it has no bf16 instructions.
const Bf16Kernels* UsableBf16Kernels();

// The product in canonical form, with these kernels; all dimensions must be > 0. Uses the stream's
// threads; inside a parallel region, the calling thread. With `then` by blocks of rows: the thread
// that computes a block calls then(rows) when it is complete. Returns false, and does nothing, if
// `then` is given and the right operand is too large to be packed whole.
bool ProductMultiply(const ProductSet& kernels, const device::Stream& stream,
                     const MatrixProduct& product,
                     const FunctionRef<void(const Part& rows)>* then = nullptr);

// The same for fp32 matrices with operands rounded to bf16: the same bits as the product of rounded
// copies.
bool RoundedMultiply(const ProductSet& kernels, const device::Stream& stream,
                     const MatrixProduct& product,
                     const FunctionRef<void(const Part& rows)>* then = nullptr);

// The same by bf16 instructions, with sums in fp32: chains of 512 inner indices, added to c in
// order.
bool Bf16Multiply(const Bf16Kernels& kernels, const device::Stream& stream,
                  const MatrixProduct& product,
                  const FunctionRef<void(const Part& rows)>* then = nullptr);

}  // namespace trireme::kernels
