// Losses of the tokens of a step or an evaluation, on the host, and their exact sum.
#ifndef TRIREME_MODEL_TOKEN_LOSSES_HPP_
#define TRIREME_MODEL_TOKEN_LOSSES_HPP_

#include <cstdint>

#include "trireme/base/exact_sum.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::model {

class TokenLosses {
 public:
  // most: tokens at once; 0: no loss is computed here.
  TokenLosses(const device::Stream& stream, std::int64_t most);

  // Begins anew: losses of `tokens` tokens will be copied. copy (or null): [tokens], filled by Sum.
  // Throws RunError if there is no room for as many.
  void Expect(std::int64_t tokens, double* copy);
  // Address of a token's loss, in host memory that a GPU copies to; null: none is computed here.
  double* At(std::int64_t token) const;
  // In nats. The first call after Expect waits for the stream.
  const ExactSum& Sum();

 private:
  device::Stream stream_;
  std::int64_t most_;
  std::int64_t tokens_ = 0;
  double* copy_ = nullptr;
  bool known_ = false;
  ExactSum sum_;                  // if known_
  device::PinnedBuffer storage_;  // [most_] doubles
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_TOKEN_LOSSES_HPP_
