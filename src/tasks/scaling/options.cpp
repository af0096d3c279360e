// The keys of [scaling].
#include "trireme/tasks/scaling_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "trireme/comm/options.hpp"
#include "trireme/deck/list.hpp"

namespace trireme::tasks {

namespace {

// None of an empty text.
std::vector<std::string_view> PartsOf(std::string_view text) {
  if (deck::Trimmed(text).empty()) return {};
  return deck::SplitList(text);
}

std::vector<int> ReadRanks(const deck::Deck& deck) {
  std::vector<int> ranks;
  for (const std::string_view part : PartsOf(deck.Text("scaling.ranks"))) {
    int count = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), count);
    if (error != std::errc() || end != part.data() + part.size() || count < 1 ||
        count > comm::kMostRanks) {
      throw deck.Complain("scaling.ranks", fmt::format("'{}' is no number of ranks", part),
                          "Give numbers with commas between them: 1,2,4,8.");
    }
    if (std::find(ranks.begin(), ranks.end(), count) != ranks.end()) {
      throw deck.Complain("scaling.ranks", fmt::format("{} stands there twice", count),
                          "Name each number of ranks once; scaling.repeats says how often each "
                          "is measured.");
    }
    ranks.push_back(count);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<ScalingKind> ReadKinds(const deck::Deck& deck) {
  std::vector<ScalingKind> kinds;
  for (const std::string_view part : PartsOf(deck.Text("scaling.kind"))) {
    const bool strong = part == NameOf(ScalingKind::kStrong);
    const ScalingKind kind = strong ? ScalingKind::kStrong : ScalingKind::kWeak;
    const bool twice = std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
    if ((!strong && part != NameOf(ScalingKind::kWeak)) || twice) {
      throw deck.Complain("scaling.kind",
                          fmt::format("'{}' {}", part, twice ? "stands there twice" : "is no kind"),
                          "What there is: strong; weak; strong,weak.");
    }
    kinds.push_back(kind);
  }
  if (kinds.empty()) {
    throw deck.Complain("scaling.kind", "no kind is named",
                        "What there is: strong; weak; strong,weak.");
  }
  return kinds;
}

}  // namespace

const char* NameOf(ScalingKind kind) { return kind == ScalingKind::kStrong ? "strong" : "weak"; }

void DeclareScaling(deck::Schema& schema) {
  schema
      .Section("scaling",
               "A scaling study of a training step (job.task = scaling); see doc/scaling.md.")
      .Text(
          "scaling.ranks", "",
          "Numbers of ranks to compare: 1,2,4,8. The first ranks of the job take part, the others "
          "sleep. Empty: the ranks of one replica (tensor x context x pipeline) times 1, 2, 4 "
          "... up to the job's ranks, and these.")
      .Text("scaling.kind", "strong",
            "strong: data.batch on any number of ranks; weak: a batch that grows with the ranks, "
            "see scaling.base_ranks; strong,weak: both.")
      .Integer("scaling.base_ranks", 0, deck::Between(0, comm::kMostRanks), "ranks",
               "For weak scaling: the number of ranks for which data.batch stands; others take "
               "data.batch x ranks / base_ranks windows a step. 0: the smallest number compared.")
      .Integer("scaling.steps", 10, deck::AtLeast(1), "steps",
               "Measured steps of each number of ranks, in each round.")
      .Integer("scaling.warmup_steps", 3, deck::AtLeast(1), "steps",
               "Steps before these, which are not counted.")
      .Integer("scaling.repeats", 5, deck::AtLeast(1), "",
               "Rounds: each measures all numbers of ranks, every second one from the largest to "
               "the smallest. Intervals of confidence need two or more.");
}

ScalingOptions ReadScaling(const deck::Deck& deck) {
  return {.ranks = ReadRanks(deck),
          .kinds = ReadKinds(deck),
          .base_ranks = static_cast<int>(deck.Integer("scaling.base_ranks")),
          .steps = deck.Integer("scaling.steps"),
          .warmup_steps = deck.Integer("scaling.warmup_steps"),
          .repeats = deck.Integer("scaling.repeats")};
}

}  // namespace trireme::tasks
