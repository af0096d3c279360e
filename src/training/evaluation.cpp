// Validation and test loss: every target of a split once, on any number of ranks.
#include "trireme/training/evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::training {

namespace {

std::string NameOf(const data::TokenFile& tokens) {
  return tokens.Path().empty() ? "tokens in memory" : tokens.Path();
}

// Collective. Exact: the same in every layout that computes the same terms.
double SumOver(const comm::Communicator& world, const ExactSum& mine) {
  const auto digits = mine.Digits();
  std::vector<double> sums(digits.begin(), digits.end());
  world.Sum(sums);
  return ExactSum::FromDigits(sums).Value();
}

// Windows of a split without overlap, all in one step.
data::Sampler WindowsOf(std::int64_t tokens, std::int64_t length) {
  data::Sampler::Options options;
  options.tokens = tokens;
  options.length = options.stride = length;
  options.batch = std::max<std::int64_t>(1, CeilDivide(tokens, length));
  options.shuffle = false;
  return data::Sampler(options);
}

void CheckDocuments(const model::ModelPlan& plan, const data::TokenFile& tokens,
                    data::Split split) {
  if (!plan.document_mask || tokens.HasDocuments(split)) return;
  throw InputError(fmt::format("{}: there is no /{}/documents, which data.document_mask needs",
                               NameOf(tokens), NameOf(split)),
                   "Make the file anew with task = tokenize, or use data.document_mask = no.");
}

// This rank's windows, in rounds of as many micro-batches as the model takes at once.
class Rounds {
 public:
  Rounds(const model::ParallelModel& model, const data::TokenFile& tokens, data::Split split)
      : model_(model),
        share_(WindowsOf(tokens.Size(split), model.Plan().length)
                   .Share(0, model.Grid().Coordinates().data, model.Grid().Shape().data)),
        most_(std::max<std::int64_t>(1, model.Plan().micro_batch)),
        entries_(static_cast<std::size_t>(model.LocalPlan().evaluation_entries)),
        windows_(
            tokens, split, model.Grid().Replica(),
            [this](std::int64_t turn, std::vector<data::Sample>& samples) {
              const std::span<const data::Sample> mine = TurnOf(turn);
              samples.assign(mine.begin(), mine.end());
              return !mine.empty();
            },
            model.Plan().document_mask) {
    const std::int64_t longest =
        CeilDivide(WindowsOf(tokens.Size(split), model.Plan().length).BatchSize(0),
                   std::int64_t{model.Grid().Shape().data});
    count_ = CeilDivide(longest, most_ * std::ssize(entries_));
    // With gathered parameters all ranks take as many micro-batches as the one with the most.
    last_ = model.Units().ValuesSharded() ? longest : std::ssize(share_);
  }

  std::int64_t Count() const { return count_; }      // the same on all ranks
  std::int64_t Targets() const { return targets_; }  // of the rounds so far
  // Whether this rank could not read an entry's windows: it is empty.
  bool Failed() const { return windows_.Failed(); }
  void RequireRead() const { windows_.RequireRead(); }

  // Entries of the next round; none if this rank has no more.
  std::span<const data::Entry> Next() {
    std::size_t filled = 0;
    for (; filled < entries_.size() && begin_ < last_; ++filled, begin_ += most_) {
      data::Entry& entry = entries_[filled];
      entry.sequences = 0;
      if (begin_ >= std::ssize(share_)) continue;
      const std::int64_t turn = begin_ / most_;
      const std::span<const data::Window> windows = windows_.Take(turn);
      if (windows_.Failed()) continue;
      data::FillEntry(windows, TurnOf(turn), model_.Plan().length, entry,
                      model_.LocalPlan().positions, model_.Plan().document_mask);
      targets_ += entry.valid;
    }
    for (; filled % static_cast<std::size_t>(model_.Plan().leaves) != 0; ++filled) {
      entries_[filled].sequences = 0;
    }
    return {entries_.data(), filled};
  }

 private:
  // Windows of an entry; none after the last.
  std::span<const data::Sample> TurnOf(std::int64_t turn) const {
    const std::int64_t begin = std::min(turn * most_, std::ssize(share_));
    const std::int64_t count = std::min(std::ssize(share_) - begin, most_);
    return std::span(share_).subspan(static_cast<std::size_t>(begin),
                                     static_cast<std::size_t>(count));
  }

  const model::ParallelModel& model_;
  const std::vector<data::Sample> share_;
  const std::int64_t most_;  // windows of an entry
  std::vector<data::Entry> entries_;
  data::Windows windows_;  // a turn is an entry
  std::int64_t count_ = 0, last_ = 0, begin_ = 0, targets_ = 0;
};

// Collective. Whether a rank wishes to stop. AgreedError (exit code 1) if one could not read.
bool AgreeToStop(const comm::Communicator& world, const Rounds& rounds,
                 const std::function<bool()>& stop) {
  constexpr std::int64_t kStop = 1, kUnread = 2;
  std::int64_t mine = stop && stop() ? kStop : 0;
  if (rounds.Failed()) mine = kUnread;
  const std::int64_t most = world.Max(mine);
  if (most == kUnread) world.Together([&] { rounds.RequireRead(); });
  return most == kStop;
}

}  // namespace

Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split,
                    const std::function<bool()>& stop) {
  const double start = Seconds();
  const comm::Communicator& world = model.Grid().World();
  std::optional<Rounds> rounds;
  world.Together([&] {
    CheckDocuments(model.Plan(), tokens, split);
    rounds.emplace(model, tokens, split);
  });
  ExactSum sum;
  Evaluation result;
  for (std::int64_t round = 0; round < rounds->Count() && !result.stopped; ++round) {
    result.stopped = (stop || tokens.Streams()) && AgreeToStop(world, *rounds, stop);
    if (!result.stopped) sum.Add(model.Loss(rounds->Next()));
  }
  if (!result.stopped && tokens.Streams()) AgreeToStop(world, *rounds, {});  // of the last round
  result.targets = result.stopped ? 0 : model.Grid().Data().Sum(rounds->Targets());
  if (!result.stopped && result.targets == 0) {  // the same on all ranks
    throw AgreedError(ExitCode::kBadInput,
                      fmt::format("{}: no target of /{}/tokens counts: it has no loss",
                                  NameOf(tokens), NameOf(split)),
                      "Its mask, and with data.document_mask its documents, leave none.");
  }
  result.loss = result.stopped ? std::numeric_limits<double>::quiet_NaN()
                               : SumOver(world, sum) / static_cast<double>(result.targets);
  result.seconds = Seconds() - start;
  return result;
}

}  // namespace trireme::training
