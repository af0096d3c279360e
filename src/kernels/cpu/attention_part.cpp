// attention_part: tiles of queries against tiles of keys. Forward merges into out and lse; backward
// adds to dqkv's query columns and overwrites dblock.
#include "trireme/kernels/attention_part.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "rescue.hpp"
#include "row_mask.hpp"
#include "rows.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

namespace {

using tensor::Matrix;

// A panel of 64 x 1024 fp32 scores is 256 KiB, half an L2.
constexpr std::int64_t kQueries = 64, kKeys = 1024;

// Consecutive positions: rows from `row` on of each sequence that is held.
struct Tile {
  std::int64_t row = 0, position = 0, count = 0;
};

// The first `count` of `positions` in tiles of `size` at most; none spans both blocks.
std::vector<Tile> TilesOf(const Positions& positions, std::int64_t count, std::int64_t size) {
  std::vector<Tile> tiles;
  const std::int64_t early = std::min(positions.early.Size(), count);
  for (const Part& rows : {Part{0, early}, Part{early, count}}) {
    for (std::int64_t row = rows.begin; row < rows.end; row += size) {
      tiles.push_back({row, positions.At(row), std::min(size, rows.end - row)});
    }
  }
  return tiles;
}

// Operands of one call; those of the backward pass are Empty() in the forward pass.
struct Call {
  const device::Stream& stream;
  const AttentionShape& shape;
  const Matrix& qkv;
  const KeyValueBlock& block;
  const Dropout& dropout;
  const Matrix& out;
  const Matrix& lse;
  const Matrix& scratch;
  Matrix dout, dqkv, dblock;
  std::vector<Tile> queries, keys;
  std::int64_t panel = 0;  // elements of scratch for one

  std::int64_t KeysASequence() const { return block.positions.Count(); }
  device::Stream Serial() const { return {stream.kind, 1, stream.canonical}; }
  // Panel `which`, 0 or 1, of this thread.
  Matrix Panel(int which, std::int64_t rows, std::int64_t columns) const {
    const std::int64_t slot = 2 * omp_get_thread_num() + which;
    return {scratch.Offset(slot * panel), scratch.dtype, rows, columns, columns};
  }
};

// Elements of a panel for `queries` queries a sequence and tiles of at most `most_keys` keys.
std::int64_t PanelElements(std::int64_t queries, std::int64_t most_keys) {
  return std::min(kQueries, queries) * std::min(kKeys, most_keys);
}

Call MakeCall(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
              const KeyValueBlock& block, const Dropout& dropout, const Matrix& out,
              const Matrix& lse, const Matrix& scratch) {
  const std::int64_t most_keys =
      std::max(block.positions.early.Size(), block.positions.late.Size());
  return {stream,
          shape,
          qkv,
          block,
          dropout,
          out,
          lse,
          scratch,
          {},
          {},
          {},
          TilesOf(shape.positions, shape.length, kQueries),
          TilesOf(block.positions, block.positions.Count(), kKeys),
          PanelElements(shape.length, most_keys)};
}

// One head of one sequence.
struct Head {
  std::int64_t sequence = 0, head = 0;

  // Columns of the head in a matrix of all queries' rows: qkv, dqkv, out, dout.
  Matrix Queries(const AttentionShape& shape, const Matrix& m, const Tile& tile) const {
    return m.Rows(sequence * shape.length + tile.row, tile.count)
        .Columns(head * shape.head_dim, shape.head_dim);
  }
  // The key/value head that it reads, in block.data or dblock: keys (which 0) or values (1).
  Matrix KeysOrValues(const Call& call, const Matrix& m, int which, std::int64_t row,
                      std::int64_t count) const {
    const AttentionShape& s = call.shape;
    const std::int64_t kv_head = head / (s.heads / s.kv_heads) + which * s.kv_heads;
    return m.Rows(sequence * call.KeysASequence() + row, count)
        .Columns(kv_head * s.head_dim, s.head_dim);
  }
  RowMask Mask(const Call& call, const Tile& keys) const {
    Dropout site = call.dropout;
    site.site = static_cast<std::uint32_t>(call.shape.first_head + head);
    site.first_feature = keys.position;
    return RowMask(site, keys.count);
  }
};

// How many of the tile's keys, from its first one on, a query at `position` can see.
std::int64_t Visible(const AttentionShape& shape, std::int64_t position, const Tile& keys) {
  if (!shape.causal) return keys.count;
  return std::clamp<std::int64_t>(position + 1 - keys.position, 0, keys.count);
}
// The same for the last query of a tile: nobody in it sees the keys behind.
std::int64_t Visible(const AttentionShape& shape, const Tile& queries, const Tile& keys) {
  return Visible(shape, queries.position + queries.count - 1, keys);
}

template <typename T>
T ScaleOf(const AttentionShape& shape) {
  return static_cast<T>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
}

// Scores s of a query become weights exp(s - lse) with the new lse, and out is brought to it: with
// m the maximum of the old lse and the scores and Z = exp(lse - m) + sum exp(s - m), out shrinks by
// exp(lse - m) / Z, weights are exp(s - m) / Z, and the new lse is m + log Z.
template <typename T>
void MergeRow(T scale, T* scores, std::int64_t visible, T* lse, T* out, std::int64_t head_dim) {
  const T top = std::max(*lse, rows::Max(scores, visible) * scale);
  const double before = std::exp(static_cast<double>(*lse) - static_cast<double>(top));
  const double sum = before + rows::ExpSum(scores, visible, scale, top);
  rows::Affine(scores, static_cast<T>(1 / sum), T(0), scores, visible);
  rows::Affine(out, static_cast<T>(before / sum), T(0), out, head_dim);
  *lse = static_cast<T>(static_cast<double>(top) + std::log(sum));
}

template <typename T>
void ForwardTile(const Call& call, const Head& at, const Tile& queries, const Tile& keys,
                 RowMask& mask) {
  const AttentionShape& shape = call.shape;
  const std::int64_t seen = Visible(shape, queries, keys);
  if (seen == 0) return;
  const Matrix scores = call.Panel(0, queries.count, seen);
  const Matrix out = at.Queries(shape, call.out, queries);
  const Matrix lse =
      call.lse.Rows(at.sequence * shape.length + queries.row, queries.count).Columns(at.head, 1);
  MatrixMultiply(call.Serial(), Form::kPlain, at.Queries(shape, call.qkv, queries),
                 Form::kTransposed, at.KeysOrValues(call, call.block.data, 0, keys.row, seen),
                 scores, false);
  for (std::int64_t i = 0; i < queries.count; ++i) {
    T* row = scores.As<T>() + i * seen;
    const std::int64_t position = queries.position + i, visible = Visible(shape, position, keys);
    std::fill(row + visible, row + seen, T(0));
    if (visible == 0) continue;
    MergeRow(ScaleOf<T>(shape), row, visible, lse.As<T>() + i * lse.stride,
             out.As<T>() + i * out.stride, shape.head_dim);
    if (mask.Active()) {
      mask.Apply(call.dropout.ordinals[at.sequence], position, row, row, visible);
    }
  }
  MatrixMultiply(call.Serial(), Form::kPlain, scores, Form::kPlain,
                 at.KeysOrValues(call, call.block.data, 1, keys.row, seen), out, true);
}

// Scores p and products d = dO V^T of one query become the dropped weights and the scores'
// gradient, with the final lse and inner = dO O^T: see BackwardTile.
template <typename T>
void GradientRow(T scale, T lse, T inner, RowMask& mask, std::uint64_t ordinal,
                 std::int64_t position, T* p, T* d, std::int64_t visible) {
  rows::ExpSum(p, visible, scale, lse);
  if (mask.Active()) mask.Apply(ordinal, position, d, d, visible);
#pragma omp simd
  for (std::int64_t j = 0; j < visible; ++j) d[j] = p[j] * (d[j] - inner) * scale;
  if (mask.Active()) mask.Apply(ordinal, position, p, p, visible);
}

// With P = exp(s - lse), its dropped form D(P) and dO: dV += D(P)^T dO; dP = D(dO V^T);
// dS = P (dP - rowsum(dO * O)); dQ += scale dS K; dK += scale dS^T Q.
template <typename T>
void BackwardTile(const Call& call, const Head& at, const Tile& queries, const Tile& keys,
                  RowMask& mask) {
  const AttentionShape& shape = call.shape;
  const std::int64_t seen = Visible(shape, queries, keys);
  if (seen == 0) return;
  const device::Stream serial = call.Serial();
  const Matrix p = call.Panel(0, queries.count, seen), ds = call.Panel(1, queries.count, seen);
  const Matrix query = at.Queries(shape, call.qkv, queries);
  const Matrix out = at.Queries(shape, call.out, queries);
  const Matrix dout = at.Queries(shape, call.dout, queries);
  const Matrix key = at.KeysOrValues(call, call.block.data, 0, keys.row, seen);
  const Matrix value = at.KeysOrValues(call, call.block.data, 1, keys.row, seen);
  const Matrix lse =
      call.lse.Rows(at.sequence * shape.length + queries.row, queries.count).Columns(at.head, 1);
  const std::uint64_t ordinal = mask.Active() ? call.dropout.ordinals[at.sequence] : 0;
  MatrixMultiply(serial, Form::kPlain, query, Form::kTransposed, key, p, false);
  MatrixMultiply(serial, Form::kPlain, dout, Form::kTransposed, value, ds, false);
  for (std::int64_t i = 0; i < queries.count; ++i) {
    T* p_row = p.As<T>() + i * seen;
    T* d_row = ds.As<T>() + i * seen;
    const std::int64_t position = queries.position + i, visible = Visible(shape, position, keys);
    std::fill(p_row + visible, p_row + seen, T(0));
    std::fill(d_row + visible, d_row + seen, T(0));
    const double inner =
        rows::Dot(dout.As<T>() + i * dout.stride, out.As<T>() + i * out.stride, shape.head_dim);
    GradientRow(ScaleOf<T>(shape), lse.As<T>()[i * lse.stride], static_cast<T>(inner), mask,
                ordinal, position, p_row, d_row, visible);
  }
  MatrixMultiply(serial, Form::kTransposed, p, Form::kPlain, dout,
                 at.KeysOrValues(call, call.dblock, 1, keys.row, seen), true);
  MatrixMultiply(serial, Form::kPlain, ds, Form::kPlain, key, at.Queries(shape, call.dqkv, queries),
                 true);
  MatrixMultiply(serial, Form::kTransposed, ds, Form::kPlain, query,
                 at.KeysOrValues(call, call.dblock, 0, keys.row, seen), true);
}

template <typename T>
void Fill(const Matrix& m, T value) {
  for (std::int64_t row = 0; row < m.rows; ++row) {
    std::fill_n(m.As<T>() + row * m.stride, m.columns, value);
  }
}

// A task is a query head.
template <typename T>
void ForwardAll(const Call& call, const Part& tasks) {
  const std::int64_t heads = call.shape.heads, group = heads / call.shape.kv_heads;
  Rescue rescue;
#pragma omp parallel for num_threads(call.stream.threads) schedule(static)
  for (std::int64_t task = tasks.begin * group; task < tasks.end * group; ++task) {
    rescue.Run([&] {
      const Head at{task / heads, task % heads};
      for (const Tile& keys : call.keys) {
        RowMask mask = at.Mask(call, keys);
        for (const Tile& queries : call.queries) ForwardTile<T>(call, at, queries, keys, mask);
      }
    });
  }
  rescue.Rethrow();
}

// A task is a key/value head: all query heads that read it, in order, so sums never race.
template <typename T>
void BackwardAll(const Call& call, const Part& tasks) {
  const std::int64_t kv_heads = call.shape.kv_heads, group = call.shape.heads / kv_heads;
  Rescue rescue;
#pragma omp parallel for num_threads(call.stream.threads) schedule(static)
  for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
    rescue.Run([&] {
      Head at{task / kv_heads, task % kv_heads * group};
      for (const int which : {0, 1}) {
        Fill<T>(at.KeysOrValues(call, call.dblock, which, 0, call.KeysASequence()), T(0));
      }
      for (std::int64_t end = at.head + group; at.head < end; ++at.head) {
        for (const Tile& keys : call.keys) {
          RowMask mask = at.Mask(call, keys);
          for (const Tile& queries : call.queries) BackwardTile<T>(call, at, queries, keys, mask);
        }
      }
    });
  }
  rescue.Rethrow();
}

}  // namespace

std::int64_t AttentionPartScratch(const AttentionShape& shape, std::int64_t most_keys,
                                  int threads) {
  return 2 * threads * PanelElements(shape.length, most_keys);
}

void AttentionPartStart(const device::Stream&, const Matrix& out, const Matrix& lse) {
  DispatchDtype(out.dtype, [&](auto zero) {
    Fill(out, zero);
    Fill(lse, -std::numeric_limits<decltype(zero)>::infinity());
  });
}

void AttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                          const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                          const Dropout& dropout, const Matrix& out, const Matrix& lse,
                          const Matrix& scratch) {
  const Call call = MakeCall(stream, shape, qkv, block, dropout, out, lse, scratch);
  DispatchDtype(qkv.dtype, [&](auto zero) { ForwardAll<decltype(zero)>(call, tasks); });
}

void AttentionPartStartBackward(const device::Stream&, const AttentionShape& shape,
                                const Matrix& dqkv) {
  DispatchDtype(dqkv.dtype,
                [&](auto zero) { Fill(dqkv.Columns(0, shape.heads * shape.head_dim), zero); });
}

void AttentionPartBackward(const device::Stream& stream, const AttentionShape& shape,
                           const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                           const Dropout& dropout, const Matrix& out, const Matrix& dout,
                           const Matrix& lse, const Matrix& dqkv, const Matrix& dblock,
                           const Matrix& scratch) {
  Call call = MakeCall(stream, shape, qkv, block, dropout, out, lse, scratch);
  call.dout = dout;
  call.dqkv = dqkv;
  call.dblock = dblock;
  DispatchDtype(qkv.dtype, [&](auto zero) { BackwardAll<decltype(zero)>(call, tasks); });
}

}  // namespace trireme::kernels
