// The view for terminals of all sizes.
#include "run_state.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "folder_test.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tools {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class LayoutTest : public test::FolderTest {
 protected:
  // A run with records of all kinds.
  void Make(const std::string& name) {
    std::filesystem::create_directories(In(name));
    std::string text;
    for (int step = 1; step <= 60; ++step) {
      text += fmt::format(
          "{{\"kind\":\"step\",\"step\":{},\"epoch\":0.5,\"loss\":{},\"step_seconds\":1.0,"
          "\"tokens_per_second\":2000.0,\"roof_fraction\":0.5}}\n",
          step, 6.0 - 0.01 * step);
    }
    text +=
        "{\"kind\":\"interval\",\"step\":60,\"memory_bytes\":1048576,\"memory_rank\":1,"
        "\"joules\":5000.0,\"watts_per_node\":350.0}\n"
        "{\"kind\":\"valid\",\"step\":60,\"loss\":5.5,\"step_seconds\":0.0}\n"
        "{\"kind\":\"event\",\"event\":\"checkpoint\",\"step\":50,\"text\":\"one\"}\n"
        "{\"kind\":\"event\",\"event\":\"bad step\",\"step\":55,\"text\":\"two\"}\n";
    test::WriteBytes(In(name) + "/metrics.jsonl", text);
    test::WriteBytes(In(name) + "/deck.in", "[schedule]\nsteps = 100\n");
    runs_.emplace_back(In(name)).ReadOn(60);
    runs_.back().name = name;
  }
  std::vector<std::string> Show(int rows, int columns, std::int64_t first = 0) {
    std::vector<const FollowedRun*> shown;
    for (const FollowedRun& run : runs_) shown.push_back(&run);
    std::vector<std::string> texts;
    const std::int64_t now = runs_.empty() ? 0 : runs_.front().file.ModifiedAt() + 3;
    for (const Row& row :
         LayOut(shown, {.rows = rows, .columns = columns, .first = first, .now = now})) {
      texts.push_back(row.text);
    }
    return texts;
  }

  std::deque<FollowedRun> runs_;
};

TEST_F(LayoutTest, OneRunShowsAll) {
  Make("a");
  const auto rows = Show(24, 80);
  ASSERT_EQ(rows.size(), 9U);
  EXPECT_EQ(rows[0], "a: running, step 60 of 100 (60%), epoch 0.50");
  EXPECT_THAT(rows[1], StartsWith("loss    5.4000  █"));
  EXPECT_EQ(rows[2], "speed   2,000 tokens/s, roof 50%, 1 s a step, left 0:40");
  EXPECT_EQ(rows[3], "valid   5.5000 at step 60, best 5.5000 at step 60");
  EXPECT_EQ(rows[4], "memory  1.0 MiB a rank at most (rank 1)");
  EXPECT_EQ(rows[5], "energy  350 W a node, 5.00 kJ");
  EXPECT_EQ(rows[6], "event   step 55: bad step, two");
  EXPECT_EQ(rows[7], "        step 50: checkpoint, one");
  EXPECT_EQ(rows[8], "q ends");
}

TEST_F(LayoutTest, EverySizeIsKept) {
  for (const char* name : {"a", "b", "c", "d", "e"}) Make(name);
  for (int rows = 1; rows <= 60; ++rows) {
    for (const int columns : {1, 5, 20, 80, 300}) {
      for (const std::int64_t first : {0, 2, 4, 9}) {
        const auto shown = Show(rows, columns, first);
        EXPECT_LE(std::ssize(shown), rows);
        EXPECT_FALSE(shown.empty());
      }
    }
  }
}

TEST_F(LayoutTest, ManyRunsTakeARowEachAndCanBeMovedThrough) {
  for (const char* name : {"a", "b", "c", "d", "e"}) Make(name);
  auto rows = Show(4, 120);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_THAT(rows[0], StartsWith("a: running, step 60 of 100 (60%), loss 5.4000, valid 5.5000"));
  EXPECT_THAT(rows[2], StartsWith("c: "));
  EXPECT_EQ(rows[3], "q ends; arrows move through the runs, 1 to 3 of 5");
  rows = Show(4, 120, 99);
  EXPECT_THAT(rows[0], StartsWith("c: "));
  EXPECT_EQ(rows[3], "q ends; arrows move through the runs, 3 to 5 of 5");
}

TEST_F(LayoutTest, ARunWithoutRecords) {
  std::filesystem::create_directory(In("a"));
  test::WriteBytes(In("a") + "/deck.in", "");
  runs_.emplace_back(In("a")).ReadOn(1);
  EXPECT_THAT(Show(24, 80)[0], HasSubstr("no records yet"));
  EXPECT_THAT(Show(2, 80)[0], HasSubstr("no records yet"));
}

TEST_F(LayoutTest, AFileThatIsGoneKeepsWhatItSaid) {
  Make("a");
  std::filesystem::remove(In("a") + "/metrics.jsonl");
  runs_.front().ReadOn(1);
  const auto rows = Show(24, 80);
  EXPECT_EQ(rows[0], "a: metrics.jsonl is gone, step 60 of 100 (60%), epoch 0.50");
  EXPECT_EQ(rows.size(), 9U);
}

TEST_F(LayoutTest, APathThatIsNotThereIsRefused) {
  try {
    const FollowedRun run(In("nowhere\x1b[2J"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr("nowhere�[2J: no such run folder"));
  }
}

}  // namespace
}  // namespace trireme::tools
