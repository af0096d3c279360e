// Interpolated Kneser-Ney 5-gram model with three discounts per order (Kneser and Ney 1995; Chen
// and Goodman 1999, "An empirical study of smoothing techniques for language modeling"), for
// targets that are known before it counts.
#ifndef TRIREME_TASKS_KNESER_NEY_HPP_
#define TRIREME_TASKS_KNESER_NEY_HPP_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::tasks {

inline constexpr int kOrder = 5;  // tokens of the longest n-gram

// A sequence of tokens of which some are targets.
struct TargetStream {
  std::vector<std::uint32_t> ids;
  // [ids]: tokens right before it that may be its context, at most kOrder - 1.
  std::vector<std::uint8_t> known;
  std::vector<std::uint32_t> targets;  // offsets in ids, each with known >= 1
};

// An n-gram in the order of the sort: the context's tokens, the nearest first, then the target;
// the vocabulary's size for context that is not there.
using NGram = std::array<std::uint32_t, kOrder>;

class KneserNey {
 public:
  // Counts the n-grams of `train`, whose ids lie below `vocabulary`; keeps it, with 8 bytes per
  // target while it sorts and 4 after.
  KneserNey(TargetStream train, std::int64_t vocabulary);

  // -ln p of each target of `stream` in nats, in its order. Takes 124 bytes per target, and one
  // pass over the training targets.
  std::vector<double> Losses(const TargetStream& stream) const;

  // Discounts of n-grams of an order, 1 to kOrder, that were counted once, twice and more often.
  const std::array<double, 3>& Discounts(int order) const {
    return discounts_[static_cast<std::size_t>(order - 1)];
  }

  // Of numbers of n-grams counted 1, 2, 3 and 4 times: equation 26 of Chen and Goodman; 1/2, 1 and
  // 3/2 where it does not give 0 < D_i <= i.
  static std::array<double, 3> DiscountsOf(const std::array<std::int64_t, 4>& counted);

 private:
  struct Seen;
  class Scan;

  void Sort();
  double Loss(const NGram& ngram, const std::array<Seen, kOrder>& seen) const;

  TargetStream train_;  // targets in the order of their n-grams, once sorted
  std::uint32_t vocabulary_;
  std::array<std::array<double, 3>, kOrder> discounts_{};
};

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_KNESER_NEY_HPP_
