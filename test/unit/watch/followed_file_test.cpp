// A followed file under all that happens to a run's records.
#include "run_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "folder_test.hpp"

namespace trireme::tools {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using State = FollowedFile::State;

class FollowedFileTest : public test::FolderTest {
 protected:
  void Append(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::app) << text;
  }
  // Reads all that is there; the lines of this call.
  std::vector<std::string> Read() {
    lines_.clear();
    const FollowedFile::Visit visit{
        .line = [this](std::string_view line) { lines_.emplace_back(line); },
        .restart = [this] { ++restarts_; }};
    do {
      state_ = file_.Read(visit);
    } while (state_ == State::kBehind);
    return lines_;
  }

  const std::string path_ = In("metrics.jsonl");
  FollowedFile file_{path_};
  std::vector<std::string> lines_;
  State state_ = State::kMissing;
  int restarts_ = 0;
};

TEST_F(FollowedFileTest, AppendedLinesComeOnce) {
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_EQ(state_, State::kMissing);
  Append("a\nb\n");
  EXPECT_THAT(Read(), ElementsAre("a", "b"));
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_EQ(state_, State::kCaughtUp);
  Append("c\n\nd\n");
  EXPECT_THAT(Read(), ElementsAre("c", "", "d"));
  EXPECT_EQ(restarts_, 0);
}

TEST_F(FollowedFileTest, ATornLineWaitsForItsEnd) {
  Append("a\n{\"kin");
  EXPECT_THAT(Read(), ElementsAre("a"));
  Append("d\":1");
  EXPECT_THAT(Read(), IsEmpty());
  Append("}\nb\n");
  EXPECT_THAT(Read(), ElementsAre("{\"kind\":1}", "b"));
}

TEST_F(FollowedFileTest, AReplacedFileBeginsAnew) {
  Append("a\nb\nc\n");
  Read();
  test::WriteBytes(In("new"), "a\nb\nd\ne\n");
  std::filesystem::rename(In("new"), path_);
  EXPECT_THAT(Read(), ElementsAre("a", "b", "d", "e"));
  EXPECT_EQ(restarts_, 1);
}

TEST_F(FollowedFileTest, ACutFileBeginsAnew) {
  Append("a\nb\nc\n");
  Read();
  std::filesystem::resize_file(path_, 2);
  EXPECT_THAT(Read(), ElementsAre("a"));
  EXPECT_EQ(restarts_, 1);
  std::filesystem::resize_file(path_, 0);
  EXPECT_THAT(Read(), IsEmpty());
  Append("x\n");
  EXPECT_THAT(Read(), ElementsAre("x"));
  EXPECT_EQ(restarts_, 2);
}

TEST_F(FollowedFileTest, AFileRewrittenInItsPlaceIsNoticed) {
  Append("a\nb\nc\n");
  Read();
  test::WriteBytes(path_, "a\nx\ny\nz\n");  // longer than what was read
  EXPECT_THAT(Read(), ElementsAre("a", "x", "y", "z"));
  EXPECT_EQ(restarts_, 1);
  test::WriteBytes(path_, "a\nx\nY\nz\n");  // as long
  EXPECT_THAT(Read(), ElementsAre("a", "x", "Y", "z"));
}

TEST_F(FollowedFileTest, AVanishedFileMayComeBack) {
  Append("a\nb\n");
  Read();
  std::filesystem::rename(path_, In("away"));
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_EQ(state_, State::kMissing);
  std::filesystem::rename(In("away"), path_);
  Append("c\n");
  EXPECT_THAT(Read(), ElementsAre("c"));
  EXPECT_EQ(restarts_, 0);
  std::filesystem::remove(path_);
  Read();
  Append("n\n");  // perhaps with the same inode
  EXPECT_THAT(Read(), ElementsAre("n"));
  EXPECT_EQ(restarts_, 1);
}

TEST_F(FollowedFileTest, ALineWithoutEndTakesNoMemory) {
  std::string begin = "a\n";
  begin.append(FollowedFile::kMaxLine + 10, 'x');
  Append(begin);
  EXPECT_THAT(Read(), ElementsAre("a"));
  Append("xxx\nb\n");
  EXPECT_THAT(Read(), ElementsAre("", "b"));
  Append(std::string(FollowedFile::kMaxLine, 'y') + "\n");
  ASSERT_EQ(Read().size(), 1U);
  EXPECT_EQ(std::ssize(lines_[0]), FollowedFile::kMaxLine);
}

TEST_F(FollowedFileTest, ALineThatSpansReadings) {
  std::string all;
  for (int i = 0; i < 1'000'000; ++i) all += std::to_string(i) + "\n";
  Append(all);
  const auto lines = Read();
  ASSERT_EQ(lines.size(), 1'000'000U);
  for (std::size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i], std::to_string(i));
}

TEST_F(FollowedFileTest, NoFile) {
  std::filesystem::create_directory(path_);
  Read();
  EXPECT_EQ(state_, State::kUnreadable);
  EXPECT_EQ(file_.Reason(), "Is a directory");
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  Read();  // and does not wait for a writer
  EXPECT_EQ(state_, State::kUnreadable);
}

}  // namespace
}  // namespace trireme::tools
