// column_sum: adds to sums and to dpositions. The shape and the number of multiprocessors decide
// how rows are cut into blocks; the sums of blocks are added up in order.
#include "backends.hpp"
#include "dropout.cuh"
#include "reduce_rows.cuh"
#include "token_order.cuh"
#include "trireme/device/gpu.hpp"

namespace trireme::kernels::cuda {

namespace {

// Sums over blocks of consecutive rows: of block g to row g of `to`, overwritten, or added to `to`
// where there is one block only.
template <typename T, int kElements>
struct RowBlocks {
  using Sum = SumOf<T>;
  static constexpr int kWidth = kElements;
  View<const T> x;  // [rows, columns]
  std::int64_t rows;
  unsigned blocks;
  View<Sum> to;  // [blocks, columns]
  bool add;

  __device__ __forceinline__ RowSequence Rows(unsigned group) const {
    const std::int64_t begin = rows * group / blocks;
    return {begin, 1, rows * (group + 1) / blocks - begin};
  }
  __device__ __forceinline__ void Term(std::int64_t row, std::int64_t column,
                                       Sum (&values)[kWidth]) const {
    Load<kWidth>(x.At(row, column), values);
  }
  __device__ __forceinline__ void Finish(unsigned group, std::int64_t column,
                                         Sum (&sums)[kWidth]) const {
    if (add) {
      Sum old[kWidth];
      Load<kWidth>(to.At(group, column), old);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += old[i];
    }
    Store<kWidth>(sums, to.At(group, column));
  }
};

// Sums over the rows of one position, in all sequences.
template <typename T, int kElements>
struct PositionRows {
  using Sum = SumOf<T>;
  static constexpr int kWidth = kElements;
  View<const T> dout;  // [rows, dim]
  std::int64_t rows, length;
  DropoutPlace place;    // for the positions of rows only
  View<Sum> dpositions;  // [> last position, dim]

  __device__ __forceinline__ RowSequence Rows(unsigned group) const {
    return {group, length, (rows - group + length - 1) / length};
  }
  __device__ __forceinline__ void Term(std::int64_t row, std::int64_t column,
                                       Sum (&values)[kWidth]) const {
    Load<kWidth>(dout.At(row, column), values);
  }
  __device__ __forceinline__ void Finish(unsigned group, std::int64_t column,
                                         Sum (&sums)[kWidth]) const {
    Sum* const to = dpositions.At(place.PositionOf(group), column);
    Sum old[kWidth];
    Load<kWidth>(to, old);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += old[i];
    Store<kWidth>(sums, to);
  }
};

// As many blocks of rows as keep the GPU busy, of at least kLeastRows rows.
std::int64_t BlocksOfRows(const device::GpuContext& gpu, std::int64_t rows, std::int64_t chunks,
                          std::int64_t row_bytes) {
  constexpr std::int64_t kLeastRows = 64, kBlocksAProcessor = 4;
  const std::int64_t along = ReduceThreadsAlong(chunks);
  const std::int64_t tiles = (chunks + along - 1) / along;
  const std::int64_t busy = (kBlocksAProcessor * gpu.multiprocessors + tiles - 1) / tiles;
  const std::int64_t room = gpu.scratch_bytes / row_bytes;
  return std::max<std::int64_t>(std::min({rows / kLeastRows, busy, room}), 1);
}

}  // namespace

void ColumnSum(const device::Stream& stream, const Matrix& x, const Matrix& sums,
               const Matrix&) {
  if (x.rows == 0 || x.columns == 0) return;
  Dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    using S = SumOf<T>;
    WithWidth<T>(AllowVectors<T>(x.columns, x, sums), [&](auto width) {
      const std::int64_t n = x.columns;
      const std::int64_t blocks =
          BlocksOfRows(*stream.gpu, x.rows, n / width(), n * static_cast<std::int64_t>(sizeof(S)));
      S* const partials = reinterpret_cast<S*>(stream.gpu->scratch);
      const bool direct = blocks == 1;
      const View<S> to{direct ? sums.As<S>() : partials, n};
      ReduceRows(stream, blocks, (x.rows + blocks - 1) / blocks, n,
                 RowBlocks<T, width()>{ViewOf<const T>(x), x.rows, static_cast<unsigned>(blocks),
                                       to, direct});
      if (direct) return;
      ReduceRows(stream, 1, blocks, n,
                 PartialSums<S>{partials, n, blocks, sums.As<S>(), nullptr, n});
    });
  });
}

void PositionBackward(const device::Stream& stream, const std::int32_t* begins,
                      const Dropout& dropout, const Matrix& dout,
                      const Matrix& dpositions) {
  if (dpositions.Empty() || dout.rows == 0) return;
  if (begins != nullptr) {
    return DocumentPositionBackward(stream, begins, dropout, dout, dpositions);
  }
  Dispatch(dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    // The first rows of the shard have all its positions, each once.
    const std::int64_t positions = std::min(dropout.length, dout.rows);
    const std::int64_t sequences = (dout.rows + dropout.length - 1) / dropout.length;
    WithWidth<T>(AllowVectors<T>(dout.columns, dout, dpositions), [&](auto width) {
      ReduceRows(stream, positions, sequences, dout.columns,
                 PositionRows<T, width()>{ViewOf<const T>(dout), dout.rows, dropout.length,
                                          DropoutPlace(dropout), ViewOf<SumOf<T>>(dpositions)});
    });
  });
}

}  // namespace trireme::kernels::cuda
