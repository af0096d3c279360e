// Copies of keys and values to a cache, over what lies at their positions. A slot holds rows of
// keys, then rows of values, filled up to whole vectors with zeros, [2 kv_heads, positions,
// CachedRow()], and after them room for parts of results (gpu::KeyValueElements).
#include "backends.hpp"
#include "gpu_sizes.hpp"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

namespace {

using tensor::Matrix;

// Column c of the pass is element c % row of part c / row: a head of the keys, then of the values.
template <typename T, int kElements>
struct KeepOperation {
  static constexpr int kWidth = kElements;
  View<const T> keys;  // [rows, 2 kv_heads head_dim]
  T* cache;
  const std::int32_t *slots, *firsts;  // [sequences]
  std::int64_t slot, positions;        // elements of a slot; its positions
  int length, head_dim, row;

  __device__ __forceinline__ void operator()(std::int64_t from, std::int64_t column) const {
    const auto part = static_cast<int>(column) / row, d = static_cast<int>(column) - part * row;
    const auto sequence = static_cast<int>(from / length);
    const std::int64_t position =
        firsts[sequence] + from - static_cast<std::int64_t>(sequence) * length;
    Pack<T, kWidth> pack{};
    if (d < head_dim) pack = LoadPack<kWidth>(keys.At(from, part * head_dim + d));
    StoreGlobal(pack, cache + slots[sequence] * slot + (part * positions + position) * row + d);
  }
};

}  // namespace

void KeepKeyValues(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                   const CachedRows& rows, const KeyValueCache& cache) {
  const std::int64_t queries = shape.heads * shape.head_dim, d = shape.head_dim;
  const Matrix keys = qkv.Columns(queries, 2 * shape.kv_heads * d);
  const std::int64_t row = gpu::CachedRow(d);
  Dispatch(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(d, keys), [&](auto width) {
      Pass(stream, keys.rows, 2 * shape.kv_heads * row,
           KeepOperation<T, width()>{
               ViewOf<const T>(keys), static_cast<T*>(cache.data), rows.slots, rows.firsts,
               gpu::KeyValueElements(stream, shape, cache.positions), cache.positions,
               static_cast<int>(shape.length), static_cast<int>(d), static_cast<int>(row)});
    });
  });
}

}  // namespace trireme::kernels::cuda
