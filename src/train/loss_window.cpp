// LossWindow: mean and deviation anew for each loss, in the order of the steps, so that a resumed
// run gets the same bits.
#include "trireme/train/loss_window.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::train {

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

}  // namespace trireme::train
