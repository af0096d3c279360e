// Tokens of the small run with a mask of the loss and with documents.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_MASKED_TOKENS_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_MASKED_TOKENS_HPP_

#include <cstdint>

#include "small_run.hpp"

namespace trireme::test {

// Very uneven: a window of the first third has at most one target that counts, one of the last
// third nearly all of them. Data ranks and context ranks then hold different counts.
inline void AddLossMask(data::TokenData& data) {
  for (std::size_t split = 0; split < data.tokens.size(); ++split) {
    const std::int64_t count = std::ssize(data.tokens[split]);
    for (std::int64_t t = 0; t < count; ++t) {
      const bool counts = 3 * t < count ? t % 11 == 5 : 3 * t < 2 * count ? t % 5 < 2 : t % 13 != 0;
      data.counted[split].push_back(counts ? 1 : 0);
    }
  }
}

// Documents of one to nine tokens, of which windows hold several, one, or a part.
inline void AddDocuments(data::TokenData& data) {
  for (std::size_t split = 0; split < data.tokens.size(); ++split) {
    std::int64_t length = 4;
    for (std::int64_t at = 0; at < std::ssize(data.tokens[split]); at += length) {
      data.documents[split].push_back(at);
      length = 1 + (length * 5 + at) % 9;
    }
  }
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_MASKED_TOKENS_HPP_
