// Tokens that go to the token file while texts are encoded: the same bytes as without, not before
// splits are sure of their documents, and the temporary files give their space back.
#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "encoder.hpp"
#include "text_fixture.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class EarlyCopies : public Texts {
 protected:
  // Documents of train alone, in units of about ten.
  TextPlan Lines(int documents) {
    std::string text;
    for (int i = 0; i < documents; ++i) text += "document " + std::to_string(i * 7919) + "\n";
    TextPlan plan;
    plan.files = FindTextFiles(Write("lines", text), Split::kTrain);
    plan.document = DocumentEnd::kLine;
    plan.unit_bytes = 170;
    plan.encode.eos = {256};
    return plan;
  }
  TextPlan WithHeldOut(TextPlan plan) {
    const TextPlan other = PlanOf(plan.files.at(0).path);
    plan.files = other.files;
    return plan;
  }
  TextTokens Watched(const TextPlan& plan, const TextWatch& watch) {
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    return TokenizeTexts(self, tokenizer, plan, In("a.h5"), watch);
  }
  // The file's bytes, and whether tokens were copied early.
  std::pair<std::string, bool> Bytes(const TextPlan& plan) {
    const bool early = Run(plan).early;
    return {test::ReadBytes(In("a.h5")), early};
  }
  void ExpectSame(TextPlan plan, bool early) {
    const auto one = Bytes(plan);
    EXPECT_EQ(one.second, early);
    plan.early_tokens = kNever;
    const auto other = Bytes(plan);
    EXPECT_FALSE(other.second);
    EXPECT_TRUE(one.first == other.first) << "another file than without";
  }

  // Disk space of open files of the folder that have no name any more, in bytes.
  std::int64_t NamelessSpace() const {
    std::int64_t space = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      struct stat status {};
      const std::string target = fs::read_symlink(entry.path(), ignored).string();
      if (!target.starts_with(folder_) || ::stat(entry.path().c_str(), &status) != 0) continue;
      if (status.st_nlink == 0) space += status.st_blocks * 512;
    }
    return space;
  }
};

TEST_F(EarlyCopies, TheFileIsTheSame) {
  TextPlan plan = Lines(2'000);
  ExpectSame(WithHeldOut(plan), true);
  plan.encode.valid_fraction = 0.3;
  plan.encode.test_fraction = 0.3;
  ExpectSame(plan, true);
  plan.encode.masks = true;
  ExpectSame(plan, true);
  plan.unit_bytes = kUnitBytes;
  ExpectSame(plan, true);
}

// Ids of four bytes.
class WideTokenizer : public ByteTokenizer {
 public:
  std::int64_t VocabularySize() const override { return 70'000; }
};

TEST_F(EarlyCopies, TheFileIsTheSameWithWideIds) {
  TextPlan plan = Lines(2'000);
  plan.encode.valid_fraction = plan.encode.test_fraction = 0.1;
  WideTokenizer wide;
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  EXPECT_TRUE(TokenizeTexts(self, wide, plan, In("a.h5"), {}).early);
  plan.early_tokens = kNever;
  TokenizeTexts(self, wide, plan, In("b.h5"), {});
  EXPECT_TRUE(test::ReadBytes(In("a.h5")) == test::ReadBytes(In("b.h5")));
}

TEST_F(EarlyCopies, FewTokensAreCopiedInTheEnd) {
  ExpectSame(WithHeldOut(Lines(20)), false);
  TextPlan plan = WithHeldOut(Lines(1'000));
  plan.early_tokens = 1'000'000;
  ExpectSame(plan, false);
}

// HDF5 puts train's tokens elsewhere than it was expected to: all is encoded once more.
TEST_F(EarlyCopies, AnotherPlaceIsSeen) {
  TextPlan plan = WithHeldOut(Lines(1'000));
  plan.early_shift = 64;
  double last = 0;
  int falls = 0;
  const TextWatch watch{.progress = [&](double share, std::int64_t) {
    falls += share < last ? 1 : 0;
    last = share;
  }};
  EXPECT_FALSE(Watched(plan, watch).early);
  EXPECT_EQ(falls, 1);
  EXPECT_FALSE(fs::exists(In("a.h5.tmp")));
  ExpectSame(plan, false);
}

// Tokens are in the file long before the last unit is encoded.
TEST_F(EarlyCopies, TheFileGrowsMeanwhile) {
  const TextPlan plan = WithHeldOut(Lines(20'000));
  std::uintmax_t half = 0;  // bytes of the file when half is encoded
  const TextWatch watch{.progress = [&](double share, std::int64_t) {
    if (share < 0.5) half = fs::file_size(In("a.h5.tmp"));
  }};
  const TextTokens done = Watched(plan, watch);
  EXPECT_TRUE(done.early);
  EXPECT_GT(half, static_cast<std::uintmax_t>(done.texts[0].tokens[0]) * 2 * 4 / 10);
}

TEST_F(EarlyCopies, TemporaryFilesGiveTheirSpaceBack) {
  Spill spill(folder_);
  const std::string text(3'000'000, 'x');
  spill.Append(text.data(), text.size());
  std::string read(text.size(), '\0');
  spill.Read(0, read.data(), read.size());
  EXPECT_EQ(read, text);
  const std::int64_t before = NamelessSpace();
  spill.Release(1'000, 2'001'000);
  if (NamelessSpace() == before) GTEST_SKIP() << "a file system without holes";
  EXPECT_LT(NamelessSpace(), before - 1'900'000);
  // Neighbours of the released bytes stay, and appending goes on.
  spill.Append("yz", 2);
  read.resize(999'002);
  spill.Read(2'001'000, read.data(), read.size());
  EXPECT_EQ(read, text.substr(2'001'000) + "yz");
  read.resize(1'000);
  spill.Read(0, read.data(), read.size());
  EXPECT_EQ(read, text.substr(0, 1'000));
}

// With splits by hash as well, the temporary files never hold all tokens.
TEST_F(EarlyCopies, TemporaryFilesStaySmall) {
  TextPlan plan = Lines(400'000);
  plan.unit_bytes = 400'000;
  plan.encode.valid_fraction = 0.05;
  std::int64_t most = 0;
  const TextWatch watch{
      .progress = [&](double, std::int64_t) { most = std::max(most, NamelessSpace()); }};
  plan.early_tokens = kNever;
  plan.files.push_back(FindTextFiles(Write("held_out", "xy"), Split::kTest).at(0));
  Watched(plan, watch);
  const std::int64_t without = most;
  most = 0;
  plan.early_tokens = kEarlyTokens;
  EXPECT_TRUE(Watched(plan, watch).early);
  EXPECT_LT(most, without / 2);
}

// A split that hashes leave empty to the end: nothing may be copied, its document could move.
TEST_F(EarlyCopies, NotBeforeSplitsAreFilled) {
  TextPlan plan = Lines(2'000);
  plan.early_tokens = 0;
  plan.encode.valid_fraction = plan.encode.test_fraction = 1e-9;
  ExpectSame(plan, false);
  plan.encode.test_fraction = 0;
  plan.files.push_back(FindTextFiles(Write("held_out", "xy"), Split::kTest).at(0));
  ExpectSame(plan, false);
  plan.encode.valid_fraction = 0.003;  // about 6 documents
  ExpectSame(plan, true);
}

TEST_F(EarlyCopies, AStoppedJobLeavesNothing) {
  TextPlan plan = WithHeldOut(Lines(2'000));
  int asked = 0;
  Watched(plan, {.stop = [&] { return ++asked < 0; }});
  fs::remove(In("a.h5"));
  for (int last = asked; last > 0; last -= 7) {
    int left = last;
    const TextWatch watch{.stop = [&] { return --left == 0; }};
    EXPECT_THAT(MessageOf([&] { Watched(plan, watch); }, ExitCode::kFailed),
                testing::HasSubstr("stopped by a signal"));
    const fs::directory_iterator files(folder_);
    EXPECT_EQ(std::distance(begin(files), end(files)), 2) << "stopped at question " << last;
  }
}

// While a job encodes, another one leaves its file alone, and fails.
TEST_F(EarlyCopies, AnotherJobsFileIsNotTaken) {
  TextPlan plan = WithHeldOut(Lines(2'000));
  const auto alone = Bytes(plan).first;
  std::string message;
  const TextWatch watch{.progress = [&](double share, std::int64_t) {
    if (share < 0.5 || !message.empty()) return;
    ByteTokenizer other;
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    message = MessageOf([&] { TokenizeTexts(self, other, plan, In("a.h5"), {}); });
  }};
  Watched(plan, watch);
  EXPECT_THAT(message, testing::HasSubstr("a.h5: another job is writing this file"));
  EXPECT_TRUE(test::ReadBytes(In("a.h5")) == alone);
}

TEST_F(EarlyCopies, AFaultLeavesNothing) {
  TextPlan plan = Lines(2'000);
  plan.files.push_back(FindTextFiles(Write("bad", "good\n\xFF"), Split::kTest).at(0));
  EXPECT_THAT(MessageOf([&] { Run(plan); }), testing::HasSubstr("bad: byte 0xff at offset 5"));
  const fs::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);
}

}  // namespace
}  // namespace trireme::data
