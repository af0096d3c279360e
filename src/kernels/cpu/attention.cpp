// attention: tiles of kTile queries against all keys up to the last of them; scores live in a
// thread's panel only. Forward overwrites out and lse; backward overwrites dqkv.
#include "trireme/kernels/attention.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rescue.hpp"
#include "row_mask.hpp"
#include "rows.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels {

namespace {

using tensor::Matrix;

constexpr std::int64_t kTile =
    64;  // queries a panel: 64 x 1024 fp32 scores are 256 KiB, half an L2

// The stream of one task: its products run on the calling thread.
device::Stream Serial(device::Stream stream) {
  stream.threads = 1;
  return stream;
}

// Rows and columns of one head's queries, keys or values in a [rows, Width()] matrix.
struct HeadView {
  Matrix query, key, value;
};
HeadView ViewOf(const AttentionShape& shape, const Matrix& qkv, std::int64_t sequence,
                std::int64_t head) {
  const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const Matrix block = qkv.Rows(sequence * shape.length, shape.length);
  const std::int64_t d = shape.head_dim;
  return {block.Columns(head * d, d), block.Columns((shape.heads + kv_head) * d, d),
          block.Columns((shape.heads + shape.kv_heads + kv_head) * d, d)};
}

// Keys that a tile of queries [begin, begin + count) can see.
std::int64_t KeysOf(const AttentionShape& shape, std::int64_t begin, std::int64_t count) {
  return shape.causal ? begin + count : shape.length;
}
// Keys that query `position` can see.
std::int64_t Visible(const AttentionShape& shape, std::int64_t position) {
  return shape.causal ? position + 1 : shape.length;
}

Matrix Panel(const AttentionShape& shape, const Matrix& scratch, int which, std::int64_t queries,
             std::int64_t keys) {
  const std::int64_t slot = 2 * omp_get_thread_num() + which;
  const std::int64_t size = std::min(kTile, shape.length) * shape.length;
  return {scratch.Offset(slot * size), scratch.dtype, queries, keys, keys};
}

Dropout HeadDropout(const Dropout& dropout, const AttentionShape& shape, std::int64_t head) {
  Dropout site = dropout;
  site.site = static_cast<std::uint32_t>(shape.first_head + head);
  site.first_feature = 0;  // features are key positions
  return site;
}

template <typename T>
void ForwardHead(const device::Stream& serial, const AttentionShape& shape, const Matrix& qkv,
                 const Dropout& dropout, const Matrix& out, const Matrix& lse,
                 const Matrix& scratch, std::int64_t sequence, std::int64_t head) {
  const HeadView view = ViewOf(shape, qkv, sequence, head);
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  RowMask mask(HeadDropout(dropout, shape, head), shape.length);
  for (std::int64_t begin = 0; begin < shape.length; begin += kTile) {
    const std::int64_t count = std::min(kTile, shape.length - begin);
    const std::int64_t keys = KeysOf(shape, begin, count);
    const Matrix scores = Panel(shape, scratch, 0, count, keys);
    MatrixMultiply(serial, Form::kPlain, view.query.Rows(begin, count), Form::kTransposed,
                   view.key.Rows(0, keys), scores, false);
    for (std::int64_t i = 0; i < count; ++i) {
      T* row = scores.As<T>() + i * keys;
      const std::int64_t visible = Visible(shape, begin + i);
      const T top = rows::Max(row, visible) * scale;
      const double sum = rows::ExpSum(row, visible, scale, top);
      rows::Affine(row, static_cast<T>(1 / sum), T(0), row, visible);
      std::fill(row + visible, row + keys, T(0));
      const std::int64_t position = begin + i, at = sequence * shape.length + position;
      lse.As<T>()[at * lse.stride + head] = static_cast<T>(top + std::log(sum));
      if (mask.Active()) {
        mask.Apply(dropout.ordinals[sequence], position, row, row, visible);
      }
    }
    MatrixMultiply(serial, Form::kPlain, scores, Form::kPlain, view.value.Rows(0, keys),
                   out.Rows(sequence * shape.length + begin, count)
                       .Columns(head * shape.head_dim, shape.head_dim),
                   false);
  }
}

// One query head's share of dqkv: overwrites dquery, accumulates into dkey and dvalue.
// With P = exp(s - lse), its dropped form D(P) and dO: dV += D(P)^T dO; dP = D(dO V^T);
// dS = P (dP - rowsum(dO * O)); dQ = scale dS K; dK += scale dS^T Q  (Dao et al. 2022, appendix B).
template <typename T>
void BackwardHead(const device::Stream& serial, const AttentionShape& shape, const Matrix& qkv,
                  const Dropout& dropout, const Matrix& out, const Matrix& dout, const Matrix& lse,
                  const Matrix& dqkv, const Matrix& scratch, std::int64_t sequence,
                  std::int64_t head) {
  const HeadView view = ViewOf(shape, qkv, sequence, head);
  const HeadView gradient = ViewOf(shape, dqkv, sequence, head);
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  RowMask mask(HeadDropout(dropout, shape, head), shape.length);
  const Matrix head_out = out.Rows(sequence * shape.length, shape.length)
                              .Columns(head * shape.head_dim, shape.head_dim);
  const Matrix head_dout = dout.Rows(sequence * shape.length, shape.length)
                               .Columns(head * shape.head_dim, shape.head_dim);
  for (std::int64_t begin = 0; begin < shape.length; begin += kTile) {
    const std::int64_t count = std::min(kTile, shape.length - begin);
    const std::int64_t keys = KeysOf(shape, begin, count);
    const Matrix p = Panel(shape, scratch, 0, count, keys);
    const Matrix ds = Panel(shape, scratch, 1, count, keys);
    const Matrix query = view.query.Rows(begin, count);
    const Matrix tile_dout = head_dout.Rows(begin, count);
    MatrixMultiply(serial, Form::kPlain, query, Form::kTransposed, view.key.Rows(0, keys), p,
                   false);
    MatrixMultiply(serial, Form::kPlain, tile_dout, Form::kTransposed, view.value.Rows(0, keys), ds,
                   false);
    for (std::int64_t i = 0; i < count; ++i) {
      T* p_row = p.As<T>() + i * keys;
      T* d_row = ds.As<T>() + i * keys;
      const std::int64_t position = begin + i, visible = Visible(shape, position);
      const std::int64_t at = sequence * shape.length + position;
      rows::ExpSum(p_row, visible, scale, lse.As<T>()[at * lse.stride + head]);
      const T inner =
          static_cast<T>(rows::Dot(tile_dout.As<T>() + i * tile_dout.stride,
                                   head_out.As<T>() + position * head_out.stride, shape.head_dim));
      if (mask.Active()) mask.Apply(dropout.ordinals[sequence], position, d_row, d_row, visible);
#pragma omp simd
      for (std::int64_t j = 0; j < visible; ++j) {
        d_row[j] = p_row[j] * (d_row[j] - inner) * scale;
      }
      if (mask.Active()) mask.Apply(dropout.ordinals[sequence], position, p_row, p_row, visible);
      std::fill(p_row + visible, p_row + keys, T(0));
      std::fill(d_row + visible, d_row + keys, T(0));
    }
    MatrixMultiply(serial, Form::kTransposed, p, Form::kPlain, tile_dout,
                   gradient.value.Rows(0, keys), true);
    MatrixMultiply(serial, Form::kPlain, ds, Form::kPlain, view.key.Rows(0, keys),
                   gradient.query.Rows(begin, count), false);
    MatrixMultiply(serial, Form::kTransposed, ds, Form::kPlain, query, gradient.key.Rows(0, keys),
                   true);
  }
}

template <typename T>
void ZeroRows(const Matrix& m) {
  for (std::int64_t row = 0; row < m.rows; ++row) {
    std::fill_n(m.As<T>() + row * m.stride, m.columns, T(0));
  }
}

template <typename T>
void ForwardAll(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                const Dropout& dropout, const Matrix& out, const Matrix& lse,
                const Matrix& scratch) {
  const std::int64_t tasks = shape.sequences * shape.heads;
  Rescue rescue;
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (std::int64_t task = 0; task < tasks; ++task) {
    rescue.Run([&] {
      ForwardHead<T>(Serial(stream), shape, qkv, dropout, out, lse, scratch, task / shape.heads,
                     task % shape.heads);
    });
  }
  rescue.Rethrow();
}

// A task is a key/value head: all query heads that read it, in order, so sums never race.
template <typename T>
void BackwardAll(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                 const Dropout& dropout, const Matrix& out, const Matrix& dout, const Matrix& lse,
                 const Matrix& dqkv, const Matrix& scratch) {
  const std::int64_t tasks = shape.sequences * shape.kv_heads;
  const std::int64_t group = shape.heads / shape.kv_heads;
  Rescue rescue;
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (std::int64_t task = 0; task < tasks; ++task) {
    rescue.Run([&] {
      const std::int64_t sequence = task / shape.kv_heads;
      const std::int64_t first = task % shape.kv_heads * group;
      const HeadView gradient = ViewOf(shape, dqkv, sequence, first);
      ZeroRows<T>(gradient.key);
      ZeroRows<T>(gradient.value);
      for (std::int64_t head = first; head < first + group; ++head) {
        BackwardHead<T>(Serial(stream), shape, qkv, dropout, out, dout, lse, dqkv, scratch,
                        sequence, head);
      }
    });
  }
  rescue.Rethrow();
}

}  // namespace

std::int64_t AttentionScratch(const AttentionShape& shape, int threads) {
  return 2 * threads * std::min(kTile, shape.length) * shape.length;
}

void AttentionForward(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                      const Dropout& dropout, const Matrix& out, const Matrix& lse,
                      const Matrix& scratch) {
  DispatchDtype(qkv.dtype, [&](auto zero) {
    ForwardAll<decltype(zero)>(stream, shape, qkv, dropout, out, lse, scratch);
  });
}

void AttentionBackward(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                       const Dropout& dropout, const Matrix& out, const Matrix& dout,
                       const Matrix& lse, const Matrix& dqkv, const Matrix& scratch) {
  DispatchDtype(qkv.dtype, [&](auto zero) {
    BackwardAll<decltype(zero)>(stream, shape, qkv, dropout, out, dout, lse, dqkv, scratch);
  });
}

}  // namespace trireme::kernels
