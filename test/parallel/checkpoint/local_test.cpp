// Local checkpoints on six ranks, whose hosts are names with a folder each: any host may be lost,
// and what is restored is what was written, wherever its parts lie now.
#include "trireme/checkpoint/local.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint_fixture.hpp"
#include "folders.hpp"
#include "local_file.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using trireme::test::FullDisk;
using Hosts = std::vector<std::string>;

const Hosts kThree = {"a", "a", "a", "b", "b", "c"};
constexpr const char* kRun = "00112233445566aa";

// One tensor of two segments among small ones; each step has other values.
std::vector<TestTensor> Model(std::int64_t step) {
  std::vector<TestTensor> tensors = SmallModel();
  tensors.insert(tensors.begin() + 1, {"large.weight", {600, 1001}, Dtype::kFloat64, 0.25});
  for (TestTensor& tensor : tensors) tensor.scale *= static_cast<double>(step);
  return tensors;
}

class Local : public testing::Test {
 protected:
  using Part = TestState::Part;
  // Ways to hold the tensors, by name.
  std::vector<std::pair<std::string, TestState::Split>> Splits() const {
    const std::int64_t rank = world_.Rank(), size = world_.Size();
    return {{"replicas",
             [=](std::int64_t, std::int64_t n) {
               return Part{0, n, 0, 1};
             }},
            {"shards",
             [=](std::int64_t, std::int64_t n) {
               return Part{n * rank / size, n * (rank + 1) / size, 0, 1};
             }},
            {"replicas within hosts and across",
             [=](std::int64_t, std::int64_t n) {
               return Part{n * (rank / 2) / (size / 2), n * (rank / 2 + 1) / (size / 2), 0, 1};
             }},
            {"stages", [=](std::int64_t tensor, std::int64_t n) {
               return tensor % size == rank ? Part{0, n, 0, 1} : Part{0, 0, 0, 1};
             }}};
  }
  TestState::Split Shards() const { return Splits()[1].second; }

  std::string FolderOf(const std::string& host) const { return path_ + "/" + host; }
  std::string Mine(const Hosts& hosts) const {
    return FolderOf(hosts[static_cast<std::size_t>(world_.Rank())]);
  }
  LocalRun Run(const Hosts& hosts, const std::string& session = "1") const {
    return {.folder = Mine(hosts), .id = kRun, .session = session};
  }
  // Collective. Writes these steps; returns the last outcome.
  LocalOutcome Write(const TestState::Split& split, const Hosts& hosts,
                     const std::vector<std::int64_t>& steps, std::int64_t sequence = 1) {
    LocalOutcome last;
    TestState model(Model(1), split), moments(Moments(Model(1)), split);
    LocalWriter writer({world_, comm::Hosts(hosts)}, {model.Blocks(), moments.Blocks()}, Run(hosts),
                       {});
    for (const std::int64_t step : steps) {
      TestState now(Model(step), split), moments_now(Moments(Model(step)), split);
      now.Fill();
      moments_now.Fill();
      Copy(now, model);
      Copy(moments_now, moments);
      last = writer.Write(step, sequence, {{"step", step}});
    }
    return last;
  }
  static void Copy(TestState& from, TestState& to) {
    const auto source = from.Blocks(), target = to.Blocks();
    for (std::size_t i = 0; i < source.size(); ++i) {
      const auto count = static_cast<std::size_t>(source[i].end - source[i].begin);
      if (count > 0) std::memcpy(target[i].data, source[i].data, count * SizeOf(source[i].dtype));
    }
  }
  LocalSearch Find(const Hosts& hosts, const RunFolderCheckpoint& newest = {0, 0, "0"}) const {
    return FindLocal({world_, comm::Hosts(hosts)}, Run(hosts), newest);
  }
  // Collective. Expects the state of that step, bit by bit. Returns the bytes from other hosts.
  std::int64_t ExpectState(const LocalSearch& search, std::int64_t step,
                           const TestState::Split& split, const Hosts& hosts) {
    EXPECT_NE(search.found, nullptr)
        << (search.passed_over.empty() ? "" : search.passed_over.front().second);
    if (search.found == nullptr) return 0;
    EXPECT_EQ(search.found->Step(), step);
    EXPECT_EQ(search.found->Run().at("step"), step);
    TestState model(Model(step), split), moments(Moments(Model(step)), split);
    std::int64_t moved = search.found->Read({world_, comm::Hosts(hosts)}, "model", model.Blocks());
    moved += search.found->Read({world_, comm::Hosts(hosts)}, "optimizer", moments.Blocks());
    EXPECT_EQ(model.Wrong(), 0);
    EXPECT_EQ(moments.Wrong(), 0);
    return moved;
  }
  void OnRoot(const std::function<void()>& body) const {
    world_.Barrier();
    if (world_.IsRoot()) body();
    world_.Barrier();
  }
  void Lose(const std::string& host) const {
    OnRoot([&] { fs::remove_all(FolderOf(host)); });
  }
  std::string PathOf(const std::string& host, const LocalName& name) const {
    return LocalFolder(FolderOf(host), kRun) + "/" + FileName(name);
  }
  void Flip(const std::string& path, std::int64_t at) const {
    OnRoot([&] {
      std::string bytes = ReadBytes(path);
      ASSERT_GT(std::ssize(bytes), at) << path;
      bytes[static_cast<std::size_t>(at)] ^= 1;
      WriteBytes(path, bytes);
    });
  }
  std::vector<std::string> Names(const std::string& host) const {
    return ListLocal(LocalFolder(FolderOf(host), kRun));
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const SharedFolder folder_{world_};
  const std::string path_ = folder_.Path();
};

TEST_F(Local, AnyOneHostMayBeLost) {
  for (const auto& [name, split] : Splits()) {
    for (const std::string lost : {"", "a", "b", "c"}) {
      SCOPED_TRACE(name + " without " + lost);
      Write(split, kThree, {2, 4});
      Lose(lost.empty() ? "nothing" : lost);
      const LocalSearch search = Find(kThree);
      EXPECT_TRUE(search.passed_over.empty());
      const std::int64_t moved = ExpectState(search, 4, split, kThree);
      EXPECT_EQ(moved > 0, !lost.empty() && !(name == "stages" && lost == "c"))
          << "the rank of the last host has no stage";
      for (const char* host : {"a", "b", "c"}) Lose(host);
    }
  }
}

TEST_F(Local, WhatOtherHostsHoldIsNotCopied) {
  TestState whole(Model(1)), moments(Moments(Model(1)));
  std::int64_t bytes = CopyBytes(whole.Blocks()) + CopyBytes(moments.Blocks());
  LocalOutcome outcome = Write(Splits()[0].second, kThree, {2});
  EXPECT_EQ(outcome.copied, 0);
  EXPECT_NEAR(static_cast<double>(outcome.bytes), 3.0 * static_cast<double>(bytes), 5e4)
      << "once a host, but for gaps between pieces";
  outcome = Write(Shards(), kThree, {2});
  EXPECT_NEAR(static_cast<double>(outcome.copied), static_cast<double>(bytes), 5e4);
  // Ranks 0 and 1 hold the same on one host, ranks 2 and 3 on two, 4 and 5 on two.
  outcome = Write(Splits()[2].second, kThree, {2});
  EXPECT_NEAR(static_cast<double>(outcome.copied), static_cast<double>(bytes) / 3, 5e4);
  const Hosts alone(6, "a");
  outcome = Write(Shards(), alone, {2});
  EXPECT_EQ(outcome.copied, 0);
  ExpectState(Find(alone), 2, Shards(), alone);
}

TEST_F(Local, TwoNeighboursAreTooMany) {
  Write(Shards(), kThree, {2, 4});
  Lose("b");
  Lose("c");
  const LocalSearch search = Find(kThree);
  EXPECT_EQ(search.found, nullptr);
  ASSERT_EQ(search.passed_over.size(), 2U);
  EXPECT_EQ(search.passed_over[0].first, 4);
  EXPECT_THAT(
      search.passed_over[0].second,
      HasSubstr("the local checkpoint of step 4: the parts of rank 3 and 1 more are on none"));
}

TEST_F(Local, PartsAreFoundWhereverTheyAre) {
  Write(Shards(), kThree, {2, 4});
  OnRoot([&] {
    fs::rename(FolderOf("a"), FolderOf("x"));
    fs::rename(FolderOf("c"), FolderOf("a"));
    fs::rename(FolderOf("b"), FolderOf("c"));
    fs::rename(FolderOf("x"), FolderOf("b"));
  });
  EXPECT_GT(ExpectState(Find(kThree), 4, Shards(), kThree), 0);
  const Hosts others = {"c", "b", "a", "a", "c", "b"};
  EXPECT_GT(ExpectState(Find(others), 4, Shards(), others), 0);
}

TEST_F(Local, DamageIsFoundAndReplaced) {
  for (const std::int64_t at : {std::int64_t{1000}, std::int64_t{-5}}) {
    Write(Shards(), kThree, {2, 4});
    const std::string own = PathOf("b", {4, 3, false});
    Flip(own, at < 0 ? static_cast<std::int64_t>(fs::file_size(own)) + at : at);
    const LocalSearch search = Find(kThree);
    ExpectState(search, 4, Shards(), kThree);
    ASSERT_EQ(search.passed_over.size(), 1U);
    EXPECT_THAT(search.passed_over[0].second,
                AllOf(HasSubstr("one file is damaged"), HasSubstr(own)));
  }
  // With the copy damaged too: the checkpoint before. What is damaged is told once.
  Flip(PathOf("c", {4, 3, true}), 1000);
  const LocalSearch search = Find(kThree);
  ExpectState(search, 2, Shards(), kThree);
  ASSERT_EQ(search.passed_over.size(), 1U);
  EXPECT_EQ(search.passed_over[0].first, 4);
}

TEST_F(Local, OnlyWhatWasWrittenLaterCounts) {
  Write(Shards(), kThree, {2, 4}, 7);
  EXPECT_NE(Find(kThree, {3, 7, "other"}).found, nullptr);
  EXPECT_EQ(Find(kThree, {3, 8, "other"}).found, nullptr) << "the run folder's came later";
  EXPECT_NE(Find(kThree, {3, 8, "1"}).found, nullptr) << "published late by the same session";
  EXPECT_EQ(Find(kThree, {4, 8, "1"}).found, nullptr) << "the same state";
  LocalRun run = Run(kThree);
  run.id = "00112233445566ab";
  EXPECT_EQ(FindLocal({world_, comm::Hosts(kThree)}, run, {}).found, nullptr) << "another run's";
}

TEST_F(Local, OtherLayoutsAreTold) {
  Write(Shards(), kThree, {2});
  const LocalSearch search = Find(kThree);
  ASSERT_NE(search.found, nullptr);
  TestState stages(Model(2), Splits()[3].second);
  try {
    search.found->Read({world_, comm::Hosts(kThree)}, "model", stages.Blocks());
    ADD_FAILURE() << "pieces of another layout were taken";
  } catch (const DamagedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("another layout"));
  }
  // Fewer ranks.
  const comm::Communicator few = world_.Split(world_.Rank() < 4 ? 0 : 1, world_.Rank());
  const Hosts hosts(kThree.begin(), kThree.begin() + few.Size());
  if (world_.Rank() < 4) {
    const LocalSearch other = FindLocal({few, comm::Hosts(hosts)}, Run(kThree), {});
    EXPECT_EQ(other.found, nullptr);
    ASSERT_EQ(other.passed_over.size(), 1U);
    EXPECT_THAT(other.passed_over[0].second, HasSubstr("6 ranks wrote it, 4 run"));
  }
}

TEST_F(Local, AFullDiskOfOneHostIsAgreed) {
  TestState model(Model(1), Shards()), moments(Moments(Model(1)), Shards());
  LocalWriter writer({world_, comm::Hosts(kThree)}, {model.Blocks(), moments.Blocks()}, Run(kThree),
                     {});
  for (const std::int64_t step : {2, 4}) writer.Write(step, 1, {{"step", step}});
  {
    std::optional<FullDisk> disk;
    if (world_.Rank() == 5) disk.emplace(100'000);
    EXPECT_THAT(writer.Write(6, 1, {}).failure, HasSubstr("00000006."));
  }
  EXPECT_THAT(Names("a"), testing::Each(testing::AnyOf(testing::StartsWith("00000002."),
                                                       testing::StartsWith("00000004."))));
  EXPECT_EQ(Find(kThree).found->Step(), 4);
  EXPECT_EQ(writer.Write(8, 1, {{"step", 8}}).failure, "");
  EXPECT_EQ(Find(kThree).found->Step(), 8);
}

// Told before the first one: what is free, what all ranks of the host write, and on which host.
TEST_F(Local, LackOfRoomIsToldAtTheStart) {
  TestState model(Model(1), Shards()), moments(Moments(Model(1)), Shards());
  const State state{model.Blocks(), moments.Blocks()};
  const auto lack = [&](std::optional<std::int64_t> keep = {}) {
    const LocalWriter writer({world_, comm::Hosts(kThree)}, state, Run(kThree), keep);
    const std::string told = writer.LackOfRoom();
    for (const std::string& each : world_.Gather(told)) EXPECT_EQ(each, told);
    return told;
  };
  EXPECT_EQ(lack(), "");
  // Host b: its own parts, and copies of two of a's: 5/6 of the state, thrice.
  const std::int64_t bytes =
      CopyBytes(TestState(Model(1)).Blocks()) + CopyBytes(TestState(Moments(Model(1))).Blocks());
  const std::int64_t one = bytes * 5 / 6;
  std::optional<SmallDisk> disk;
  const auto mount = [&](std::int64_t size) {
    std::string reason;
    OnRoot([&] {
      disk.emplace(FolderOf("b"), std::to_string(size));
      reason = disk->Reason();
    });
    return world_.Broadcast(reason);
  };
  if (const std::string reason = mount(one * 5 / 2); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_THAT(lack(), AllOf(HasSubstr(FolderOf("b") + " on b has "), HasSubstr(" MiB free, "),
                            HasSubstr("need " + Mebibytes(3 * one) + " there: 3 at once of " +
                                      Mebibytes(one) + " each")));
  OnRoot([&] { disk.reset(); });
  // A step that is there already needs no more room.
  EXPECT_EQ(mount(one * 13 / 4), "");
  Write(Shards(), kThree, {2});
  EXPECT_EQ(lack(2), "");
  OnRoot([&] { disk.reset(); });
}

TEST_F(Local, TwoAreKeptAndTheEndLeavesNothing) {
  OnRoot([&] {
    fs::create_directories(FolderOf("c") + "/trireme-0123456789abcdef");
    WriteBytes(FolderOf("c") + "/trireme-0123456789abcdef/00000002.0.part", "another run's");
  });
  TestState model(Model(1), Shards()), moments(Moments(Model(1)), Shards());
  const State state{model.Blocks(), moments.Blocks()};
  {
    LocalWriter writer({world_, comm::Hosts(kThree)}, state, Run(kThree), {});
    for (const std::int64_t step : {2, 4, 6, 8}) writer.Write(step, 1, {{"step", step}});
    // Rank 5, and the copies of ranks 3 and 4.
    EXPECT_THAT(Names("c"), ElementsAre("00000006.3.copy", "00000006.4.copy", "00000006.5.part",
                                        "00000008.3.copy", "00000008.4.copy", "00000008.5.part"));
    world_.Barrier();
    writer.Forget(7);
    EXPECT_EQ(Names("c").size(), 3U);
  }
  OnRoot([&] { WriteBytes(PathOf("c", {9, 5, false}) + ".tmp", "a killed job's"); });
  LocalWriter next({world_, comm::Hosts(kThree)}, state, Run(kThree), 6);
  EXPECT_EQ(Names("c").size(), 3U) << "the one that the session began with stays";
  world_.Barrier();
  next.RemoveAll();
  EXPECT_FALSE(fs::exists(LocalFolder(FolderOf("c"), kRun)));
  EXPECT_EQ(ReadBytes(FolderOf("c") + "/trireme-0123456789abcdef/00000002.0.part"),
            "another run's");
}

// A whole state, kept by whoever the next host has.
TEST(LocalPlaces, PartnersAreOnTheNextHost) {
  const LocalPlace first = PlaceOf(comm::Hosts(kThree), 0), third = PlaceOf(comm::Hosts(kThree), 2),
                   last = PlaceOf(comm::Hosts(kThree), 5);
  EXPECT_EQ(first.partner, 3);
  EXPECT_EQ(third.partner, 3) << "place 2 of 2 is place 0";
  EXPECT_EQ(last.partner, 0);
  EXPECT_EQ(last.hosts, 3);
  EXPECT_EQ(PlaceOf({"a", "b", "a", "b"}, 2).partner, 3) << "ranks in turn";
  EXPECT_EQ(PlaceOf({"a", "a"}, 1).partner, -1);
}

}  // namespace
}  // namespace trireme::checkpoint::test
