// Losses of trained weights: every target of a split once, or those of given windows, on any number
// of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "trireme/data/pairs.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::train {

// A loss far above those before it.
struct Spike {
  double loss = 0;
  double mean = 0, deviation = 0;  // of the window; the deviation that `score` is counted in
  double score = 0;                // (loss - mean) / deviation
};

// Looks for spikes of the loss: how far a loss lies above those of the steps before it. Pure.
class LossWindow {
 public:
  // Least deviation that a score is counted in, as a part of the mean: losses that are all the same
  // make no spike of a rounding error.
  static constexpr double kLeastDeviation = 1e-3;

  // window: losses that it holds; 0: none is ever a spike. threshold: of the score.
  LossWindow(std::int64_t window, double threshold);

  // Takes the loss of the next step. Returns a spike once the window is full and the score is above
  // the threshold. A spike enters the window with the loss at the threshold, so that one spike does
  // not hide the next one, and losses that stay high are spikes for few steps only. A loss that is
  // not finite is passed over. Allocates nothing.
  std::optional<Spike> Take(double loss);

  // All that later answers depend on: losses in the window, the oldest first.
  const std::vector<double>& Losses() const { return losses_; }
  // Goes on from there; of more losses than the window holds, the last ones.
  void Restore(const std::vector<double>& losses);

 private:
  std::size_t window_ = 0;
  double threshold_ = 0;
  std::vector<double> losses_;
};

// Windows of an evaluation, and functions that follow it.
struct EvaluationOptions {
  // Tokens between the beginnings of neighbouring windows, at most their length; 0: the length.
  // Windows that overlap count each target once, in the first one that holds it, so that all but
  // those of the split's first window have at least length - stride tokens before them.
  std::int64_t stride = 0;
  // At most as many, a sample by `seed` alone, twice as large as often as no target in it counts;
  // 0: all.
  std::int64_t windows = 0;
  std::uint32_t seed = 0;
  // Whether this rank wishes to stop, asked before every round of micro-batches; all ranks pass one
  // or none does. They agree, and all stop if one wishes it.
  std::function<bool()> stop = {};
  // Called for every target that counts, on one of the ranks that compute its loss: its offset in
  // the split, and its loss in nats. All ranks pass one or none does.
  std::function<void(std::int64_t token, double loss)> visit = {};
};

struct Evaluation {
  double loss = 0;  // nats per token, mean over the targets that count
  double nats = 0;  // sum over these targets
  std::int64_t targets = 0;
  std::int64_t windows = 0;      // evaluated
  std::int64_t all_windows = 0;  // of the split
  double seconds = 0;
  bool stopped = false;  // before the end: `loss` and `nats` are not numbers, `targets` 0
};
// Collective over the model's grid. The split's windows are spread over the data ranks; every
// target counts once, whatever the layout, but those that a mask leaves out: of the loss, and of
// documents as the model's plan says. Throws AgreedError (exit code 2) if none is left, and for
// document masks without the split's documents; exit code 1 if a rank cannot read the windows of a
// stream.
Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split,
                    const EvaluationOptions& options = {});

// The same for given windows, equal on all ranks, each at most as long as the model's. Uses the
// options stop and visit alone.
Evaluation EvaluateWindows(model::ParallelModel& model, const data::TokenFile& tokens,
                           data::Split split, std::span<const data::Sample> windows,
                           const EvaluationOptions& options = {});

// The same for a model that translates, with teacher forcing: each target token after those before
// it. Leaves out pairs that are longer than the model takes. Uses the options windows (pairs), seed
// and stop. The result counts pairs as windows.
Evaluation EvaluatePairs(model::ParallelModel& model, const data::PairFile& pairs,
                         data::Split split, const EvaluationOptions& options = {});

}  // namespace trireme::train
