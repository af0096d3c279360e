// What the two passes of attention share: pairs of queries and keys, places of operands, and a
// thread's scratch. For whole sequences the block of keys has the queries' own positions.
#pragma once

#include <omp.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "backends.hpp"
#include "rows.hpp"

namespace trireme::kernels {

// Kernels of attention's tiles for one instruction set. Files compiled for different instruction
// sets include this header, so neither it nor a header that includes it may define inline functions
// that those files could share.

// Packed rows are padded to a multiple of this many elements, the widest vector.
inline constexpr std::int64_t kAttentionPad = 16;

// How many keys of a tile, counted from its first, consecutive queries see: query i sees
// clamp(first + i * step, 0, keys).
struct AttentionVisible {
  std::int64_t first, step, keys;
};

// Logarithms and exponentials have base 2: packed keys include the factor log2(e) / Divisor(),
// so that scores are exponents of 2. Strides are in elements. No function allocates memory or reads
// beyond the padding.
template <typename T>
struct AttentionKernelsOf {
  std::int64_t rows;  // most rows per call of multiply: as many as registers hold

  // to[k * to_stride + i] = scale * from[i * stride + k] for i < rows, k < columns. Zeros for i
  // from `rows` to the next multiple of kAttentionPad.
  void (*pack_transposed)(const T* from, std::int64_t stride, std::int64_t rows,
                          std::int64_t columns, T scale, T* to, std::int64_t to_stride);
  // to[i * to_stride + k] = from[i * stride + k]; zeros for k from `columns` to such a multiple.
  void (*pack)(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* to,
               std::int64_t to_stride);

  // c = keep c + a b with one factor `keep` per row, or c = a b if keep is null. Element (i, k) of
  // a is at i * a_row + k * a_inner; b has `inner` padded rows. Each element is one chain of fused
  // multiply-adds in the order of k.
  void (*multiply)(std::int64_t rows, std::int64_t columns, std::int64_t inner, const T* a,
                   std::int64_t a_row, std::int64_t a_inner, const T* b, std::int64_t b_stride,
                   const T* keep, T* c, std::int64_t c_stride);

  // Turns the scores s of up to `rows` queries into 2^(s - m), or 0 where not visible. m is the
  // maximum of the scores and of `top`; top becomes m, keep = 2^(old top - m), sum = keep sum + new
  // terms. s has visible.keys columns, padded; top, sum and keep have an element per row.
  void (*softmax)(std::int64_t rows, const AttentionVisible& visible, T* s, std::int64_t stride,
                  T* top, T* sum, T* keep);
  // out /= sum; lse = ln 2 top + ln sum (natural logarithm), or -infinity without keys (sum = 0).
  void (*finish)(std::int64_t rows, std::int64_t columns, const T* top, const T* sum, T* out,
                 std::int64_t stride, T* lse, std::int64_t lse_stride);

  // dot[i] = (row i of x) . (row i of y). May write up to one vector beyond the last row.
  void (*dot)(std::int64_t rows, std::int64_t columns, const T* x, std::int64_t x_stride,
              const T* y, std::int64_t y_stride, T* dot);
  // Turns scores p into weights 2^(p - lse), and their gradient dP (in ds) into scale dS = scale p
  // (dP - delta); both 0 where not visible. p and ds have visible.keys columns, padded; lse and
  // delta have an element per row.
  void (*gradient)(std::int64_t rows, const AttentionVisible& visible, T scale, const T* lse,
                   const T* delta, T* p, T* ds, std::int64_t stride);
};

struct AttentionKernels {
  const char* name;
  AttentionKernelsOf<float> fp32;
  AttentionKernelsOf<double> fp64;
};

extern const AttentionKernels kAttentionPortable;
extern const AttentionKernels kAttentionAvx2;    // x86-64-v3 only
extern const AttentionKernels kAttentionAvx512;  // x86-64-v4 only

// Tile sizes, chosen by measurement. A tile's packed keys and values fit the first-level cache
// beside some rows of scores; the queries of a span share one packing and fit the second level.
inline constexpr std::int64_t kAttentionKeys = 128;     // keys of a tile
inline constexpr std::int64_t kAttentionQueries = 128;  // queries of a tile, backward
inline constexpr std::int64_t kAttentionSpan = 256;     // queries of a span
inline constexpr std::int64_t kAttentionMostRows = 16;  // upper limit of AttentionKernelsOf::rows
// So in a whole sequence, the first tile of queries that sees any key of a tile sees all its keys.
static_assert(kAttentionQueries % kAttentionKeys == 0);

inline std::int64_t AttentionPadded(std::int64_t count) {
  return CeilDivide(count, kAttentionPad) * kAttentionPad;
}

// `count` consecutive positions from `position` on, held in rows from `row` on of each sequence.
struct AttentionTile {
  std::int64_t row = 0, position = 0, count = 0;

  AttentionTile Piece(std::int64_t begin, std::int64_t most) const {
    return {row + begin, position + begin, std::min(most, count - begin)};
  }
  std::int64_t Last() const { return position + count - 1; }
};

// Calls body(tile) for the first `count` positions, in tiles of at most `size`; no tile spans the
// early and the late block.
template <typename Body>
void ForEachTile(const Positions& positions, std::int64_t count, std::int64_t size, Body&& body) {
  const std::int64_t early = std::min(positions.early.Size(), count);
  for (const Part& rows : {Part{0, early}, Part{early, count}}) {
    for (std::int64_t row = rows.begin; row < rows.end; row += size) {
      body(AttentionTile{row, positions.At(row), std::min(size, rows.end - row)});
    }
  }
}

// Sizes of the arrays that a thread packs, in elements.
struct AttentionSizes {
  AttentionSizes(const AttentionShape& shape, std::int64_t most_keys)
      : dim(shape.head_dim),
        width(AttentionPadded(shape.head_dim)),
        keys(AttentionPadded(std::min(kAttentionKeys, most_keys))),
        queries(AttentionPadded(std::min(kAttentionQueries, shape.length))),
        span(AttentionPadded(std::min(kAttentionSpan, shape.length))) {}
  std::int64_t Forward() const {
    return keys * (dim + width) + kAttentionMostRows * (keys + 1) + 2 * State() + Lanes();
  }
  std::int64_t Backward() const {
    return keys * (2 * dim + width) + 2 * (span * width + State()) + 2 * queries * keys + Lanes();
  }
  std::int64_t State() const { return span + kAttentionPad; }  // an element per row, and one vector
  std::int64_t Lanes() const { return keys + kAttentionPad; }  // elements reserved for 16-bit lanes
  std::int64_t AThread() const { return std::max(Forward(), Backward()); }

  std::int64_t dim, width;  // of a head: unpadded, padded
  std::int64_t keys, queries, span;
};

// Calls body(begin, count) for nearly equal pieces of [0, count), each of at most `most`.
template <typename Body>
void InPieces(std::int64_t count, std::int64_t most, Body&& body) {
  const std::int64_t size = CeilDivide(count, CeilDivide(count, most));
  for (std::int64_t i = 0; i < count; i += size) body(i, std::min(size, count - i));
}

// Hands out a thread's scratch.
template <typename T>
class AttentionScratchOf {
 public:
  AttentionScratchOf(const Matrix& scratch, const AttentionSizes& sizes)
      : next_(scratch.As<T>() + omp_get_thread_num() * sizes.AThread()) {}
  T* Take(std::int64_t elements) {
    T* const taken = next_;
    next_ += elements;
    return taken;
  }

 private:
  T* next_;
};

// One pass, and which keys its queries see.
struct AttentionCall : AttentionPass {
  AttentionSizes Sizes() const {
    return {shape, std::max(block.positions.early.Size(), block.positions.late.Size())};
  }
  // Whether operands are packed: not if each is a single tile whose rows need no padding.
  bool Packs() const {
    return shape.head_dim % kAttentionPad != 0 || shape.length > kAttentionKeys ||
           block.positions.Count() > kAttentionKeys;
  }

  // Number of the tile's keys, counted from its first, that are not padding.
  std::int64_t Present(std::int64_t sequence, const AttentionTile& keys) const {
    if (shape.key_lengths == nullptr) return keys.count;
    return std::clamp<std::int64_t>(shape.key_lengths[sequence] - keys.position, 0, keys.count);
  }
  // How many of the tile's first keys the query at `position` sees, apart from documents.
  std::int64_t Visible(std::int64_t sequence, std::int64_t position,
                       const AttentionTile& keys) const {
    const std::int64_t present = Present(sequence, keys);
    if (!shape.causal) return present;
    return std::clamp<std::int64_t>(position + 1 - keys.position, 0, present);
  }
  // The same for consecutive queries from `position` on, each limited to `seen` keys.
  AttentionVisible VisibleFrom(std::int64_t position, const AttentionTile& keys,
                               std::int64_t seen) const {
    if (!shape.causal) return {seen, 0, seen};
    return {position + 1 - keys.position, 1, seen};
  }
  // Number of the tile's keys, counted from its first, that come before the document of the query
  // in `row`. It never decreases along the rows: later queries do not see these keys either.
  std::int64_t Hidden(std::int64_t sequence, std::int64_t row, const AttentionTile& keys) const {
    if (shape.begins == nullptr) return 0;
    const std::int64_t begin = shape.begins[sequence * shape.length + row];
    return std::clamp<std::int64_t>(begin - keys.position, 0, keys.count);
  }
  // Whether all keys of the tile come before the documents of these queries.
  bool Unseen(std::int64_t sequence, const AttentionTile& queries,
              const AttentionTile& keys) const {
    return Hidden(sequence, queries.row, keys) == keys.count;
  }
  // Hidden, rounded down to whole pads: keys that products with this and later queries may skip.
  std::int64_t Skipped(std::int64_t sequence, std::int64_t row, const AttentionTile& keys) const {
    return Hidden(sequence, row, keys) / kAttentionPad * kAttentionPad;
  }
  // Sets the scores of these queries (rows `stride` elements apart) to -infinity where a key comes
  // before the query's document.
  template <typename T>
  void HideOthers(std::int64_t sequence, const AttentionTile& queries, const AttentionTile& keys,
                  T* scores, std::int64_t stride) const {
    for (std::int64_t i = 0; shape.begins != nullptr && i < queries.count; ++i) {
      std::fill_n(scores + i * stride, Hidden(sequence, queries.row + i, keys),
                  -std::numeric_limits<T>::infinity());
    }
  }
};

// One query head of one sequence.
struct AttentionHead {
  std::int64_t sequence = 0, head = 0;

  // The head's columns from the tile's first row on: Queries in a matrix of all queries (qkv, dqkv,
  // out, dout), Lse in lse.
  template <typename T>
  T* Queries(const AttentionCall& call, const Matrix& m, const AttentionTile& tile) const {
    return m.As<T>() + (sequence * call.shape.length + tile.row) * m.stride +
           head * call.shape.head_dim;
  }
  template <typename T>
  T* Lse(const AttentionCall& call, const AttentionTile& tile) const {
    return call.lse.As<T>() + (sequence * call.shape.length + tile.row) * call.lse.stride + head;
  }
  // The same for its key/value head in block.data or dblock: keys (which = 0) or values (1).
  template <typename T>
  T* KeysOrValues(const AttentionCall& call, const Matrix& m, int which,
                  const AttentionTile& tile) const {
    const AttentionShape& s = call.shape;
    const std::int64_t kv_head = head / (s.heads / s.kv_heads) + which * s.kv_heads;
    return m.As<T>() + (sequence * call.block.positions.Count() + tile.row) * m.stride +
           kv_head * s.head_dim;
  }
};

// Dropout of a head's weights, for one row of a tile at a time.
class AttentionMask {
 public:
  AttentionMask(const AttentionCall& call, const AttentionHead& at, void* lanes)
      : key_(MakeKey(call.dropout.seed, call.dropout.purpose, call.dropout.layer,
                     static_cast<std::uint32_t>(call.shape.first_head + at.head))),
        ordinal_(call.dropout.Active() ? call.dropout.ordinals[at.sequence] : 0),
        threshold_(call.dropout.Threshold()),
        scale_(call.dropout.Scale()),
        lanes_(static_cast<std::uint16_t*>(lanes)) {}
  bool Active() const { return threshold_ > 0; }
  // Draw: draws the mask for the query at `position` and `count` keys from `key` on. Apply uses it.
  void Draw(std::int64_t position, std::int64_t key, std::int64_t count) {
    skipped_ = key % kLanes;  // the counter's first key may come before `key`
    rows::PhiloxLanes(key_, static_cast<std::uint32_t>(key / kLanes),
                      static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(ordinal_),
                      static_cast<std::uint32_t>(ordinal_ >> 32), skipped_ + count, lanes_);
  }
  template <typename T>
  void Apply(T* weights, std::int64_t count) const {
    rows::Mask(weights, lanes_ + skipped_, threshold_, static_cast<T>(scale_), weights, count);
  }

 private:
  static constexpr std::int64_t kLanes = 8;  // keys of a Philox counter
  PhiloxKey key_;
  std::uint64_t ordinal_;
  std::uint32_t threshold_;
  double scale_;
  std::uint16_t* lanes_;
  std::int64_t skipped_ = 0;
};

// Kernels that this CPU can run, fastest first.
std::span<const AttentionKernels> UsableAttentionKernels();

template <typename T>
const AttentionKernelsOf<T>& AttentionKernelsFor() {
  if constexpr (sizeof(T) == 8) {
    return UsableAttentionKernels()[0].fp64;
  } else {
    return UsableAttentionKernels()[0].fp32;
  }
}

// Rows of a head, in place or packed.
template <typename T>
struct AttentionRows {
  const T* data;
  std::int64_t stride;

  const T* At(std::int64_t row) const { return data + row * stride; }
};

template <typename T>
AttentionRows<T> PackedRows(const AttentionCall& call, const AttentionRows<T>& from,
                            std::int64_t count, T* to) {
  if (!call.Packs()) return from;
  const std::int64_t width = AttentionPadded(call.shape.head_dim);
  AttentionKernelsFor<T>().pack(from.data, from.stride, count, call.shape.head_dim, to, width);
  return {to, width};
}

inline constexpr double kLog2E = 1.44269504088896340736;

inline double AttentionScale(const AttentionShape& shape) { return 1 / shape.Divisor(); }

// Factor of packed keys that makes scores exponents of 2.
template <typename T>
T KeyScale(const AttentionShape& shape) {
  return static_cast<T>(kLog2E * AttentionScale(shape));
}

template <typename T>
void Fill(const Matrix& m, T value) {
  for (std::int64_t row = 0; row < m.rows; ++row) {
    std::fill_n(m.As<T>() + row * m.stride, m.columns, value);
  }
}

}  // namespace trireme::kernels
