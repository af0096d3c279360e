// Prefetches rows of attention's operands into the caches, a few at a time between products: a
// head's columns are a few cache lines per row, far apart, a pattern that processors do not
// predict.
#include "attention_call.hpp"

namespace trireme::kernels {

template <typename T>
class AttentionAhead {
 public:
  // `at`: the current head; `next`: the head after it.
  AttentionAhead(const AttentionCall& call, const AttentionHead& at, const AttentionHead& next)
      : call_(call), at_(at), next_(next) {}

  // Selects what to prefetch while the queries of `span` are multiplied by `keys`: this head's next
  // keys and values or, at its end, the first rows of the next head.
  void Aim(const AttentionTile& span, const AttentionTile& keys) {
    const KeyValueBlock& block = call_.block;
    const std::int64_t after = keys.row + keys.count, left = block.positions.Count() - after;
    views_ = 0;
    row_ = 0;
    if (left > 0 && (!call_.shape.causal || block.positions.At(after) <= span.Last())) {
      count_ = std::min(kAttentionKeys, left);
      const AttentionTile tile{after, 0, count_};
      for (const int which : {0, 1}) {
        Add(at_.KeysOrValues<T>(call_, block.data, which, tile), block.data);
      }
      return;
    }
    count_ = std::min({kAttentionKeys, call_.shape.length, block.positions.Count()});
    const AttentionTile tile{0, 0, count_};
    for (const Matrix* m : {&call_.qkv, &call_.out, &call_.dout, &call_.dqkv}) {
      if (!m->Empty()) Add(next_.Queries<T>(call_, *m, tile), *m);
    }
    for (const Matrix* m : {&block.data, &call_.dblock}) {
      if (m->Empty()) continue;
      for (const int which : {0, 1}) Add(next_.KeysOrValues<T>(call_, *m, which, tile), *m);
    }
  }

  // Prefetches the next few rows of each selected operand.
  void Step() {
    constexpr std::int64_t kRows = 8, kLine = 64;
    const std::int64_t end = std::min(row_ + kRows, count_);
    const std::int64_t bytes = call_.shape.head_dim * static_cast<std::int64_t>(sizeof(T));
    for (int view = 0; view < views_; ++view) {
      for (std::int64_t row = row_; row < end; ++row) {
        const char* const data = view_[view].first + row * view_[view].stride;
        for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(data + at);
      }
    }
    row_ = end;
  }

 private:
  struct View {
    const char* first;
    std::int64_t stride;  // bytes
  };
  void Add(const T* first, const Matrix& of) {
    view_[views_++] = {reinterpret_cast<const char*>(first),
                       of.stride * static_cast<std::int64_t>(sizeof(T))};
  }

  const AttentionCall& call_;
  const AttentionHead at_, next_;
  View view_[8];
  int views_ = 0;
  std::int64_t row_ = 0, count_ = 0;
};

// Attention's forward pass (Dao 2023, "FlashAttention-2"): a few queries at a time are multiplied
// by a tile of packed keys and values; scores stay in the first-level cache. Until they are
// finished, rows of out hold sums over the tiles so far, relative to a running maximum.

namespace {

// One thread's work on one query head.
template <typename T>
class ForwardHead {
 public:
  // `next`: the head after `at`, in the order of the tasks.
  ForwardHead(const AttentionCall& call, const AttentionHead& at, const AttentionHead& next)
      : call_(call), at_(at), ahead_(call, at, next) {}

  void Run() {
    ForEachTile(call_.Queries(), call_.shape.length, kAttentionSpan,
                [&](const AttentionTile& span) { Span(span); });
  }

 private:
  void Span(const AttentionTile& span) {
    Begin(span);
    bool first = call_.whole;  // whether `out` holds no sum yet; then the first tile overwrites it
    ForEachTile(call_.block.positions, call_.block.positions.Count(), kAttentionKeys,
                [&](const AttentionTile& keys) {
                  const std::int64_t seen = call_.Visible(at_.sequence, span.Last(), keys);
                  if (seen == 0 || call_.Unseen(at_.sequence, span, keys)) return;
                  PackTile(keys, seen);
                  ahead_.Aim(span, keys);
                  InPieces(span.count, kernels_.rows, [&](std::int64_t begin, std::int64_t count) {
                    Rows(span, {begin, begin + count}, keys, first);
                  });
                  first = false;
                });
    if (first) ZeroOut(span);  // a sequence without keys
    kernels_.finish(span.count, sizes_.dim, top_, sum_, at_.Queries<T>(call_, call_.out, span),
                    call_.out.stride, at_.Lse<T>(call_, span), call_.lse.stride);
  }

  // Starts from the maximum and sum of earlier blocks: their out is normalised, so the sum is 1.
  void Begin(const AttentionTile& span) {
    const T* const lse = at_.Lse<T>(call_, span);
    for (std::int64_t i = 0; i < span.count; ++i) {
      const T before =
          call_.whole ? -std::numeric_limits<T>::infinity() : lse[i * call_.lse.stride];
      const bool none = before == -std::numeric_limits<T>::infinity();
      top_[i] = none ? std::numeric_limits<T>::lowest() : before * static_cast<T>(kLog2E);
      sum_[i] = none ? T(0) : T(1);
    }
  }

  void PackTile(const AttentionTile& keys, std::int64_t seen) {
    const Matrix& data = call_.block.data;
    kernels_.pack_transposed(at_.KeysOrValues<T>(call_, data, 0, keys), data.stride, seen,
                             sizes_.dim, KeyScale<T>(call_.shape), keys_, sizes_.keys);
    values_ = PackedRows<T>(call_, {at_.KeysOrValues<T>(call_, data, 1, keys), data.stride}, seen,
                            values_memory_);
  }

  // Multiplies some rows of the span by the packed keys of a tile.
  void Rows(const AttentionTile& span, const Part& rows, const AttentionTile& tile, bool first) {
    const AttentionTile queries = span.Piece(rows.begin, rows.Size());
    const std::int64_t skip = call_.Skipped(at_.sequence, queries.row, tile);
    const AttentionTile keys = tile.Piece(skip, tile.count);
    const std::int64_t seen = call_.Visible(at_.sequence, queries.Last(), keys);
    if (seen == 0 || call_.Unseen(at_.sequence, queries, keys))
      return first ? ZeroOut(queries) : void();
    ahead_.Step();
    kernels_.multiply(queries.count, AttentionPadded(seen), sizes_.dim,
                      at_.Queries<T>(call_, call_.qkv, queries), call_.qkv.stride, 1, keys_ + skip,
                      sizes_.keys, nullptr, scores_, sizes_.keys);
    call_.HideOthers(at_.sequence, queries, keys, scores_, sizes_.keys);
    kernels_.softmax(queries.count, call_.VisibleFrom(queries.position, keys, seen), scores_,
                     sizes_.keys, top_ + rows.begin, sum_ + rows.begin, keep_);
    for (std::int64_t i = 0; mask_.Active() && i < queries.count; ++i) {
      const std::int64_t visible = call_.Visible(at_.sequence, queries.position + i, keys);
      mask_.Draw(queries.position + i, keys.position, visible);
      mask_.Apply(scores_ + i * sizes_.keys, visible);
    }
    kernels_.multiply(queries.count, sizes_.dim, seen, scores_, sizes_.keys, 1, values_.At(skip),
                      values_.stride, first ? nullptr : keep_,
                      at_.Queries<T>(call_, call_.out, queries), call_.out.stride);
  }

  // For queries that see nothing of the first tile: later tiles add to these zeros.
  void ZeroOut(const AttentionTile& queries) {
    T* const out = at_.Queries<T>(call_, call_.out, queries);
    for (std::int64_t i = 0; i < queries.count; ++i) {
      std::fill_n(out + i * call_.out.stride, sizes_.dim, T(0));
    }
  }

  const AttentionKernelsOf<T>& kernels_ = AttentionKernelsFor<T>();
  const AttentionCall& call_;
  const AttentionHead at_;
  const AttentionSizes sizes_ = call_.Sizes();
  AttentionScratchOf<T> scratch_{call_.scratch, sizes_};
  T* const keys_ = scratch_.Take(sizes_.dim * sizes_.keys);  // [dim, keys]: transposed and scaled
  T* const values_memory_ = scratch_.Take(sizes_.keys * sizes_.width);  // [keys, width]
  AttentionRows<T> values_{};                                           // [keys, dim], padded
  T* const scores_ = scratch_.Take(kAttentionMostRows * sizes_.keys);   // [rows, keys]
  T* const keep_ =
      scratch_.Take(kAttentionMostRows);  // [rows]: factor by which the sums so far shrink
  T* const top_ =
      scratch_.Take(sizes_.State());  // [span]: maximum so far of the scores, as exponents of 2
  T* const sum_ = scratch_.Take(sizes_.State());  // [span]: sum of 2^(score - top)
  AttentionMask mask_{call_, at_, scratch_.Take(sizes_.Lanes())};
  AttentionAhead<T> ahead_;
};

// Computes the tasks in parallel, one query head at a time per thread.
void Forward(const AttentionCall& call) {
  const std::int64_t heads = call.shape.heads, group = heads / call.shape.kv_heads;
  const std::int64_t end = call.tasks.end * group;
  const auto head = [&](std::int64_t task) { return AttentionHead{task / heads, task % heads}; };
  DispatchDtype(call.qkv.dtype, [&](auto zero) {
#pragma omp parallel for num_threads(call.stream.threads) schedule(static)
    for (std::int64_t task = call.tasks.begin * group; task < end; ++task) {
      ForwardHead<decltype(zero)>(call, head(task), head(std::min(task + 1, end - 1))).Run();
    }
  });
}

}  // namespace

std::int64_t cpu::AttentionPartScratch(const device::Stream& stream, const AttentionShape& shape,
                                       std::int64_t most_keys, Dtype, bool) {
  return stream.threads * AttentionSizes(shape, most_keys).AThread();
}
std::int64_t cpu::AttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   Dtype dtype, bool dropout) {
  return AttentionPartScratch(stream, shape, shape.length, dtype, dropout);
}

void cpu::AttentionPartStart(const device::Stream&, const Matrix& out, const Matrix& lse) {
  DispatchDtype(out.dtype, [&](auto zero) {
    Fill(out, zero);
    Fill(lse, -std::numeric_limits<decltype(zero)>::infinity());
  });
}

// Attention's backward pass (Dao et al. 2022, appendix B). With weights P = 2^(s - lse), D =
// dropout, and delta = rowsum(dO * O): dV += D(P)^T dO; dP = D(dO V^T); dS = P (dP - delta); dQ +=
// scale dS K; dK += scale dS^T Q. P and dS exist for one tile at a time.

namespace {

// One thread's work on one query head. For whole sequences it overwrites dquery and, if it is the
// first head of its key/value head, dkey and dvalue; otherwise it adds to them.
template <typename T>
class BackwardHead {
 public:
  // `next`: the head after `at`, in the order of the tasks.
  BackwardHead(const AttentionCall& call, const AttentionHead& at, const AttentionHead& next)
      : call_(call), at_(at), ahead_(call, at, next) {
    std::fill(std::begin(ones_), std::end(ones_), T(1));
  }

  void Run() {
    ForEachTile(call_.Queries(), call_.shape.length, kAttentionSpan,
                [&](const AttentionTile& span) { Span(span); });
  }

 private:
  void Span(const AttentionTile& span) {
    Begin(span);
    bool first = call_.whole;  // whether dquery holds no sum yet; then the first tile overwrites it
    ForEachTile(call_.block.positions, call_.block.positions.Count(), kAttentionKeys,
                [&](const AttentionTile& keys) {
                  const std::int64_t seen = call_.Visible(at_.sequence, span.Last(), keys);
                  if (seen == 0 || call_.Unseen(at_.sequence, span, keys)) return;
                  PackTile(keys, seen);
                  ahead_.Aim(span, keys);
                  for (std::int64_t i = 0; i < span.count; i += kAttentionQueries) {
                    Tile(span.Piece(i, kAttentionQueries), i, keys, first);
                  }
                  first = false;
                });
    if (first) ZeroQueries(span);  // a sequence without keys
  }

  void Begin(const AttentionTile& span) {
    const T* const lse = at_.Lse<T>(call_, span);
    for (std::int64_t i = 0; i < span.count; ++i) {
      lse_[i] = lse[i * call_.lse.stride] * static_cast<T>(kLog2E);
    }
    const AttentionRows<T> dout = {at_.Queries<T>(call_, call_.dout, span), call_.dout.stride};
    kernels_.dot(span.count, sizes_.dim, dout.data, dout.stride,
                 at_.Queries<T>(call_, call_.out, span), call_.out.stride, delta_);
    dout_ = PackedRows<T>(call_, dout, span.count, dout_memory_);
    queries_ = PackedRows<T>(call_, {at_.Queries<T>(call_, call_.qkv, span), call_.qkv.stride},
                             span.count, queries_memory_);
  }

  void PackTile(const AttentionTile& keys, std::int64_t seen) {
    const Matrix& data = call_.block.data;
    const AttentionRows<T> key = {at_.KeysOrValues<T>(call_, data, 0, keys), data.stride};
    kernels_.pack_transposed(key.data, key.stride, seen, sizes_.dim, KeyScale<T>(call_.shape),
                             keys_transposed_, sizes_.keys);
    kernels_.pack_transposed(at_.KeysOrValues<T>(call_, data, 1, keys), data.stride, seen,
                             sizes_.dim, T(1), values_transposed_, sizes_.keys);
    keys_ = PackedRows<T>(call_, key, seen, keys_memory_);
  }

  // Processes the tile's queries, whose first is row `begin` of the span, against the packed keys.
  void Tile(const AttentionTile& queries, std::int64_t begin, const AttentionTile& keys,
            bool first) {
    const std::int64_t seen = call_.Visible(at_.sequence, queries.Last(), keys);
    if (seen == 0) return;
    if (call_.Unseen(at_.sequence, queries, keys)) return first ? ZeroQueries(queries) : void();
    InPieces(queries.count, kernels_.rows, [&](std::int64_t row, std::int64_t count) {
      Rows(queries, begin, {row, row + count}, keys, seen, first);
    });
    const bool overwrite = overwrite_ && queries.row <= (call_.shape.causal ? keys.row : 0);
    InPieces(seen, kernels_.rows, [&](std::int64_t column, std::int64_t count) {
      Columns(queries, begin, {column, column + count}, keys, overwrite);
    });
  }

  // Computes D(P) and dS of some rows for the tile's first `all` keys (0 for keys that a row does
  // not see), and adds what they contribute to the queries' gradient.
  void Rows(const AttentionTile& tile, std::int64_t begin, const Part& rows,
            const AttentionTile& all_keys, std::int64_t all, bool first) {
    const AttentionTile queries = tile.Piece(rows.begin, rows.Size());
    const std::int64_t skip = call_.Skipped(at_.sequence, queries.row, all_keys);
    const AttentionTile keys = all_keys.Piece(skip, all_keys.count);
    const std::int64_t seen = call_.Visible(at_.sequence, queries.Last(), keys),
                       in_span = begin + rows.begin;
    ZeroSkipped(rows, std::min(skip, all));
    if (skip > 0 && seen == 0) return first ? ZeroQueries(queries) : void();
    const std::int64_t most = all - skip;
    T* const weights = weights_ + rows.begin * sizes_.keys + skip;
    T* const ds = ds_ + rows.begin * sizes_.keys + skip;
    ahead_.Step();
    kernels_.multiply(queries.count, AttentionPadded(seen), sizes_.dim, queries_.At(in_span),
                      queries_.stride, 1, keys_transposed_ + skip, sizes_.keys, nullptr, weights,
                      sizes_.keys);
    kernels_.multiply(queries.count, AttentionPadded(seen), sizes_.dim, dout_.At(in_span),
                      dout_.stride, 1, values_transposed_ + skip, sizes_.keys, nullptr, ds,
                      sizes_.keys);
    call_.HideOthers(at_.sequence, queries, keys, weights, sizes_.keys);
    // With dropout one row at a time, so that each row's mask is drawn once.
    const std::int64_t step = mask_.Active() ? 1 : queries.count;
    for (std::int64_t i = 0; i < queries.count; i += step) {
      const std::int64_t position = queries.position + i,
                         visible = call_.Visible(at_.sequence, position, keys);
      if (mask_.Active()) {
        mask_.Draw(position, keys.position, visible);
        mask_.Apply(ds + i * sizes_.keys, visible);
      }
      kernels_.gradient(step, call_.VisibleFrom(position, keys, most),
                        static_cast<T>(AttentionScale(call_.shape)), lse_ + in_span + i,
                        delta_ + in_span + i, weights + i * sizes_.keys, ds + i * sizes_.keys,
                        sizes_.keys);
      if (mask_.Active()) mask_.Apply(weights + i * sizes_.keys, visible);
    }
    kernels_.multiply(queries.count, sizes_.dim, seen, ds, sizes_.keys, 1, keys_.At(skip),
                      keys_.stride, first ? nullptr : ones_,
                      at_.Queries<T>(call_, call_.dqkv, queries), call_.dqkv.stride);
  }

  // Adds what the tile's D(P) and dS contribute to some of the keys and values, using only the
  // queries from the first to the last that sees one of them.
  void Columns(const AttentionTile& queries, std::int64_t begin, const Part& columns,
               const AttentionTile& keys, bool overwrite) {
    const AttentionTile some = keys.Piece(columns.begin, columns.Size());
    const std::int64_t skip =
        call_.shape.causal ? std::max<std::int64_t>(0, some.position - queries.position) : 0;
    const std::int64_t end = SeenUntil(queries, some);
    if (end <= skip && !overwrite) return;
    const auto add = [&](const T* tile, const AttentionRows<T>& rows, int which) {
      kernels_.multiply(some.count, sizes_.dim, end - skip,
                        tile + skip * sizes_.keys + columns.begin, 1, sizes_.keys,
                        rows.At(begin + skip), rows.stride, overwrite ? nullptr : ones_,
                        at_.KeysOrValues<T>(call_, call_.dblock, which, some), call_.dblock.stride);
    };
    add(ds_, queries_, 0);
    add(weights_, dout_, 1);
  }

  // 1 + index of the tile's last query whose document begins at or before the last of these keys;
  // 0: there is none.
  std::int64_t SeenUntil(const AttentionTile& queries, const AttentionTile& keys) const {
    std::int64_t end = queries.count;
    while (end > 0 && call_.Unseen(at_.sequence, queries.Piece(end - 1, 1), keys)) --end;
    return end;
  }
  void ZeroQueries(const AttentionTile& queries) {
    T* const dquery = at_.Queries<T>(call_, call_.dqkv, queries);
    for (std::int64_t i = 0; i < queries.count; ++i) {
      std::fill_n(dquery + i * call_.dqkv.stride, sizes_.dim, T(0));
    }
  }
  // Sets D(P) and dS of these rows to 0 for the tile's first `count` keys, which they do not see.
  void ZeroSkipped(const Part& rows, std::int64_t count) {
    for (std::int64_t row = rows.begin; count > 0 && row < rows.end; ++row) {
      std::fill_n(weights_ + row * sizes_.keys, count, T(0));
      std::fill_n(ds_ + row * sizes_.keys, count, T(0));
    }
  }

  const AttentionKernelsOf<T>& kernels_ = AttentionKernelsFor<T>();
  const AttentionCall& call_;
  const AttentionHead at_;
  const AttentionSizes sizes_ = call_.Sizes();
  AttentionScratchOf<T> scratch_{call_.scratch, sizes_};
  T* const keys_transposed_ = scratch_.Take(sizes_.dim * sizes_.keys);    // [dim, keys], scaled
  T* const values_transposed_ = scratch_.Take(sizes_.dim * sizes_.keys);  // [dim, keys]
  T* const keys_memory_ = scratch_.Take(sizes_.keys * sizes_.width);      // [keys, width]
  T* const queries_memory_ = scratch_.Take(sizes_.span * sizes_.width);   // [span, width]
  T* const dout_memory_ = scratch_.Take(sizes_.span * sizes_.width);      // [span, width]
  T* const lse_ = scratch_.Take(sizes_.State());                          // [span], base 2
  T* const delta_ = scratch_.Take(sizes_.State());                        // [span]
  T* const weights_ = scratch_.Take(sizes_.queries * sizes_.keys);        // [queries, keys]
  T* const ds_ = scratch_.Take(sizes_.queries * sizes_.keys);  // [queries, keys]: dS times scale
  AttentionMask mask_{call_, at_, scratch_.Take(sizes_.Lanes())};
  AttentionAhead<T> ahead_;
  // Whether the first queries that see a key overwrite its gradient instead of adding to it.
  const bool overwrite_ = call_.whole && at_.head % (call_.shape.heads / call_.shape.kv_heads) == 0;
  AttentionRows<T> keys_{}, queries_{}, dout_{};  // [.., dim], padded
  T ones_[kAttentionMostRows];
};

// Sets the columns of dblock that belong to this task to 0.
template <typename T>
void ZeroGradient(const AttentionCall& call, std::int64_t task, T zero) {
  const AttentionShape& s = call.shape;
  const std::int64_t count = call.block.positions.Count(), kv_head = task % s.kv_heads;
  const Matrix rows = call.dblock.Rows(task / s.kv_heads * count, count);
  Fill(rows.Columns(kv_head * s.head_dim, s.head_dim), zero);
  Fill(rows.Columns((s.kv_heads + kv_head) * s.head_dim, s.head_dim), zero);
}

// One thread computes all query heads of a key/value head (a task), in order, so sums never race.
void Backward(const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const Part& tasks = call.tasks;
  const std::int64_t group = s.heads / s.kv_heads;
  const auto head = [&](std::int64_t i) { return AttentionHead{i / s.heads, i % s.heads}; };
  DispatchDtype(call.qkv.dtype, [&](auto zero) {
#pragma omp parallel for num_threads(call.stream.threads) schedule(static)
    for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
      if (!call.whole || s.key_lengths != nullptr) ZeroGradient(call, task, zero);
      for (std::int64_t i = task * group; i < (task + 1) * group; ++i) {
        BackwardHead<decltype(zero)>(call, head(i), head(std::min(i + 1, tasks.end * group - 1)))
            .Run();
      }
    }
  });
}

}  // namespace

void cpu::Attend(const AttentionPass& pass) { pass.backward ? Backward({pass}) : Forward({pass}); }

void cpu::AttentionPartStartBackward(const device::Stream&, const AttentionShape& shape,
                                     const Matrix& dqkv, const Matrix&) {
  DispatchDtype(dqkv.dtype,
                [&](auto zero) { Fill(dqkv.Columns(0, shape.heads * shape.head_dim), zero); });
}

}  // namespace trireme::kernels
