// Evaluations: windows are chosen, spread over the ranks and computed in rounds, and their losses
// are summed exactly.
#include "trireme/train/evaluation.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::train {

// LossWindow computes mean and deviation from scratch each time, so a resumed run gets equal bits.

LossWindow::LossWindow(std::int64_t window, double threshold)
    : window_(static_cast<std::size_t>(window)), threshold_(threshold) {
  losses_.reserve(window_);
}

std::optional<Spike> LossWindow::Take(double loss) {
  if (window_ == 0 || !std::isfinite(loss)) return std::nullopt;
  if (losses_.size() < window_) {
    losses_.push_back(loss);
    return std::nullopt;
  }
  const auto count = static_cast<double>(window_);
  Spike spike{.loss = loss};
  for (const double one : losses_) spike.mean += one;
  spike.mean /= count;
  double squares = 0;
  for (const double one : losses_) squares += (one - spike.mean) * (one - spike.mean);
  spike.deviation = std::max(std::sqrt(squares / count), kLeastDeviation * std::abs(spike.mean));
  const double limit = spike.mean + threshold_ * spike.deviation;
  std::shift_left(losses_.begin(), losses_.end(), 1);
  losses_.back() = std::min(loss, limit);
  if (!(loss > limit)) return std::nullopt;
  spike.score = (loss - spike.mean) / spike.deviation;
  return spike;
}

void LossWindow::Restore(const std::vector<double>& losses) {
  const std::size_t kept = std::min(losses.size(), window_);
  losses_.assign(losses.end() - static_cast<std::ptrdiff_t>(kept), losses.end());
}

namespace {

std::string NameOf(const data::TokenFile& tokens) {
  return tokens.Path().empty() ? "tokens in memory" : tokens.Path();
}

// Collective over `world`. The sum is exact: the same in every layout that computes the same terms.
double SumOver(const comm::Communicator& world, const ExactSum& mine) {
  const auto digits = mine.Digits();
  std::vector<double> sums(digits.begin(), digits.end());
  world.Sum(sums);
  return ExactSum::FromDigits(sums).Value();
}

// A sampler with all windows of a split in one step.
data::Sampler WindowsOf(std::int64_t tokens, std::int64_t length, std::int64_t stride) {
  return data::Sampler({.tokens = tokens,
                        .length = length,
                        .stride = stride,
                        .batch = std::max<std::int64_t>(1, CeilDivide(tokens, stride)),
                        .shuffle = false});
}

// The windows or pairs of a split to evaluate, ascending: all, or a sample drawn by options.seed.
std::vector<std::int64_t> Choose(std::int64_t all, const EvaluationOptions& options) {
  std::vector<std::int64_t> chosen;
  const bool sample = options.windows > 0 && options.windows < all;
  for (std::int64_t i = 0; i < (sample ? options.windows : all); ++i) {
    chosen.push_back(sample ? data::Permute(options.seed, 0, i, all) : i);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// The windows of an evaluation.
struct Selection {
  std::vector<data::Sample> share;  // of this data rank
  std::int64_t count = 0;           // windows over all data ranks
  std::int64_t all = 0;             // windows in the split
  // Targets at a window's beginning that the window before counts; none in the split's first.
  std::int64_t overlap = 0;
};

Selection Select(const model::ParallelModel& model, std::int64_t tokens,
                 const EvaluationOptions& options) {
  const std::int64_t length = model.Plan().length;
  const std::int64_t stride = options.stride == 0 ? length : options.stride;
  if (stride < 0 || stride > length) {
    throw InputError(
        fmt::format("windows of {} targets with a stride of {} skip some", length, stride),
        "evaluate.stride may not exceed data.sequence_length.");
  }
  const data::Sampler sampler = WindowsOf(tokens, length, stride);
  const int rank = model.Grid().Coordinates().data, ranks = model.Grid().Shape().data;
  Selection selection;
  selection.overlap = length - stride;
  selection.all = selection.count = sampler.BatchSize(0);
  if (options.windows <= 0 || options.windows >= selection.all) {
    selection.share = sampler.Share(0, rank, ranks);
    return selection;
  }
  selection.count = options.windows;
  const std::vector<std::int64_t> chosen = Choose(selection.all, options);
  const Part mine = PartOf(selection.count, rank, ranks);
  for (std::int64_t i = mine.begin; i < mine.end; ++i) {
    selection.share.push_back(sampler.At(0, chosen[static_cast<std::size_t>(i)]));
  }
  return selection;
}

void CheckDocuments(const model::ModelPlan& plan, const data::TokenFile& tokens,
                    data::Split split) {
  if (!plan.document_mask || tokens.HasDocuments(split)) return;
  throw InputError(fmt::format("{}: there is no /{}/documents, which data.document_mask needs",
                               NameOf(tokens), NameOf(split)),
                   "Make the file anew with task = tokenize, or use data.document_mask = no.");
}

// Masks the targets at the beginnings of windows that an earlier window counts.
void MaskOverlap(std::span<const data::Sample> samples, std::int64_t overlap, data::Entry& entry) {
  if (overlap == 0) return;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].start == 0) continue;
    std::int32_t* const targets =
        entry.targets.data() + static_cast<std::int64_t>(i) * entry.length;
    for (std::int64_t p = 0; p < entry.length; ++p) {
      if (entry.positions.At(p) >= overlap || targets[p] == data::kMasked) continue;
      targets[p] = data::kMasked;
      --entry.valid;
    }
  }
}

// A data rank's part of an evaluation. One entry is a turn; a round has as many turns as the model
// takes entries at once.
class Rounds {
 public:
  explicit Rounds(const model::ParallelModel& model)
      : model_(model), entries_(static_cast<std::size_t>(model.LocalPlan().evaluation_entries)) {}
  virtual ~Rounds() = default;

  std::int64_t Count() const { return count_; }      // number of rounds, the same on all ranks
  std::int64_t Targets() const { return targets_; }  // that count, in this rank's rounds so far
  std::int64_t Chosen() const { return chosen_; }    // windows or pairs on all ranks
  std::int64_t All() const { return all_; }          // in the split
  // Whether this rank failed to read an entry's tokens; the entry is then empty.
  virtual bool Failed() const { return false; }
  virtual void RequireRead() const {}

  // The entries of the next round; none if this rank has no more.
  std::span<const data::Entry> Next() {
    std::size_t filled = 0;
    first_ = next_;
    for (; filled < entries_.size() && next_ < last_; ++filled, ++next_) {
      data::Entry& entry = entries_[filled];
      entry.sequences = 0;
      if (next_ < own_) Fill(next_, entry);
      if (entry.sequences > 0) targets_ += entry.valid;
    }
    for (; filled % static_cast<std::size_t>(model_.Plan().leaves) != 0; ++filled) {
      entries_[filled].sequences = 0;
    }
    return {entries_.data(), filled};
  }

  // Calls `visit` for each target that counts. losses: [rows] of `entries`, which Next returned.
  virtual void Visit(std::span<const data::Entry> /*entries*/, const double* /*losses*/,
                     const std::function<void(std::int64_t, double)>& /*visit*/) const {}

 protected:
  // own, longest: turns of this rank, and of the rank with the most; chosen, all: as Chosen, All.
  void SetTurns(std::int64_t own, std::int64_t longest, std::int64_t chosen, std::int64_t all) {
    own_ = own;
    chosen_ = chosen;
    all_ = all;
    count_ = CeilDivide(longest, std::ssize(entries_));
    // If parameters are gathered, all ranks must run equally many micro-batches.
    last_ = model_.Units().ValuesSharded() ? longest : own;
  }
  // Fills an entry; leaves it without sequences if its tokens cannot be read.
  virtual void Fill(std::int64_t turn, data::Entry& entry) = 0;

  const model::ParallelModel& model_;
  std::int64_t first_ = 0;  // turn of the current round's first entry

 private:
  std::vector<data::Entry> entries_;
  std::int64_t count_ = 0, own_ = 0, last_ = 0, next_ = 0, targets_ = 0, chosen_ = 0, all_ = 0;
};

class WindowRounds : public Rounds {
 public:
  WindowRounds(const model::ParallelModel& model, const data::TokenFile& tokens, data::Split split,
               Selection selection)
      : Rounds(model),
        selection_(std::move(selection)),
        most_(std::max<std::int64_t>(1, model.Plan().micro_batch)),
        windows_(
            tokens, split, model.Grid().Replica(),
            [this](std::int64_t turn, std::vector<data::Sample>& samples) {
              const std::span<const data::Sample> mine = TurnOf(turn);
              samples.assign(mine.begin(), mine.end());
              return !mine.empty();
            },
            model.Plan().document_mask) {
    const std::int64_t longest =
        CeilDivide(selection_.count, std::int64_t{model.Grid().Shape().data});
    SetTurns(CeilDivide(std::ssize(selection_.share), most_), CeilDivide(longest, most_),
             selection_.count, selection_.all);
  }

  bool Failed() const override { return windows_.Failed(); }
  void RequireRead() const override { windows_.RequireRead(); }

  void Visit(std::span<const data::Entry> entries, const double* losses,
             const std::function<void(std::int64_t, double)>& visit) const override {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const data::Entry& entry = entries[i];
      if (entry.sequences == 0) continue;
      const std::span<const data::Sample> samples = TurnOf(first_ + static_cast<std::int64_t>(i));
      const std::int32_t* target = entry.targets.data();
      for (const data::Sample& sample : samples) {
        for (std::int64_t p = 0; p < entry.length; ++p, ++target, ++losses) {
          if (*target == data::kMasked) continue;
          visit(sample.start + entry.positions.At(p) + 1, *losses);
        }
      }
    }
  }

 private:
  void Fill(std::int64_t turn, data::Entry& entry) override {
    const data::Turn windows = windows_.Take(turn);
    if (windows_.Failed()) return;
    data::FillEntry(windows, model_.Plan().length, entry, model_.LocalPlan().positions,
                    model_.Plan().document_mask);
    MaskOverlap(windows.Samples(), selection_.overlap, entry);
  }
  // The windows of a turn; none after the last turn.
  std::span<const data::Sample> TurnOf(std::int64_t turn) const {
    const std::vector<data::Sample>& share = selection_.share;
    const std::int64_t begin = std::min(turn * most_, std::ssize(share));
    const std::int64_t count = std::min(std::ssize(share) - begin, most_);
    return std::span(share).subspan(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(count));
  }

  const Selection selection_;
  const std::int64_t most_;  // most windows of an entry
  data::Windows windows_;    // one turn per entry
};

// Computes the next round and returns the sum of its losses. losses: scratch for `visit`.
ExactSum LossOf(model::ParallelModel& model, Rounds& rounds,
                const std::function<void(std::int64_t, double)>& visit,
                std::vector<double>& losses) {
  const std::span<const data::Entry> entries = rounds.Next();
  if (!visit) return model.Tasks().Loss(entries);
  std::int64_t rows = 0;
  for (const data::Entry& entry : entries) rows += entry.sequences * entry.length;
  losses.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, rows)));
  const ExactSum sum = model.Tasks().Loss(entries, losses.data());
  if (model.Grid().LastStage() && model.Grid().Coordinates().tensor == 0) {
    rounds.Visit(entries, losses.data(), visit);
  }
  return sum;
}

// Whether any rank wants to stop. Collective. Throws AgreedError if a rank could not read.
bool AgreeToStop(const comm::Communicator& world, const Rounds& rounds,
                 const std::function<bool()>& stop) {
  constexpr std::int64_t kStop = 1, kUnread = 2;
  std::int64_t mine = stop && stop() ? kStop : 0;
  if (rounds.Failed()) mine = kUnread;
  const std::int64_t most = world.Max(mine);
  if (most == kUnread) world.Together([&] { rounds.RequireRead(); });
  return most == kStop;
}

// Runs an evaluation. streams: tokens are streamed, so a rank may fail to read in any round.
Evaluation Run(model::ParallelModel& model, bool streams, const EvaluationOptions& options,
               const std::function<std::unique_ptr<Rounds>()>& make) {
  const double start = Seconds();
  const comm::Communicator& world = model.Grid().World();
  std::unique_ptr<Rounds> rounds;
  world.Together([&] { rounds = make(); });
  ExactSum sum;
  Evaluation result;
  std::vector<double> losses;
  for (std::int64_t round = 0; round < rounds->Count() && !result.stopped; ++round) {
    result.stopped = (options.stop || streams) && AgreeToStop(world, *rounds, options.stop);
    if (!result.stopped) sum.Add(LossOf(model, *rounds, options.visit, losses));
  }
  if (!result.stopped && streams) AgreeToStop(world, *rounds, {});  // last round's failures
  result.targets = result.stopped ? 0 : model.Grid().Data().Sum(rounds->Targets());
  result.nats = result.stopped ? std::numeric_limits<double>::quiet_NaN() : SumOver(world, sum);
  result.loss = result.nats / static_cast<double>(std::max<std::int64_t>(1, result.targets));
  result.windows = rounds->Chosen();
  result.all_windows = rounds->All();
  result.seconds = Seconds() - start;
  return result;
}

Evaluation RunWindows(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split,
                      const EvaluationOptions& options, const std::function<Selection()>& select) {
  return Run(model, tokens.Streams(), options, [&] {
    CheckDocuments(model.Plan(), tokens, split);
    return std::make_unique<WindowRounds>(model, tokens, split, select());
  });
}

// Whether the evaluation has a result; the same on all ranks.
bool HasLoss(const Evaluation& result) { return result.stopped || result.targets > 0; }

void RequireLoss(const Evaluation& result, const data::TokenFile& tokens, data::Split split) {
  if (HasLoss(result)) return;
  throw AgreedError(ExitCode::kBadInput,
                    fmt::format("{}: no target of /{}/tokens counts: it has no loss",
                                NameOf(tokens), NameOf(split)),
                    "Its mask, and with data.document_mask its documents, leave none.");
}

// The chosen pairs in batches, ordered by length. Each batch is one entry, the same in every
// layout, and no larger than the model takes at once.
class PairRounds : public Rounds {
 public:
  PairRounds(const model::ParallelModel& model, const data::PairFile& pairs, data::Split split,
             const EvaluationOptions& options)
      : Rounds(model),
        pairs_(pairs),
        split_(split),
        chosen_(Choose(pairs.Pairs(split), options)),
        batches_(std::ssize(chosen_), LengthsOfChosen(), BatchesOf(model.Plan())) {
    const comm::ProcessGrid& grid = model.Grid();
    const std::int64_t count = batches_.StepsPerEpoch();
    share_ = PartOf(count, grid.Coordinates().data, grid.Shape().data);
    SetTurns(share_.Size(), CeilDivide(count, std::int64_t{grid.Shape().data}), batches_.Pairs(),
             pairs.Pairs(split));
  }

 private:
  void Fill(std::int64_t turn, data::Entry& entry) override {
    const std::int64_t batch = share_.begin + turn;
    const data::PairBatchShape shape = batches_.Shape(batch);
    batches_.Fill(batch, {0, shape.pairs}, places_);
    for (std::int64_t& place : places_) place = chosen_[static_cast<std::size_t>(place)];
    data::FillEntry(pairs_, split_, places_, shape, 0, entry);
  }
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

  const data::PairFile& pairs_;
  const data::Split split_;
  const std::vector<std::int64_t> chosen_;
  data::PairBatches batches_;
  std::vector<std::int64_t> places_;
  Part share_;  // batches of this data rank
};

}  // namespace

Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split,
                    const EvaluationOptions& options) {
  EvaluationOptions sample = options;
  double seconds = 0;
  while (true) {
    Evaluation result = RunWindows(model, tokens, split, options,
                                   [&] { return Select(model, tokens.Size(split), sample); });
    seconds += result.seconds;
    result.seconds = seconds;
    if (!HasLoss(result) && result.windows < result.all_windows) {
      sample.windows *= 2;
      continue;
    }
    RequireLoss(result, tokens, split);
    return result;
  }
}

Evaluation EvaluateWindows(model::ParallelModel& model, const data::TokenFile& tokens,
                           data::Split split, std::span<const data::Sample> windows,
                           const EvaluationOptions& options) {
  const Evaluation result = RunWindows(model, tokens, split, options, [&] {
    Selection selection;
    selection.count = selection.all = std::ssize(windows);
    const Part mine =
        PartOf(selection.count, model.Grid().Coordinates().data, model.Grid().Shape().data);
    selection.share.assign(windows.begin() + mine.begin, windows.begin() + mine.end);
    return selection;
  });
  RequireLoss(result, tokens, split);
  return result;
}

Evaluation EvaluatePairs(model::ParallelModel& model, const data::PairFile& pairs,
                         data::Split split, const EvaluationOptions& options) {
  return Run(model, false, options,
             [&] { return std::make_unique<PairRounds>(model, pairs, split, options); });
}

}  // namespace trireme::train
