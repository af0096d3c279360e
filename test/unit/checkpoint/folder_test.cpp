// The folder of checkpoints, and when one is written.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <set>

#include "checkpoint_fixture.hpp"
#include "folder.hpp"
#include "folders.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/options.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The folder of checkpoints: finding, links, pruning, leftovers of killed runs, and a full disk.

class Folder : public testing::Test {
 protected:
  void Save(std::int64_t step, bool best = false, std::int64_t keep = 0) {
    TestState model(SmallModel()), none({});
    model.Fill();
    Write(self_, checkpoints_, step, {model.Blocks(), none.Blocks(), {{"step", step}}}, best, keep);
  }
  // Makes a checkpoint one of an older version, which does not say when it was written, and lets it
  // have been written so many seconds ago.
  void MakeOlder(const std::string& name, int seconds) {
    const std::string path = checkpoints_ + "/" + name;
    nlohmann::json run = nlohmann::json::parse(ReadBytes(path + "/run.json"));
    run.erase("sequence");
    const std::string text = run.dump();
    WriteBytes(path + "/run.json", text);
    Checksums sums = ReadChecksums(path);
    const std::int64_t bytes = std::ssize(text);
    sums[kRunFile] = {bytes, {{0, bytes, Hash(text.data(), bytes)}}};
    WriteBytes(path + "/checksums.json", ChecksumsText(sums));
    fs::last_write_time(path + "/run.json",
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  std::set<std::string> Names() {
    std::set<std::string> names;
    for (const auto& item : fs::directory_iterator(checkpoints_)) {
      names.insert(item.path().filename());
    }
    return names;
  }
  std::string Complaint(const std::string& path) {
    const Error error = Caught([&] { Find(self_, path); });
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  TemporaryFolder run_;
  std::string checkpoints_ = run_ / "checkpoints";
};

TEST_F(Folder, FindsTheNewestCompleteOne) {
  Save(9);
  Save(100);
  const std::string newest = checkpoints_ + "/step_00000100";
  EXPECT_EQ(Find(self_, run_.Path()), newest);
  EXPECT_EQ(Find(self_, run_.Path() + "/"), newest);
  EXPECT_EQ(Find(self_, checkpoints_), newest);
  EXPECT_EQ(Find(self_, checkpoints_ + "/step_00000009/"), checkpoints_ + "/step_00000009");
  EXPECT_EQ(Find(self_, checkpoints_ + "/latest"), fs::canonical(newest).string());

  fs::resize_file(newest + "/optimizer.safetensors", 5);
  fs::create_directory(checkpoints_ + "/step_00000200.tmp");
  fs::create_directory(checkpoints_ + "/step_00000300");
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000009");
}

// A run continued from step 3 abandons step 5: what it writes next is what -r must find.
TEST_F(Folder, FindsTheLastWrittenNotTheHighest) {
  Save(5);
  Save(3);
  Save(4);
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000004");
  // A run killed before it moved the link has lost nothing.
  fs::remove(checkpoints_ + "/latest");
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000004");
  fs::create_symlink("step_00000005", checkpoints_ + "/latest");
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000004");
  // A clock that was set back changes nothing.
  fs::last_write_time(checkpoints_ + "/step_00000004/run.json",
                      fs::file_time_type::clock::now() - std::chrono::hours(1000));
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000004");
}

// Checkpoints of older versions: the link, then the time of writing.
TEST_F(Folder, FindsTheLastWrittenOfAnOlderVersion) {
  for (const std::int64_t step : {5, 3, 4}) Save(step);
  MakeOlder("step_00000003", 10);
  MakeOlder("step_00000004", 20);
  MakeOlder("step_00000005", 30);
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000004");
  fs::remove(checkpoints_ + "/latest");
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000003");
  Save(1);
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000001");
}

TEST_F(Folder, FindSaysWhatItFound) {
  EXPECT_THAT(Complaint(run_ / "nowhere"), HasSubstr("nowhere: no such folder"));
  WriteBytes(run_ / "file", "x");
  EXPECT_THAT(Complaint(run_ / "file"), HasSubstr("is not a folder"));
  EXPECT_THAT(Complaint(run_.Path()), HasSubstr("looked for step_NNNNNNNN with model.safetensors"));
  EXPECT_THAT(Complaint(run_.Path()), HasSubstr("found nothing of that name"));

  Save(9);
  fs::remove(checkpoints_ + "/step_00000009/run.json");
  fs::create_directory(checkpoints_ + "/step_00000010.tmp");
  const std::string text = Complaint(run_.Path());
  EXPECT_THAT(text, HasSubstr(checkpoints_ + ": holds no complete checkpoint"));
  EXPECT_THAT(text, HasSubstr("found step_00000009: it lacks run.json"));
  EXPECT_THAT(text, HasSubstr("found step_00000010.tmp: it is unfinished"));
  EXPECT_THAT(Complaint(checkpoints_ + "/step_00000009"),
              HasSubstr("is not a complete checkpoint: it lacks run.json"));
  EXPECT_THAT(Complaint(checkpoints_ + "/step_00000010.tmp"), HasSubstr("it is unfinished"));
}

TEST_F(Folder, LinksAreRelativeAndMove) {
  Save(1, true);
  Save(2, false);
  EXPECT_EQ(fs::read_symlink(checkpoints_ + "/latest"), "step_00000002");
  EXPECT_EQ(fs::read_symlink(checkpoints_ + "/best"), "step_00000001");
  Save(3, true);
  EXPECT_EQ(fs::read_symlink(checkpoints_ + "/best"), "step_00000003");
}

TEST_F(Folder, PrunesAllButTheNewestAndTheBest) {
  Save(1, true, 2);
  for (std::int64_t step = 2; step <= 5; ++step) Save(step, false, 2);
  EXPECT_THAT(Names(),
              ElementsAre("best", "latest", "step_00000001", "step_00000004", "step_00000005"));
  Save(3, false, 1);  // a lower step, but the last one written
  EXPECT_THAT(Names(), ElementsAre("best", "latest", "step_00000001", "step_00000003"));
  Save(6, true, 1);
  EXPECT_THAT(Names(), ElementsAre("best", "latest", "step_00000006"));
  for (std::int64_t step = 7; step <= 9; ++step) Save(step, false, 0);
  EXPECT_EQ(Names().size(), 6u) << "0 keeps all";
}

// A run that went back to step 2 while 10 and 12 exist: what it writes from then on is the newest,
// whatever the clock says.
TEST_F(Folder, PruningFollowsTheOrderOfWriting) {
  for (const std::int64_t step : {2, 10, 12}) Save(step, false, 3);
  Save(4, false, 2);
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000004", "step_00000012"));
  fs::last_write_time(checkpoints_ + "/step_00000004/run.json",
                      fs::file_time_type::clock::now() - std::chrono::hours(1000));
  Save(6, false, 2);
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000004", "step_00000006"));
  Save(4, false, 2);  // written anew
  Save(5, false, 2);
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000004", "step_00000005"));
}

TEST_F(Folder, PruningOfAnOlderVersionFollowsTheTime) {
  for (const std::int64_t step : {2, 10, 12}) Save(step);
  MakeOlder("step_00000002", 10);
  MakeOlder("step_00000010", 30);
  MakeOlder("step_00000012", 20);
  Save(4, false, 2);
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000002", "step_00000004"));
}

// A path in the deck may hold any bytes; they must not end a run at its first checkpoint.
TEST_F(Folder, RunJsonTakesAnyBytes) {
  Write(self_, checkpoints_, 1, {{}, {}, {{"output", "runs/caf\xe9"}}}, false, 0);
  EXPECT_EQ(ReadRun(self_, Find(self_, run_.Path()))["output"], "runs/caf\xEF\xBF\xBD");
}

TEST_F(Folder, ForbiddenFoldersAreTheUsersError) {
  Save(9);
  const std::string checkpoint = checkpoints_ + "/step_00000009";
  const auto complaint = [&](const std::string& closed, const std::string& path) {
    const Locked locked(closed, 0);
    EXPECT_TRUE(locked.Good());
    return Complaint(path);
  };
  fs::permissions(run_.Path(), fs::perms::all);
  EXPECT_THAT(complaint(checkpoint, checkpoint), HasSubstr(": Permission denied"));
  EXPECT_THAT(complaint(checkpoints_, checkpoints_), HasSubstr(": Permission denied"));
  EXPECT_THAT(complaint(checkpoints_, run_.Path()), HasSubstr(": Permission denied"));
  EXPECT_THAT(complaint(run_.Path(), run_.Path()), HasSubstr(": Permission denied"));
  EXPECT_THAT(complaint(run_.Path(), checkpoints_), HasSubstr(": Permission denied"));
  EXPECT_THAT(complaint(run_.Path(), checkpoints_ + "/latest"), HasSubstr(": Permission denied"));
}

// A local checkpoint that took an unreadable folder for a new run would seem older than the rest.
TEST_F(Folder, OnlyAMissingFolderHasNoSequence) {
  EXPECT_EQ(LastSequence(checkpoints_), 0);
  Save(9);
  Save(7);
  EXPECT_EQ(LastSequence(checkpoints_), 2);
  const Locked locked(checkpoints_, 0);
  EXPECT_TRUE(locked.Good());
  const auto look = [&] { self_.Together([&] { LastSequence(checkpoints_); }); };
  EXPECT_THAT(Caught(look).what(), HasSubstr(": Permission denied"));
}

TEST_F(Folder, PruningTouchesCheckpointsOnly) {
  fs::create_directories(checkpoints_ + "/step_00000001");  // someone's, incomplete
  fs::create_directories(checkpoints_ + "/step_one");
  WriteBytes(checkpoints_ + "/notes.txt", "mine");
  Save(2, false, 1);
  Save(3, false, 1);
  EXPECT_THAT(Names(),
              ElementsAre("latest", "notes.txt", "step_00000001", "step_00000003", "step_one"));
}

TEST_F(Folder, LeftoversOfKilledRunsGo) {
  Save(1);
  fs::create_directory(checkpoints_ + "/step_00000005.tmp");
  WriteBytes(checkpoints_ + "/step_00000005.tmp/model.safetensors", "half");
  fs::create_directory(checkpoints_ + "/step_00000006.tmp");
  fs::create_directory(checkpoints_ + "/step_00000001.old");
  fs::create_symlink("step_00000001", checkpoints_ + "/latest.tmp");
  Save(5);
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000001", "step_00000005"));
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000005");
}

TEST_F(Folder, KilledReplacementIsNotLost) {
  Save(1);
  fs::rename(checkpoints_ + "/step_00000001", checkpoints_ + "/step_00000001.old");
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000001.old");
  Save(2);
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000001", "step_00000002"));
  EXPECT_EQ(Find(self_, checkpoints_ + "/step_00000001"), checkpoints_ + "/step_00000001");
}

// Killed after the new name was given and before the old one went; then the new one was damaged.
TEST_F(Folder, ReplacedOneStaysUntilItsSuccessorIsWhole) {
  Save(15);
  const std::string path = checkpoints_ + "/step_00000015";
  fs::copy(path, path + ".old");
  fs::resize_file(path + "/model.safetensors", fs::file_size(path + "/model.safetensors") - 1);
  EXPECT_THAT(RemoveLeftovers(checkpoints_), ElementsAre());
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000015", "step_00000015.damaged"));
  EXPECT_EQ(WhyIncomplete(path), "");
  EXPECT_EQ(Find(self_, run_.Path()), path);
  // Neither is whole: no folder is in the way of the next checkpoint of the step.
  fs::copy(path, path + ".old");
  fs::remove(path + "/run.json");
  fs::remove(path + ".old/run.json");
  Save(15);
  EXPECT_EQ(Find(self_, run_.Path()), path);
}

// A file whose size is that of checksums.json, but whose text ends before: it has shrunk meanwhile,
// or is one of a system that tells no sizes.
TEST_F(Folder, ShrunkRunJsonIsIncomplete) {
  const std::string liar = "/sys/kernel/uevent_seqnum";
  std::error_code error;
  const auto size = static_cast<std::int64_t>(fs::file_size(liar, error));
  const std::int64_t text = std::ssize(ReadBytes(liar));
  if (error || text == 0 || text >= size) GTEST_SKIP() << "SKIPPED: no such file here: " << liar;
  Save(1);
  const std::string path = checkpoints_ + "/step_00000001";
  fs::remove(path + "/run.json");
  fs::create_symlink(liar, path + "/run.json");
  Checksums sums = ReadChecksums(path);
  sums[kRunFile] = {size, {{0, size, 0}}};
  WriteBytes(path + "/checksums.json", ChecksumsText(sums));
  EXPECT_EQ(WhyIncomplete(path), fmt::format("run.json has {} bytes instead of {}", text, size));
}

TEST_F(Folder, DamagedRunJsonIsPassedOver) {
  Save(1);
  Save(2);
  const std::string path = checkpoints_ + "/step_00000002/run.json";
  std::string text = ReadBytes(path);
  text.at(text.size() / 2) ^= 1;
  WriteBytes(path, text);
  const Choice choice = Locate(run_.Path());
  EXPECT_THAT(choice.candidates, ElementsAre(checkpoints_ + "/step_00000001"));
  EXPECT_THAT(choice.others, ElementsAre("step_00000002: run.json is damaged"));
  EXPECT_FALSE(choice.Unstarted());
  fs::remove_all(checkpoints_ + "/step_00000001");
  EXPECT_FALSE(Locate(run_.Path()).Unstarted()) << "a damaged one is not nothing";
}

TEST_F(Folder, SetAsideIsOutOfTheWay) {
  Save(1);
  Save(2);
  const std::string aside = SetAside(checkpoints_ + "/step_00000002");
  EXPECT_EQ(aside, checkpoints_ + "/step_00000002.damaged");
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000001");
  Save(2);
  EXPECT_EQ(SetAside(checkpoints_ + "/step_00000002"), checkpoints_ + "/step_00000002.damaged2");
  for (std::int64_t step = 3; step <= 5; ++step) Save(step, false, 1);
  EXPECT_TRUE(fs::exists(aside)) << "neither pruned nor a leftover";
}

TEST_F(Folder, OnlyUnfinishedOnesMeanUnstarted) {
  fs::create_directories(checkpoints_ + "/step_00000010.tmp");
  EXPECT_TRUE(Locate(run_.Path()).Unstarted());
  EXPECT_TRUE(Locate(run_.Path()).candidates.empty());
  fs::create_directories(checkpoints_ + "/step_00000010");
  EXPECT_FALSE(Locate(run_.Path()).Unstarted());
}

TEST_F(Folder, EveryNthStepStays) {
  TestState model(SmallModel()), none({});
  for (std::int64_t step = 1; step <= 9; ++step) {
    Writer writer(self_, {model.Blocks(), none.Blocks()}, {});
    writer.Begin({.folder = checkpoints_,
                  .step = step,
                  .run = {},
                  .retention = {.keep = 1, .keep_every_steps = 4}});
    EXPECT_EQ(writer.Finish().failure, "");
  }
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000004", "step_00000008", "step_00000009"));
}

TEST_F(Folder, UnwritableFolderIsNamed) {
  WriteBytes(run_ / "checkpoints", "a file in the way");
  const Error error = Caught([&] { Save(1); });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), HasSubstr(checkpoints_));
}

TEST_F(Folder, FullDiskLeavesTheOldCheckpoint) {
  SmallDisk disk(checkpoints_, "1m");
  if (!disk.Mounted()) GTEST_SKIP() << disk.Reason();
  Save(1);
  const std::vector<TestTensor> tensors = {{"fits", {1000}}, {"large", {2'000'000}}};
  TestState large(tensors);
  large.Fill();
  // The second file is the one that does not fit.
  TestState small(SmallModel());
  const Error error = Caught([&] {
    Write(self_, checkpoints_, 2, {small.Blocks(), large.Blocks(), {}}, true, 1);
  });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(
      error.what(),
      HasSubstr("step_00000002.tmp/optimizer.safetensors: cannot be reserved: No space left "
                "on device: the checkpoint needs 7.6 MiB, 1.0 MiB free on " +
                checkpoints_));
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000001"));
  TestState back(SmallModel());
  ReadTensors(self_, Find(self_, run_.Path()), "model", back.Blocks());
  EXPECT_EQ(back.Wrong(), 0);
}

TEST_F(Folder, FullDiskForTheSmallFilesToo) {
  SmallDisk disk(checkpoints_, "1m");
  if (!disk.Mounted()) GTEST_SKIP() << disk.Reason();
  Save(1);
  // Tensors fill all but some pages; run.json is then what does not fit.
  TestState model({{"w", {200'000}}}), none({});
  model.Fill();
  const nlohmann::json run = {{"deck", std::string(400'000, 'x')}};
  const Error error = Caught([&] {
    Write(self_, checkpoints_, 2, {model.Blocks(), none.Blocks(), run}, true, 1);
  });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), HasSubstr("run.json: cannot be written at offset"));
  EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
  EXPECT_THAT(Names(), ElementsAre("latest", "step_00000001"));
}

TEST_F(Folder, FileSystemsThatReserveNothingAndCountNoBlocks) {
  fs::create_directories(checkpoints_);
  if (mount("ramfs", checkpoints_.c_str(), "ramfs", 0, "") != 0) {
    GTEST_SKIP() << "SKIPPED: no ramfs can be mounted here: " << std::strerror(errno);
  }
  EXPECT_EQ(FreeBytes(checkpoints_), -1);
  bool held = true;
  EXPECT_EQ(Reserve(checkpoints_ + "/file", 5000, held), 0);
  EXPECT_FALSE(held);
  EXPECT_EQ(fs::file_size(checkpoints_ + "/file"), 5000u);
  Save(1);
  EXPECT_EQ(Find(self_, run_.Path()), checkpoints_ + "/step_00000001");
  umount2(checkpoints_.c_str(), MNT_DETACH);
}

TEST(StepNames, OnlyExactOnesCount) {
  EXPECT_EQ(StepName(1200), "step_00001200");
  EXPECT_EQ(ParseStepName("step_00001200"), 1200);
  EXPECT_EQ(ParseStepName(StepName(123'456'789)), 123'456'789);
  for (const char* name :
       {"step_1200", "step_00001200.tmp", "step_0000120x", "latest", "step_", ""}) {
    EXPECT_EQ(ParseStepName(name), std::nullopt) << name;
  }
}

TEST(Declaration, KeysHaveTheirDefaults) {
  deck::Schema schema;
  Declare(schema);
  const auto fallback = [&](const char* name) {
    const deck::Key* key = schema.Find(name);
    return key == nullptr ? "undeclared" : key->fallback;
  };
  EXPECT_EQ(fallback("checkpoint.every_steps"), "500");
  EXPECT_EQ(fallback("checkpoint.every_minutes"), "0");
  EXPECT_EQ(fallback("checkpoint.keep"), "2");
  EXPECT_EQ(fallback("checkpoint.best"), "yes");
  EXPECT_EQ(fallback("checkpoint.start_from"), "");
}

// Daly's interval between checkpoints against his figures and against the exact optimum.

// Expected time of a run with mean time between failures 1, per unit of work and up to a factor
// that the interval does not change (Daly 2006, the complete cost function): e^(R/M) M Ts is left
// out.
double ExpectedTime(double interval, double cost) { return std::expm1(interval + cost) / interval; }

// Least expected time over all intervals, by golden-section search: the function has one minimum.
double LeastExpectedTime(double cost) {
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double low = 1e-6, high = 10;
  while (high - low > 1e-9) {
    const double left = high - ratio * (high - low), right = low + ratio * (high - low);
    (ExpectedTime(left, cost) < ExpectedTime(right, cost) ? high : low) =
        ExpectedTime(left, cost) < ExpectedTime(right, cost) ? right : left;
  }
  return ExpectedTime((low + high) / 2, cost);
}

TEST(Interval, IsThatOfDalysFigures) {
  // Figures 3 to 5: a checkpoint takes 5 minutes; in minutes, to the digits stated there.
  EXPECT_NEAR(YoungDaly(5 * 60, 24 * 3600) / 60, 117, 0.5);
  EXPECT_NEAR(YoungDaly(5 * 60, 6 * 3600) / 60, 57, 0.5);
  EXPECT_NEAR(YoungDaly(5 * 60, 15 * 60) / 60, 9.1, 0.05);
}

TEST(Interval, IsTheFormula) {
  // Worked by hand: C = 2, M = 100, C / 2M = 0.01: 20 (1 + 0.1 / 3 + 0.01 / 9) - 2.
  EXPECT_NEAR(YoungDaly(2, 100), 20 * (1 + 0.1 / 3 + 0.01 / 9) - 2, 1e-12);
  EXPECT_EQ(YoungDaly(200, 100), 100);
  EXPECT_EQ(YoungDaly(1e6, 100), 100);
  // The unit of time is free.
  EXPECT_NEAR(YoungDaly(60, 86400), 86400 * YoungDaly(60.0 / 86400, 1), 1e-6);
}

// The estimate leaves out terms of order (C / 2M)^(3/2) of the interval, 1% at C = 0.1 M, and the
// expected time changes only with the square of the interval's error: less than 1e-3 throughout.
TEST(Interval, CostsNoMoreThanTheOptimum) {
  constexpr double kTolerance = 1e-3;
  constexpr int kPointsADecade = 10;
  for (int point = 0; point <= 4 * kPointsADecade; ++point) {
    const double cost = 1e-5 * std::pow(10.0, static_cast<double>(point) / kPointsADecade);
    const double least = LeastExpectedTime(cost);
    const double time = ExpectedTime(YoungDaly(cost, 1), cost);
    EXPECT_GE(time, least * (1 - 1e-12)) << cost;
    EXPECT_LE(time, least * (1 + kTolerance)) << cost;
  }
}

TEST(Interval, RefusesWhatGivesNone) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -1.0, nan, infinity}) {
    EXPECT_THROW(YoungDaly(bad, 1), Error);
    EXPECT_THROW(YoungDaly(1, bad), Error);
  }
}

}  // namespace
}  // namespace trireme::checkpoint::test
