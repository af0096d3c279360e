// Fetches rows of attention's operands into the caches before they are needed, some at a time
// between products: a head's columns are a few cache lines per row, far apart, which processors do
// not predict.
#ifndef TRIREME_SRC_KERNELS_CPU_ATTENTION_AHEAD_HPP_
#define TRIREME_SRC_KERNELS_CPU_ATTENTION_AHEAD_HPP_

#include "attention_call.hpp"

namespace trireme::kernels {

template <typename T>
class AttentionAhead {
 public:
  // `at`: this head; `next`: the one after it.
  AttentionAhead(const AttentionCall& call, const AttentionHead& at, const AttentionHead& next)
      : call_(call), at_(at), next_(next) {}

  // Selects what to fetch while the queries of `span` meet `keys`: the next keys and values of this
  // head, or the first rows of the next head.
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

  // Fetches the next rows of each selected operand.
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

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_ATTENTION_AHEAD_HPP_
