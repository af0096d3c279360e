// Search for spikes of the loss: how far a loss lies above those of the steps before it. Pure.
#ifndef TRIREME_TRAIN_LOSS_WINDOW_HPP_
#define TRIREME_TRAIN_LOSS_WINDOW_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::train {

// A loss far above those before it.
struct Spike {
  double loss = 0;
  double mean = 0, deviation = 0;  // of the window; the deviation that `score` is counted in
  double score = 0;                // (loss - mean) / deviation
};

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

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_LOSS_WINDOW_HPP_
