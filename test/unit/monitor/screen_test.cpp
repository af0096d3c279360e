// The live line of a terminal and its absence from a batch log.
#include "table.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

namespace trireme::report {
namespace {

TEST(Screen, BatchLogHasNoLiveLine) {
  Screen screen(false);
  EXPECT_FALSE(screen.WantsLive());
  testing::internal::CaptureStdout();
  screen.Line("one");
  screen.Line("two\nthree");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "one\ntwo\nthree\n");
}

TEST(Screen, LiveLineIsClearedBeforeARealOne) {
  testing::internal::CaptureStdout();
  {
    Screen screen(true);
    EXPECT_TRUE(screen.WantsLive());
    EXPECT_FALSE(screen.WantsLive()) << "two live lines within 0.2 s";
    screen.Live("live");
    screen.Line("real");
    screen.Live(std::string(500, 'x'));
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "\r\x1b[Klive\r\x1b[Kreal\n\r\x1b[K" + std::string(79, 'x') + "\r\x1b[K");
}

TEST(Screen, OutlivesItsReader) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  std::fflush(stdout);
  const int kept = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  close(ends[0]);
  {
    Screen screen(false);
    screen.Line("nobody reads this");  // SIGPIPE would end the test
    screen.Line("nor this");
  }
  dup2(kept, STDOUT_FILENO);
  close(kept);
  SUCCEED();
}

}  // namespace
}  // namespace trireme::report
