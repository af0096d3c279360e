// TokenLosses: host memory to which kernels copy the losses of tokens, and their sum.
#include "trireme/model/token_losses.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"

namespace trireme::model {

TokenLosses::TokenLosses(const device::Stream& stream, std::int64_t most)
    : stream_(stream), most_(most) {
  if (most_ == 0) return;
  storage_ =
      device::AllocatePinned(most_ * static_cast<std::int64_t>(sizeof(double)), stream_.Where());
}

void TokenLosses::Expect(std::int64_t tokens, double* copy) {
  if (most_ > 0 && tokens > most_) {
    throw RunError("more tokens at once than a model was planned for", "This is a bug in Trireme.");
  }
  tokens_ = most_ > 0 ? tokens : 0;
  copy_ = copy;
  known_ = false;
}

double* TokenLosses::At(std::int64_t token) const {
  return most_ == 0 ? nullptr : static_cast<double*>(storage_.get()) + token;
}

const ExactSum& TokenLosses::Sum() {
  if (known_) return sum_;
  known_ = true;
  sum_ = {};
  if (tokens_ == 0) return sum_;
  device::Synchronise(stream_);
  const auto* losses = static_cast<const double*>(storage_.get());
  for (std::int64_t i = 0; i < tokens_; ++i) sum_.Add(losses[i]);
  if (copy_ != nullptr) std::copy_n(losses, tokens_, copy_);
  return sum_;
}

}  // namespace trireme::model
