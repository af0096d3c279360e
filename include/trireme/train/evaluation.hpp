// Evaluation: the loss of a model over all targets of a split, each counted once, or over given
// windows, on any number of ranks. LossWindow finds spikes of the training loss.
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

// A loss far above those of the steps before it.
struct Spike {
  double loss = 0;
  double mean = 0, deviation = 0;  // of the window; deviation: at least kLeastDeviation |mean|
  double score = 0;                // (loss - mean) / deviation
};

// Finds spikes: compares each loss with those of the steps before it.
class LossWindow {
 public:
  // Lower limit of the deviation, as a fraction of the mean: after equal losses, a rounding error
  // must not count as a spike.
  static constexpr double kLeastDeviation = 1e-3;

  // window: losses to compare with; 0: no loss is a spike. threshold: a spike's score exceeds this.
  LossWindow(std::int64_t window, double threshold);

  // Takes the loss of the next step. Returns a spike if the window is full and the score exceeds
  // the threshold. A spike enters the window as the loss at the threshold: so one spike does not
  // hide the next, and losses that stay high count as spikes for a few steps only. Losses that are
  // not finite are ignored. Allocates nothing.
  std::optional<Spike> Take(double loss);

  // The losses in the window, the oldest first: the whole state, for Restore.
  const std::vector<double>& Losses() const { return losses_; }
  // Sets the window to `losses`, or to the last of them if there are more than it holds.
  void Restore(const std::vector<double>& losses);

 private:
  std::size_t window_ = 0;
  double threshold_ = 0;
  std::vector<double> losses_;
};

// Which windows are evaluated, and callbacks.
struct EvaluationOptions {
  // Tokens from one window's beginning to the next one's, at most their length; 0: the length.
  // If windows overlap, each target counts once, in the first window that contains it. Then every
  // target outside the split's first window has at least length - stride tokens before it.
  std::int64_t stride = 0;
  // Most windows to evaluate, a random sample that depends on `seed` alone; 0: all windows. If no
  // target of the sample counts, its size is doubled until some do.
  std::int64_t windows = 0;
  std::uint32_t seed = 0;
  // Asked before every round of micro-batches: whether this rank wants to stop. All ranks stop if
  // one wants to. All ranks pass a function, or none does.
  std::function<bool()> stop = {};
  // Called for every target that counts, on one of the ranks that compute its loss. token: the
  // target's offset in the split. loss: in nats. All ranks pass a function, or none does.
  std::function<void(std::int64_t token, double loss)> visit = {};
};

struct Evaluation {
  double loss = 0;  // nats per token, mean over the targets that count
  double nats = 0;  // sum over the targets that count
  std::int64_t targets = 0;
  std::int64_t windows = 0;      // windows or pairs that were evaluated
  std::int64_t all_windows = 0;  // windows or pairs in the split
  double seconds = 0;
  bool stopped = false;  // ended early: `loss` and `nats` are NaN, `targets` is 0
};
// Evaluates a split. Collective over the model's grid; the windows are spread over the data ranks.
// In every layout each target counts once, except those excluded by the loss mask or, if the
// model's plan says so, by document masks. Throws AgreedError: with exit code 2 if no target
// counts, or if document masks lack the split's documents; with code 1 if a rank cannot read a
// stream.
Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split,
                    const EvaluationOptions& options = {});

// The same for given windows, equal on all ranks, none longer than the model's. Of `options`, only
// stop and visit are used.
Evaluation EvaluateWindows(model::ParallelModel& model, const data::TokenFile& tokens,
                           data::Split split, std::span<const data::Sample> windows,
                           const EvaluationOptions& options = {});

// The same for an encoder-decoder, with teacher forcing: each target token is predicted from the
// true tokens before it. Pairs longer than the model takes are left out. Of `options`, only windows
// (a number of pairs), seed and stop are used. The result counts pairs as windows.
Evaluation EvaluatePairs(model::ParallelModel& model, const data::PairFile& pairs,
                         data::Split split, const EvaluationOptions& options = {});

}  // namespace trireme::train
