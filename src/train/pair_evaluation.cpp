// Evaluations of models that translate: pairs by length, spread over the data ranks.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::train {

namespace {

// Places in the split of the pairs that are evaluated: all, or a sample by the seed.
std::vector<std::int64_t> Choose(std::int64_t all, const EvaluationOptions& options) {
  std::vector<std::int64_t> chosen;
  const bool sample = options.windows > 0 && options.windows < all;
  for (std::int64_t i = 0; i < (sample ? options.windows : all); ++i) {
    chosen.push_back(sample ? data::Permute(options.seed, 0, i, all) : i);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// The chosen pairs in batches of what the model takes at once: an entry each, the same whatever the
// layout.
class PairRounds {
 public:
  PairRounds(const model::ParallelModel& model, const data::PairFile& pairs, data::Split split,
             const EvaluationOptions& options)
      : model_(model),
        pairs_(pairs),
        split_(split),
        chosen_(Choose(pairs.Pairs(split), options)),
        batches_(std::ssize(chosen_), LengthsOfChosen(), BatchesOf(model.Plan())),
        entries_(static_cast<std::size_t>(model.LocalPlan().evaluation_entries)) {
    const comm::ProcessGrid& grid = model.Grid();
    const std::int64_t count = batches_.StepsPerEpoch();
    share_ = PartOf(count, grid.Coordinates().data, grid.Shape().data);
    const std::int64_t longest = CeilDivide(count, std::int64_t{grid.Shape().data});
    rounds_ = CeilDivide(longest, std::ssize(entries_));
    // With gathered parameters all ranks take as many micro-batches as the one with the most.
    last_ = share_.begin + (model.Units().ValuesSharded() ? longest : share_.Size());
    next_ = share_.begin;
  }

  std::int64_t Count() const { return rounds_; }  // the same on all ranks
  std::int64_t Pairs() const { return batches_.Pairs(); }
  std::int64_t Targets() const { return targets_; }  // of the rounds so far

  // Entries of the next round; none if this rank has no more.
  std::span<const data::Entry> Next() {
    std::size_t filled = 0;
    for (; filled < entries_.size() && next_ < last_; ++filled, ++next_) {
      data::Entry& entry = entries_[filled];
      entry.sequences = 0;
      if (next_ >= share_.end) continue;
      const data::PairBatchShape shape = batches_.Shape(next_);
      batches_.Fill(next_, {0, shape.pairs}, places_);
      for (std::int64_t& place : places_) place = chosen_[static_cast<std::size_t>(place)];
      data::FillEntry(pairs_, split_, places_, shape, 0, entry);
      targets_ += entry.valid;
    }
    for (; filled % static_cast<std::size_t>(model_.Plan().leaves) != 0; ++filled) {
      entries_[filled].sequences = 0;
    }
    return {entries_.data(), filled};
  }

 private:
  static data::PairBatches::Options BatchesOf(const model::ModelPlan& plan) {
    return {.source_tokens = plan.tokens,
            .target_tokens = plan.tokens,
            .pairs = std::max<std::int64_t>(1, plan.micro_batch),
            .longest_source = plan.length,
            .longest_target = plan.length,
            .long_pairs = data::LongPairs::kLeaveOut,
            .shuffle = false};
  }
  data::ReadPairLengths LengthsOfChosen() const {
    return
        [this](std::int64_t first, std::span<std::int32_t> source, std::span<std::int32_t> target) {
          for (std::size_t i = 0; i < source.size(); ++i) {
            const std::int64_t pair = chosen_[static_cast<std::size_t>(first) + i];
            pairs_.ReadLengths(data::Side::kSource, split_, pair, source.subspan(i, 1));
            pairs_.ReadLengths(data::Side::kTarget, split_, pair, target.subspan(i, 1));
          }
        };
  }

  const model::ParallelModel& model_;
  const data::PairFile& pairs_;
  const data::Split split_;
  const std::vector<std::int64_t> chosen_;
  data::PairBatches batches_;
  std::vector<data::Entry> entries_;
  std::vector<std::int64_t> places_;
  Part share_;  // of this data rank: batches
  std::int64_t rounds_ = 0, last_ = 0, next_ = 0, targets_ = 0;
};

}  // namespace

Evaluation EvaluatePairs(model::ParallelModel& model, const data::PairFile& pairs,
                         data::Split split, const EvaluationOptions& options) {
  const double start = Seconds();
  const comm::Communicator& world = model.Grid().World();
  std::optional<PairRounds> rounds;
  world.Together([&] { rounds.emplace(model, pairs, split, options); });
  ExactSum sum;
  Evaluation result;
  for (std::int64_t round = 0; round < rounds->Count() && !result.stopped; ++round) {
    result.stopped = options.stop && world.Max(std::int64_t{options.stop()}) > 0;
    if (!result.stopped) sum.Add(model.Loss(rounds->Next()));
  }
  const auto digits = sum.Digits();
  std::vector<double> sums(digits.begin(), digits.end());
  world.Sum(sums);
  result.targets = result.stopped ? 0 : model.Grid().Data().Sum(rounds->Targets());
  result.nats = result.stopped ? std::numeric_limits<double>::quiet_NaN()
                               : ExactSum::FromDigits(sums).Value();
  result.loss = result.nats / static_cast<double>(std::max<std::int64_t>(1, result.targets));
  result.windows = rounds->Pairs();
  result.all_windows = pairs.Pairs(split);
  result.seconds = Seconds() - start;
  return result;
}

}  // namespace trireme::train
