// The parts of a writer: rounds, positioned files, what is read back, the thread, and an
// asynchronous checkpoint of a state that changes at once.
#include "trireme/checkpoint/writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "checkpoint_fixture.hpp"
#include "folder.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "worker.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

// The error that `body` throws on this rank alone.
Error Thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return RunError("nothing");
}

// A plan of one file with segments of these lengths, held by these ranks of the group in turn.
WritePlan PlanOf(const std::vector<std::int64_t>& lengths, int ranks) {
  WritePlan plan;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    plan.segments.push_back({plan.layout.bytes, lengths[i], 0});
    plan.layout.bytes += lengths[i];
    plan.holders.push_back(static_cast<int>(i) % ranks);
  }
  return plan;
}

TEST(Rounds, TakeEachSegmentOfTheGroupOnce) {
  const std::vector<WritePlan> plans = {PlanOf({90, 10, 30, 30, 30, 200, 5, 5}, 3),
                                        PlanOf({40, 40, 40}, 3)};
  const std::vector<Round> rounds = PlanRounds(plans, 100);
  std::set<std::pair<std::size_t, std::size_t>> seen;
  for (const Round& round : rounds) {
    std::int64_t place = 0;
    for (const StagedSegment& staged : round.segments) {
      EXPECT_EQ(staged.place, place);
      EXPECT_EQ(staged.member, plans[staged.file].holders[staged.segment]);
      const std::pair next(staged.file, staged.segment);
      EXPECT_TRUE(seen.empty() || *seen.rbegin() < next);
      seen.insert(next);
      place += plans[staged.file].segments[staged.segment].length;
    }
    EXPECT_EQ(round.bytes, place);
    EXPECT_TRUE(place <= 100 || round.segments.size() == 1);
  }
  EXPECT_EQ(seen.size(), 11u);
  EXPECT_EQ(LargestRound(rounds), 200);
}

class PositionedFiles : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::string path_ = folder_ / "file";
};

TEST_F(PositionedFiles, ReadWhatWasWritten) {
  WriteBytes(path_, "0123456789");
  {
    PositionedFile file(path_, PositionedFile::Access::kWrite, ExitCode::kFailed);
    file.Write("abc", 3, 8);
    EXPECT_EQ(file.Size(), 11);
    file.Sync();
    file.ForgetCopies(file.Size(), 0);
    file.Close();
  }
  const PositionedFile file(path_, PositionedFile::Access::kRead, ExitCode::kBadInput);
  std::string back(5, ' ');
  file.Read(back.data(), 5, 6);
  EXPECT_EQ(back, "67abc");
  const Error error = Thrown([&] { file.Read(back.data(), 5, 7); });
  EXPECT_EQ(error.Code(), ExitCode::kBadInput);
  EXPECT_EQ(error.what(), path_ + ": cannot be read at offset 11: the file ends there");
}

// A planted link cannot lead elsewhere.
TEST_F(PositionedFiles, WritingFollowsNoLink) {
  WriteBytes(folder_ / "victim", "precious");
  fs::create_symlink("victim", path_);
  EXPECT_THROW(PositionedFile(path_, PositionedFile::Access::kWrite, ExitCode::kFailed), Error);
  EXPECT_THROW(WriteTextDurably(path_, "x"), Error);
  bool held = true;
  EXPECT_NE(Reserve(path_, 5, held), 0);
  EXPECT_NE(Reserve(path_, 5, held, true), 0);
  EXPECT_EQ(ReadBytes(folder_ / "victim"), "precious");
}

// A file system that cannot reserve: the file has its length, the disk has not.
TEST_F(PositionedFiles, FullDiskTellsWhere) {
  SmallDisk disk(folder_ / "disk", "1m");
  if (!disk.Mounted()) GTEST_SKIP() << disk.Reason();
  const std::string path = folder_ / "disk/file";
  WriteBytes(path, "");
  fs::resize_file(path, 3'000'000);
  const PositionedFile file(path, PositionedFile::Access::kWrite, ExitCode::kFailed);
  const std::string data(3'000'000, 'x');
  const Error error = Thrown([&] { file.Write(data.data(), std::ssize(data), 0); });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), HasSubstr(path + ": cannot be written at offset 1048576: No space"));
}

TEST_F(PositionedFiles, LongFilesAreNotReadWhole) {
  WriteBytes(path_, std::string(1000, 'x'));
  EXPECT_EQ(ReadText(path_, 1000).size(), 1000u);
  EXPECT_THAT(Thrown([&] { ReadText(path_, 999); }).what(), HasSubstr("longer than 999 bytes"));
}

TEST_F(PositionedFiles, AFileInTheWayOfTheFolderIsNamed) {
  WriteBytes(path_, "");
  for (const std::string& folder : {path_ + "/d", path_}) {
    const Order order{.folder = folder, .step = 1, .run = {}};
    EXPECT_THAT(Thrown([&] { Prepare(order, {}, {}); }).what(), HasSubstr("cannot be created"));
  }
}

// Bytes that change between writing and reading back: the file is written to a second time, unknown
// to the output.
TEST_F(PositionedFiles, WhatDoesNotReadBackIsNoCheckpoint) {
  WritePlan plan = PlanOf({60, 40}, 1);
  plan.file = "model.safetensors";
  plan.layout.entries = {{"weight", "F32", {10}, 60, 40}};
  const std::string data(60, 'x');
  for (Segment& segment : plan.segments) segment.hash = Hash(data.data(), segment.length);
  const std::vector<WritePlan> plans = {plan};
  const std::vector<Round> rounds = PlanRounds(plans, 100);
  const Order order{.folder = folder_.Path(), .step = 3, .run = {}};
  EXPECT_EQ(Prepare(order, plans, {}).sequence, 1);
  Output output(order, plans);
  output.Write({.file = 0, .segment = 0}, data.data());
  output.Write({.file = 0, .segment = 1}, data.data());
  output.Flush(false);
  const std::string path = TemporaryOf(order) + "/model.safetensors";
  PositionedFile(path, PositionedFile::Access::kWrite, ExitCode::kFailed).Write("y", 1, 99);
  output.ReadBack(rounds.front().segments, [] { return false; });
  const Error error = Thrown([&] { output.Verify(rounds); });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), HasSubstr(path + ": tensor weight: bytes 60 to 100 are damaged"));
  EXPECT_THAT(error.what(), HasSubstr("what was written does not read back"));
}

TEST(Workers, RunTasksInOrder) {
  Worker worker({});
  worker.Start();
  std::string order;
  for (const char letter : {'a', 'b', 'c'}) worker.Queue([&, letter] { order += letter; });
  worker.Finish();
  EXPECT_EQ(order, "abc");
  EXPECT_TRUE(worker.Idle());
}

TEST(Workers, DropWhatFollowsAFailure) {
  Worker worker({});
  worker.Start();
  bool ran = false;
  worker.Queue([] { throw RunError("first"); });
  worker.Queue([&] { ran = true; });
  EXPECT_EQ(std::string(Thrown([&] { worker.Finish(); }).what()), "first");
  EXPECT_FALSE(ran);
  worker.Queue([&] { ran = true; });  // taken: the next order begins anew
  worker.Finish();
  EXPECT_TRUE(ran);
}

TEST(Hashers, KeepRoundsBackUntilTheyAreReleased) {
  std::vector<WritePlan> plans = {PlanOf({8, 8, 8}, 1)};
  const std::vector<Round> rounds = PlanRounds(plans, 8);
  const std::vector<std::uint64_t> state = {1, 2, 3};
  const auto data = [&](const StagedSegment& staged) { return &state[staged.segment]; };
  const auto hash = [&](std::size_t segment) { return plans[0].segments[segment].hash; };
  Hasher hasher({}, plans);
  hasher.Start();
  hasher.Queue(rounds[0], data);
  hasher.Await();
  EXPECT_EQ(hash(0), Hash(&state[0], 8));

  hasher.HoldBack();
  hasher.Queue(rounds[1], data);
  hasher.Await();
  EXPECT_EQ(hash(1), 0U);
  hasher.Release();
  hasher.Queue(rounds[2], data);  // no longer held back
  hasher.Await();
  EXPECT_EQ(hash(1), Hash(&state[1], 8));
  EXPECT_EQ(hash(2), Hash(&state[2], 8));
}

TEST(Hashers, DropWhatAFailedCheckpointHeldBack) {
  std::vector<WritePlan> plans = {PlanOf({8, 8}, 1)};
  const std::vector<Round> rounds = PlanRounds(plans, 8);
  const std::vector<std::uint64_t> state = {1, 2};
  const auto data = [&](const StagedSegment& staged) { return &state[staged.segment]; };
  Hasher hasher({}, plans);
  hasher.Start();
  hasher.HoldBack();
  hasher.Queue(rounds[0], data);
  hasher.HoldBack();  // the next one
  hasher.Queue(rounds[1], data);
  hasher.Release();
  hasher.Await();
  EXPECT_EQ(plans[0].segments[0].hash, 0U);
  EXPECT_EQ(plans[0].segments[1].hash, Hash(&state[1], 8));
}

TEST(Workers, EndWithoutTheTasksThatWait) {
  std::atomic<bool> second = false;
  {
    Worker worker({});
    worker.Start();
    worker.Queue([&] {
      while (!worker.Stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    worker.Queue([&] { second = true; });
  }
  EXPECT_FALSE(second);
}

class Asynchronous : public testing::Test {
 protected:
  comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  TemporaryFolder folder_;
};

// Bytes on the disk are the state at Begin, and the same as a synchronous checkpoint's.
TEST_F(Asynchronous, TakesTheStateAsItWas) {
  TestState model(SmallModel()), moments(Moments(SmallModel()));
  model.Fill();
  moments.Fill();
  const std::string whole = folder_ / "whole", behind = folder_ / "behind";
  Write(self_, whole, 7, {model.Blocks(), moments.Blocks(), {{"step", 7}}}, true, 0);

  Writer writer(self_, {model.Blocks(), moments.Blocks()}, {.async = true});
  for (const std::int64_t step : {7, 8}) {
    model.Fill();
    moments.Fill();
    writer.Begin({.folder = behind, .step = step, .run = {{"step", step}}, .best = true});
    EXPECT_TRUE(writer.UnderWay());
    for (const kernels::StateBlock& block : model.Blocks()) {
      std::memset(block.data, 0xFF,
                  static_cast<std::size_t>(block.end - block.begin) * SizeOf(block.dtype));
    }
    const Outcome outcome = writer.Finish();
    EXPECT_EQ(outcome.failure, "");
    EXPECT_EQ(outcome.step, step);
    EXPECT_GT(outcome.bytes, 0);
    EXPECT_FALSE(writer.UnderWay());
  }
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "run.json"}) {
    EXPECT_EQ(ReadBytes(whole + "/step_00000007/" + file),
              ReadBytes(behind + "/step_00000007/" + file))
        << file;
  }
  EXPECT_EQ(ReadBytes(whole + "/step_00000007/checksums.json"),
            ReadBytes(behind + "/step_00000007/checksums.json"));
  EXPECT_EQ(Find(self_, behind), behind + "/step_00000008");
}

TEST_F(Asynchronous, FailureIsToldAndTheNextOneWorks) {
  TestState model(SmallModel()), none({});
  model.Fill();
  Writer writer(self_, {model.Blocks(), none.Blocks()}, {.async = true});
  const std::string checkpoints = folder_ / "checkpoints";
  WriteBytes(checkpoints, "a file in the way");
  writer.Begin({.folder = checkpoints, .step = 1, .run = {}});
  EXPECT_THAT(writer.Finish().failure, HasSubstr(checkpoints));
  fs::remove(checkpoints);
  int asked = 0;  // at the begin, before the name is given, before the clean-up
  writer.Begin({.folder = checkpoints, .step = 2, .run = {}, .may_publish = [&] {
                  if (++asked == 2) throw RunError("the run is another's for a moment");
                }});
  EXPECT_EQ(writer.Finish().failure, "the run is another's for a moment");
  EXPECT_TRUE(fs::is_empty(checkpoints)) << "nothing unfinished is left";
  writer.Begin({.folder = checkpoints, .step = 3, .run = {}});
  EXPECT_EQ(writer.Finish().failure, "");
  TestState back(SmallModel());
  ReadTensors(self_, Find(self_, checkpoints), "model", back.Blocks());
  EXPECT_EQ(back.Wrong(), 0);
}

// A run that is another job's: what lies in its folder is that job's.
TEST_F(Asynchronous, TouchesNothingInAFolderThatIsAnothers) {
  TestState model(SmallModel()), none({});
  model.Fill();
  Writer writer(self_, {model.Blocks(), none.Blocks()}, {});
  const auto foreign = [&](const char* name) {
    WriteBytes(folder_ / (std::string(name) + "/file"), "theirs");
  };
  for (const char* name : {"step_00000001.tmp", "step_00000009.tmp"}) {
    fs::create_directory(folder_ / name);
    foreign(name);
  }
  int asked = 0;
  const auto order = [&](std::int64_t step, int from) {
    asked = 0;
    writer.Begin({.folder = folder_.Path(), .step = step, .run = {}, .may_publish = [&, from] {
                    if (++asked >= from) throw RunError("the run is another's");
                  }});
    return writer.Finish().failure;
  };
  EXPECT_EQ(order(1, 1), "the run is another's");
  EXPECT_EQ(ReadBytes(folder_ / "step_00000001.tmp/file"), "theirs");
  EXPECT_EQ(ReadBytes(folder_ / "step_00000009.tmp/file"), "theirs");
  fs::remove_all(folder_ / "step_00000001.tmp");
  EXPECT_EQ(order(2, 2), "the run is another's");
  EXPECT_TRUE(fs::exists(folder_ / "step_00000002.tmp")) << "it may be that job's by now";
  EXPECT_EQ(order(2, 4), "") << "the next session removes it";
  EXPECT_FALSE(fs::exists(folder_ / "step_00000002.tmp"));
}

// State that is not in the host's memory comes through a function.
TEST_F(Asynchronous, ReadsBlocksThroughAFunction) {
  TestState model(SmallModel()), none({});
  model.Fill();
  std::vector<kernels::StateBlock> elsewhere = model.Blocks();
  const std::vector<kernels::StateBlock> here = elsewhere;
  for (kernels::StateBlock& block : elsewhere) block.data = &block;  // must not be read
  const ReadBlock read = [&](const kernels::StateBlock& block, std::int64_t first,
                             std::int64_t last, void* to) {
    for (const kernels::StateBlock& each : here) {
      if (each.name != block.name) continue;
      const std::size_t size = SizeOf(each.dtype);
      std::memcpy(to, static_cast<const char*>(each.data) + first * size,
                  static_cast<std::size_t>(last - first) * size);
    }
  };
  for (const bool async : {false, true}) {
    Writer writer(self_, {elsewhere, none.Blocks(), read}, {.async = async});
    writer.Begin({.folder = folder_.Path(), .step = 1, .run = {}});
    EXPECT_EQ(writer.Finish().failure, "");
    TestState back(SmallModel());
    ReadTensors(self_, Find(self_, folder_.Path()), "model", back.Blocks());
    EXPECT_EQ(back.Wrong(), 0);
  }
}

// Files that cannot be tidied up are told, and the checkpoint stands.
TEST_F(Asynchronous, FailedCleanUpIsAWarning) {
  TestState model(SmallModel()), none({});
  model.Fill();
  Writer writer(self_, {model.Blocks(), none.Blocks()}, {});
  for (std::int64_t step = 1; step <= 2; ++step) {
    writer.Begin({.folder = folder_.Path(), .step = step, .run = {}});
    EXPECT_EQ(writer.Finish().failure, "");
  }
  // A folder that holds a mount point cannot be removed, whoever asks.
  SmallDisk disk(folder_ / "step_00000001/mounted", "1m");
  if (!disk.Mounted()) GTEST_SKIP() << disk.Reason();
  writer.Begin({.folder = folder_.Path(), .step = 3, .run = {}, .retention = {.keep = 1}});
  const Outcome outcome = writer.Finish();
  EXPECT_EQ(outcome.failure, "");
  EXPECT_THAT(outcome.warnings, testing::Contains(HasSubstr("step_00000001")));
  EXPECT_FALSE(fs::exists(folder_ / "step_00000002")) << "the others go all the same";
  EXPECT_EQ(Find(self_, folder_.Path()), folder_ / "step_00000003");
}

}  // namespace
}  // namespace trireme::checkpoint::test
