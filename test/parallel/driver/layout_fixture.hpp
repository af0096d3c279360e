// Shared by the tests of layouts: the ranks, tokens in memory, and a small model as a deck's text.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_LAYOUT_FIXTURE_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_LAYOUT_FIXTURE_HPP_

#include <gtest/gtest.h>

#include <string>

#include "deck_run.hpp"
#include "small_run.hpp"

namespace trireme::test {

// More tokens than the small run has: long windows, and many of them.
inline data::TokenData ManyTokens() {
  constexpr std::int64_t kMany = 1500;
  data::TokenData data = SyntheticTokens();
  std::int64_t token = 5;
  for (std::int64_t i = kTokens; i < kMany; ++i) {
    data.tokens[0].push_back(static_cast<std::int32_t>(token));
    token = (token * 5 + i % 7) % kVocabulary;
  }
  return data;
}

class LayoutTest : public testing::Test {
 protected:
  explicit LayoutTest(const data::TokenData& tokens = ManyTokens())
      : world_(World()), self_(comm::Communicator::Adopt(MPI_COMM_SELF)), tokens_(world_, tokens) {}

  comm::Communicator world_, self_;
  data::TokenFile tokens_;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_LAYOUT_FIXTURE_HPP_
