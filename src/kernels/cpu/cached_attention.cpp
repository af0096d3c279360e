// CachedAttention overwrites out. For each head, a slot holds keys in tiles as AttentionForward
// packs them ([dim, kAttentionKeys], scaled), then values in padded rows, so that the same kernels
// work on them in the same order.
#include "attention_call.hpp"
#include "backends.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::kernels {

namespace {

std::int64_t Tiles(std::int64_t positions) { return CeilDivide(positions, kAttentionKeys); }

// One key/value head of one slot.
template <typename T>
struct Kept {
  Kept(const AttentionShape& shape, const KeyValueCache& cache, std::int64_t slot,
       std::int64_t head)
      : dim(shape.head_dim), width(AttentionPadded(shape.head_dim)) {
    const std::int64_t tiles = Tiles(cache.positions), tile = kAttentionKeys * (dim + width);
    keys = static_cast<T*>(cache.data) + (slot * shape.kv_heads + head) * tiles * tile;
    values = keys + tiles * kAttentionKeys * dim;
  }
  T* KeysOf(std::int64_t tile) const { return keys + tile * kAttentionKeys * dim; }
  T* ValueAt(std::int64_t position) const { return values + position * width; }

  std::int64_t dim, width;
  T* keys;    // [tiles, dim, kAttentionKeys]
  T* values;  // [tiles * kAttentionKeys, width]
};

// Copies `count` rows of one sequence into the cache, to the positions from `first` on.
template <typename T>
void Keep(const Kept<T>& kept, const AttentionShape& shape, const T* keys, const T* values,
          std::int64_t stride, std::int64_t first, std::int64_t count) {
  const AttentionKernelsOf<T>& kernels = AttentionKernelsFor<T>();
  const T scale = KeyScale<T>(shape);
  for (std::int64_t row = 0; row < count;) {
    const std::int64_t position = first + row, column = position % kAttentionKeys;
    const std::int64_t most = std::min(kAttentionKeys - column, count - row);
    T* const tile = kept.KeysOf(position / kAttentionKeys) + column;
    if (column % kAttentionPad == 0) {
      kernels.pack_transposed(keys + row * stride, stride, most, kept.dim, scale, tile,
                              kAttentionKeys);
    } else {
      for (std::int64_t i = 0; i < most; ++i) {
        const T* const key = keys + (row + i) * stride;
        for (std::int64_t k = 0; k < kept.dim; ++k) tile[k * kAttentionKeys + i] = scale * key[k];
      }
    }
    row += most;
  }
  kernels.pack(values, stride, count, kept.dim, kept.ValueAt(first), kept.width);
}

// Attention of the query heads of one key/value head, at one position.
template <typename T>
void Attend(const Kept<T>& kept, std::int64_t heads, const T* queries, std::int64_t position,
            T* out) {
  const AttentionKernelsOf<T>& kernels = AttentionKernelsFor<T>();
  const std::int64_t dim = kept.dim, keys = position + 1;
  InPieces(heads, std::min(kernels.rows, kAttentionMostRows),
           [&](std::int64_t begin, std::int64_t count) {
             alignas(64) T scores[kAttentionMostRows * kAttentionKeys];
             T keep[kAttentionMostRows], sum[kAttentionMostRows] = {}, top[kAttentionMostRows],
                                         lse[kAttentionMostRows];
             std::fill_n(top, kAttentionMostRows, std::numeric_limits<T>::lowest());
             const T* const q = queries + begin * dim;
             T* const to = out + begin * dim;
             for (std::int64_t first = 0; first < keys; first += kAttentionKeys) {
               const std::int64_t seen = std::min(kAttentionKeys, keys - first);
               kernels.multiply(count, AttentionPadded(seen), dim, q, dim, 1,
                                kept.KeysOf(first / kAttentionKeys), kAttentionKeys, nullptr,
                                scores, kAttentionKeys);
               kernels.softmax(count, {seen, 0, seen}, scores, kAttentionKeys, top, sum, keep);
               kernels.multiply(count, dim, seen, scores, kAttentionKeys, 1, kept.ValueAt(first),
                                kept.width, first == 0 ? nullptr : keep, to, dim);
             }
             kernels.finish(count, dim, top, sum, to, dim, lse, 1);
           });
}

}  // namespace

std::int64_t cpu::KeyValueElements(const device::Stream&, const AttentionShape& shape,
                                   std::int64_t positions) {
  return shape.kv_heads * Tiles(positions) * kAttentionKeys *
         (shape.head_dim + AttentionPadded(shape.head_dim));
}

void cpu::KeepKeyValues(const device::Stream& stream, const AttentionShape& shape,
                        const Matrix& key_values, const CachedRows& rows,
                        const KeyValueCache& cache) {
  DispatchDtype(key_values.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t task = 0; task < shape.sequences * shape.kv_heads; ++task) {
      const std::int64_t sequence = task / shape.kv_heads, head = task % shape.kv_heads;
      const T* const keys =
          key_values.As<T>() + sequence * shape.length * key_values.stride + head * shape.head_dim;
      Keep<T>({shape, cache, rows.slots[sequence], head}, shape, keys,
              keys + shape.kv_heads * shape.head_dim, key_values.stride, rows.firsts[sequence],
              shape.length);
    }
  });
}

void cpu::CopyKeyValues(const device::Stream&, const AttentionShape& shape, const SlotCopy& copy,
                        const KeyValueCache& cache) {
  DispatchDtype(cache.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      const Kept<T> from(shape, cache, copy.from, head), to(shape, cache, copy.to, head);
      std::copy_n(from.keys, Tiles(copy.positions) * kAttentionKeys * from.dim, to.keys);
      std::copy_n(from.values, copy.positions * from.width, to.values);
    }
  });
}

void cpu::CachedAttention(const device::Stream& stream, const AttentionShape& shape,
                          const Matrix& qkv, const CachedRows& rows, const KeyValueCache& cache,
                          const Matrix& out) {
  DispatchDtype(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t group = shape.heads / shape.kv_heads;
    // Dynamic, since sequences have different lengths.
#pragma omp parallel for num_threads(stream.threads) schedule(dynamic)
    for (std::int64_t task = 0; task < shape.sequences * shape.kv_heads; ++task) {
      const std::int64_t sequence = task / shape.kv_heads, head = task % shape.kv_heads;
      const Kept<T> kept(shape, cache, rows.slots[sequence], head);
      for (std::int64_t i = 0; i < shape.length; ++i) {
        const std::int64_t row = sequence * shape.length + i;
        Attend(kept, group, qkv.As<T>() + row * qkv.stride + head * group * shape.head_dim,
               rows.firsts[sequence] + i,
               out.As<T>() + row * out.stride + head * group * shape.head_dim);
      }
    }
  });
}

}  // namespace trireme::kernels
