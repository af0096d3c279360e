// Attention's forward pass (Dao 2023, "FlashAttention-2"): a few queries at a time meet a tile of
// packed keys and values; scores never leave the first-level cache. Rows of out hold sums over the
// tiles so far, relative to a running maximum, until they are finished.
#include "attention_ahead.hpp"
#include "attention_call.hpp"
#include "backends.hpp"

namespace trireme::kernels {

namespace {


// One thread's way through a query head.
template <typename T>
class ForwardHead {
 public:
  // `next`: the head after it.
  ForwardHead(const AttentionCall& call, const AttentionHead& at, const AttentionHead& next)
      : ForwardHead(call, at, next, call.Sizes(), {call.scratch, call.Sizes()}) {}

  void Run() {
    ForEachTile(call_.QueryPositions(), call_.shape.length, kAttentionSpan,
                [&](const AttentionTile& span) { Span(span); });
  }

 private:
  ForwardHead(const AttentionCall& call, const AttentionHead& at, const AttentionHead& next,
              const AttentionSizes& sizes, AttentionScratchOf<T> scratch)
      : call_(call),
        at_(at),
        sizes_(sizes),
        keys_(scratch.Take(sizes.dim * sizes.keys)),
        values_memory_(scratch.Take(sizes.keys * sizes.width)),
        scores_(scratch.Take(kAttentionMostRows * sizes.keys)),
        keep_(scratch.Take(kAttentionMostRows)),
        top_(scratch.Take(sizes.State())),
        sum_(scratch.Take(sizes.State())),
        mask_(call, at, scratch.Take(sizes.Lanes())),
        ahead_(call, at, next) {}

  void Span(const AttentionTile& span) {
    Begin(span);
    bool first = call_.whole;  // no query of a whole sequence lies before the first tile seen
    ForEachTile(call_.block.positions, call_.block.positions.Count(), kAttentionKeys,
                [&](const AttentionTile& keys) {
                  const std::int64_t seen = call_.Visible(at_.sequence, span.Last(), keys);
                  if (seen == 0 || Unseen(span, keys)) return;
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

  // Maximum and sum of the blocks before: out is normalised, and so the sum is 1.
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

  // Whether all of the keys lie before the documents of these queries.
  bool Unseen(const AttentionTile& queries, const AttentionTile& keys) const {
    return call_.Hidden(at_.sequence, queries.row, keys) == keys.count;
  }

  void PackTile(const AttentionTile& keys, std::int64_t seen) {
    const Matrix& data = call_.block.data;
    kernels_.pack_transposed(at_.KeysOrValues<T>(call_, data, 0, keys), data.stride, seen,
                             sizes_.dim, KeyScale<T>(call_.shape), keys_, sizes_.keys);
    values_ = PackedRows<T>(call_, {at_.KeysOrValues<T>(call_, data, 1, keys), data.stride}, seen,
                            values_memory_);
  }

  // Some rows of the span against the packed keys of a tile.
  void Rows(const AttentionTile& span, const Part& rows, const AttentionTile& tile, bool first) {
    const AttentionTile queries = span.Piece(rows.begin, rows.Size());
    const std::int64_t skip = call_.Skipped(at_.sequence, queries.row, tile);
    const AttentionTile keys = tile.Piece(skip, tile.count);
    const std::int64_t seen = call_.Visible(at_.sequence, queries.Last(), keys);
    if (seen == 0 || Unseen(queries, keys)) return first ? ZeroOut(queries) : void();
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

  // Queries that see nothing of the first tile: later ones add to zeros.
  void ZeroOut(const AttentionTile& queries) {
    T* const out = at_.Queries<T>(call_, call_.out, queries);
    for (std::int64_t i = 0; i < queries.count; ++i) {
      std::fill_n(out + i * call_.out.stride, sizes_.dim, T(0));
    }
  }

  const AttentionKernelsOf<T>& kernels_ = AttentionKernelsFor<T>();
  const AttentionCall& call_;
  const AttentionHead at_;
  const AttentionSizes sizes_;
  T* const keys_;              // [dim, keys]: transposed and scaled
  T* const values_memory_;     // [keys, width]
  AttentionRows<T> values_{};  // [keys, dim], padded
  T* const scores_;            // [rows, keys]
  T* const keep_;              // [rows]: what remains of the sums so far
  T* const top_;               // [span]: maximum so far, of exponents of 2
  T* const sum_;               // [span]: of 2^(score - top)
  AttentionMask mask_;
  AttentionAhead<T> ahead_;
};

// A task is a query head.
void Forward(const AttentionCall& call, const Part& tasks) {
  const std::int64_t heads = call.shape.heads, group = heads / call.shape.kv_heads;
  const std::int64_t end = tasks.end * group;
  const auto head = [&](std::int64_t task) { return AttentionHead{task / heads, task % heads}; };
  DispatchDtype(call.qkv.dtype, [&](auto zero) {
#pragma omp parallel for num_threads(call.stream.threads) schedule(static)
    for (std::int64_t task = tasks.begin * group; task < end; ++task) {
      ForwardHead<decltype(zero)>(call, head(task), head(std::min(task + 1, end - 1))).Run();
    }
  });
}

}  // namespace

std::int64_t AttentionPartScratch(const AttentionShape& shape, std::int64_t most_keys,
                                  int threads) {
  return threads * AttentionSizes(shape, most_keys).AThread();
}
std::int64_t AttentionScratch(const AttentionShape& shape, int threads) {
  return AttentionPartScratch(shape, shape.length, threads);
}

void cpu::AttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const Matrix& qkv, const Dropout& dropout, const Matrix& out,
                           const Matrix& lse, const Matrix& scratch) {
  Forward(
      {stream, shape, qkv, WholeBlock(shape, qkv), dropout, out, lse, scratch, true, {}, {}, {}},
      {0, AttentionPartTasks(shape)});
}

void cpu::AttentionPartStart(const device::Stream&, const Matrix& out, const Matrix& lse) {
  DispatchDtype(out.dtype, [&](auto zero) {
    Fill(out, zero);
    Fill(lse, -std::numeric_limits<decltype(zero)>::infinity());
  });
}

void cpu::AttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                               const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                               const Dropout& dropout, const Matrix& out, const Matrix& lse,
                               const Matrix& scratch) {
  Forward({stream, shape, qkv, block, dropout, out, lse, scratch, false, {}, {}, {}}, tasks);
}

}  // namespace trireme::kernels
