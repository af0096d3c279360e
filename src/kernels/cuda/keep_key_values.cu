// Copies of keys and values to a cache, over what lies at their positions. A slot holds rows of
// keys, then rows of values, filled up to whole vectors with zeros, [2 kv_heads, positions,
// CachedRow()], and after them room for parts of results (gpu::KeyValueElements).
#include "backends.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

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

void KeepKeyValues(const device::Stream& stream, const AttentionShape& shape,
                   const Matrix& key_values, const CachedRows& rows, const KeyValueCache& cache) {
  const std::int64_t d = shape.head_dim, row = gpu::CachedRow(d);
  Dispatch(key_values.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(d, key_values), [&](auto width) {
      Pass(stream, key_values.rows, 2 * shape.kv_heads * row,
           KeepOperation<T, width()>{
               ViewOf<const T>(key_values), static_cast<T*>(cache.data), rows.slots, rows.firsts,
               gpu::KeyValueElements(stream, shape, cache.positions), cache.positions,
               static_cast<int>(shape.length), static_cast<int>(d), static_cast<int>(row)});
    });
  });
}

void CopyKeyValues(const device::Stream& stream, const AttentionShape& shape, const SlotCopy& copy,
                   const KeyValueCache& cache) {
  const std::int64_t row = gpu::CachedRow(shape.head_dim);
  const std::int64_t bytes = gpu::KeyValueElements(stream, shape, cache.positions) *
                             static_cast<std::int64_t>(SizeOf(cache.dtype));
  const auto slot = [&](std::int32_t number) {
    return Matrix{static_cast<char*>(cache.data) + number * bytes, cache.dtype, 2 * shape.kv_heads,
                  copy.positions * row, cache.positions * row};
  };
  cuda::Copy(stream, slot(copy.from), slot(copy.to));
}

}  // namespace trireme::kernels::cuda
