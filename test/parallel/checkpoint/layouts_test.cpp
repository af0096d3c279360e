// Checkpoints across layouts: any split of the tensors over ranks writes the bytes that one process
// writes, and any split reads them; failures are agreed by all ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "checkpoint_fixture.hpp"
#include "exchange.hpp"
#include "folder.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

// One tensor of several segments among small ones.
std::vector<TestTensor> Model() {
  std::vector<TestTensor> tensors = SmallModel();
  tensors.insert(tensors.begin() + 1, {"large.weight", {1300, 1001}, Dtype::kFloat64, 0.25});
  return tensors;
}

class Layouts : public testing::Test {
 protected:
  // Ways to hold the tensors, by name.
  std::vector<std::pair<std::string, TestState::Split>> Splits() const {
    using Part = TestState::Part;
    const std::int64_t rank = world_.Rank(), size = world_.Size();
    return {
        {"replicas",
         [=](std::int64_t, std::int64_t n) {
           return Part{0, n, static_cast<int>(rank), static_cast<int>(size)};
         }},
        {"shards",
         [=](std::int64_t, std::int64_t n) {
           return Part{n * rank / size, n * (rank + 1) / size, 0, 1};
         }},
        {"shards with replicas",
         [=](std::int64_t, std::int64_t n) {
           return Part{n * (rank / 2) / (size / 2), n * (rank / 2 + 1) / (size / 2),
                       static_cast<int>(rank % 2), 2};
         }},
        {"stages",
         [=](std::int64_t tensor, std::int64_t n) {
           return tensor % size == rank ? Part{0, n, 0, 1} : Part{0, 0, 0, 1};
         }},
        {"one flat vector cut in unequal parts",
         [=](std::int64_t, std::int64_t n) {
           const std::int64_t first = std::min<std::int64_t>(n, 7);
           return rank == 0 ? Part{0, first, 0, 1}
                            : Part{first + (n - first) * (rank - 1) / (size - 1),
                                   first + (n - first) * rank / (size - 1), 0, 1};
         }},
    };
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const SharedFolder folder_{world_};
  const std::string path_ = folder_.Path();
};

TEST_F(Layouts, AnyLayoutReadsWhatAnyLayoutWrote) {
  const std::string serial = path_ + "/serial";
  if (world_.IsRoot()) {
    TestState model(Model()), moments(Moments(Model()));
    model.Fill();
    moments.Fill();
    Write(comm::Communicator::Adopt(MPI_COMM_SELF), serial, 5,
          {model.Blocks(), moments.Blocks(), {{"step", 5}}}, false, 0);
  }
  for (const auto& [writer, split] : Splits()) {
    const std::string folder = path_ + "/" + writer;
    TestState model(Model(), split), moments(Moments(Model()), split);
    model.Fill();
    moments.Fill();
    Write(world_, folder, 5, {model.Blocks(), moments.Blocks(), {{"step", 5}}}, true, 2);
    const std::string checkpoint = Find(world_, folder);
    EXPECT_EQ(ReadRun(world_, checkpoint)["step"], 5);
    if (world_.IsRoot()) {
      for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/run.json"}) {
        EXPECT_TRUE(ReadBytes(checkpoint + file) == ReadBytes(serial + "/step_00000005" + file))
            << writer << file;
      }
    }
    for (const auto& [reader, other] : Splits()) {
      TestState model_back(Model(), other), moments_back(Moments(Model()), other);
      ReadTensors(world_, checkpoint, "model", model_back.Blocks());
      ReadTensors(world_, checkpoint, "optimizer", moments_back.Blocks());
      EXPECT_EQ(model_back.Wrong(), 0) << writer << " -> " << reader;
      EXPECT_EQ(moments_back.Wrong(), 0) << writer << " -> " << reader;
    }
  }
}

// Writers for any ranks, at once or beside the run: the same bytes; and a state that is not in
// the host's memory.
TEST_F(Layouts, AnyWritersWriteTheSameBytes) {
  for (const auto& [name, split] : Splits()) {
    TestState model(Model(), split), moments(Moments(Model()), split);
    const std::string wanted = path_ + "/" + name + "/wanted";
    model.Fill();
    moments.Fill();
    Write(world_, wanted, 5, {model.Blocks(), moments.Blocks(), {{"step", 5}}}, true, 2);
    for (const WriterOptions& options :
         {WriterOptions{.async = false, .writers = 0}, WriterOptions{.async = false, .writers = 1},
          WriterOptions{.async = false, .writers = 2}, WriterOptions{.async = true, .writers = 0},
          WriterOptions{.async = true, .writers = 1}, WriterOptions{.async = true, .writers = 3}}) {
      const std::string folder =
          fmt::format("{}/{}/{}{}", path_, name, options.async ? "async" : "sync", options.writers);
      model.Fill();
      moments.Fill();
      Writer writer(world_, {model.Blocks(), moments.Blocks()}, options);
      writer.Begin({.folder = folder, .step = 5, .run = {{"step", 5}}, .best = true});
      if (options.async) {
        for (const kernels::StateBlock& block : model.Blocks()) {
          if (block.data == nullptr) continue;  // no elements here
          std::memset(block.data, 0,
                      static_cast<std::size_t>(block.end - block.begin) * SizeOf(block.dtype));
        }
      }
      EXPECT_EQ(writer.Finish().failure, "");
      if (!world_.IsRoot()) continue;
      for (const char* file :
           {"/model.safetensors", "/optimizer.safetensors", "/run.json", "/checksums.json"}) {
        EXPECT_TRUE(ReadBytes(folder + "/step_00000005" + file) ==
                    ReadBytes(wanted + "/step_00000005" + file))
            << folder << file;
      }
    }
  }
}

TEST_F(Layouts, FullDiskIsAgreed) {
  const std::string folder = path_ + "/small";
  std::optional<SmallDisk> disk;
  if (world_.IsRoot()) disk.emplace(folder, "1m");
  const std::string reason = world_.Broadcast(world_.IsRoot() ? disk->Reason() : "");
  if (!reason.empty()) GTEST_SKIP() << reason;
  TestState small(SmallModel(), Splits()[0].second), none({});
  small.Fill();
  Write(world_, folder, 1, {small.Blocks(), none.Blocks(), {}}, false, 1);

  TestState large(Model(), Splits()[1].second);
  large.Fill();
  const Error error = Caught([&] {
    Write(world_, folder, 2, {large.Blocks(), none.Blocks(), {}}, false, 1);
  });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(),
              HasSubstr("No space left on device: the checkpoint needs 9.9 MiB, 1.0 MiB "
                        "free on " +
                        folder));
  for (const std::string& text : world_.Gather(error.what())) EXPECT_EQ(text, error.what());
  EXPECT_EQ(Find(world_, folder), folder + "/step_00000001");
  EXPECT_FALSE(fs::exists(folder + "/step_00000002.tmp"));
  TestState back(SmallModel(), Splits()[1].second);
  ReadTensors(world_, folder + "/step_00000001", "model", back.Blocks());
  EXPECT_EQ(back.Wrong(), 0);
  world_.Barrier();  // before rank 0 unmounts
}

TEST_F(Layouts, DamageIsAgreed) {
  TestState model(Model(), Splits()[0].second), none({});
  model.Fill();
  Write(world_, path_, 1, {model.Blocks(), none.Blocks(), {}}, false, 0);
  const std::string checkpoint = Find(world_, path_);
  const std::string file = checkpoint + "/model.safetensors";
  if (world_.IsRoot()) {  // the last byte, in the last rank's share of the reading
    std::string bytes = ReadBytes(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 64);
    WriteBytes(file, bytes);
  }
  world_.Barrier();
  TestState back(Model(), Splits()[1].second);
  const Error error = Caught([&] { ReadTensors(world_, checkpoint, "model", back.Blocks()); });
  EXPECT_EQ(error.Code(), ExitCode::kBadInput);
  EXPECT_THAT(error.what(), HasSubstr(file + ": tensor scale: bytes "));
  for (const std::string& text : world_.Gather(error.what())) EXPECT_EQ(text, error.what());
}

TEST_F(Layouts, RanksThatDisagreeAreNamed) {
  std::vector<TestTensor> tensors = SmallModel();
  if (world_.Rank() == world_.Size() - 1) std::swap(tensors[1], tensors[2]);
  TestState model(tensors, Splits()[0].second), none({});
  const Error error = Caught([&] {
    Write(world_, path_, 1, {model.Blocks(), none.Blocks(), {}}, false, 0);
  });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(),
              HasSubstr("ranks register different tensors: \"blocks.0.query.weight [16, 16] fp32\" "
                        "where rank 0 has \"blocks.0.norm.weight [16] fp32\""));
  EXPECT_THAT(error.what(), HasSubstr("(on rank " + std::to_string(world_.Size() - 1)));

  // Replicas that all believe to be the first.
  TestState twice(SmallModel());
  const Error overlap = Caught([&] {
    Write(world_, path_, 1, {twice.Blocks(), none.Blocks(), {}}, false, 0);
  });
  EXPECT_THAT(overlap.what(),
              HasSubstr("tensor embedding.weight: elements 0 to 592 of 592 are held by "
                        "several ranks that are not numbered as replicas"));
}

// Segments of a file in which byte i is Byte(i), cut among the ranks, sent in many rounds.
class Exchanges : public testing::Test {
 protected:
  static constexpr std::int64_t kLength = 1000, kSegments = 61;

  static char Byte(std::int64_t i) { return static_cast<char>(i * 31 % 127); }
  static void Fill(const Segment& segment, char* to) {
    for (std::int64_t i = 0; i < segment.length; ++i) to[i] = Byte(segment.offset + i);
  }
  static std::vector<Segment> Segments() {
    std::vector<Segment> segments;
    for (std::int64_t i = 0; i < kSegments; ++i) segments.push_back({i * kLength, kLength, 0});
    return segments;
  }
  Exchanges() {
    const Part part = PartOf(kSegments * kLength, world_.Rank(), world_.Size());
    data_.resize(static_cast<std::size_t>(part.Size()));
    targets_ = {{part.begin, part.Size(), data_.data()}};
  }
  // Bytes from `begin` of the targets that are not those of the file.
  std::int64_t Wrong() const {
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < data_.size(); ++i) {
      wrong += data_[i] != Byte(targets_[0].offset + static_cast<std::int64_t>(i));
    }
    return wrong;
  }
  // True if a message waits for this rank.
  bool Pending() const {
    world_.Barrier();
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_.Handle(), &found, MPI_STATUS_IGNORE);
    return found != 0;
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  std::vector<Segment> segments_ = Segments();
  std::vector<Segment> share_ = ShareSegments(world_, segments_);
  std::vector<char> data_;
  std::vector<Target> targets_;
};

TEST_F(Exchanges, RanksLeaveBetweenRounds) {
  const ReadSegment read = Fill;
  for (const int leave : {0, 1, 4}) {
    Exchange exchange(world_, share_, targets_, read, 5 * kLength);
    EXPECT_EQ(exchange.Rounds(), 13);
    for (int round = 0; round < leave; ++round) exchange.Run(round);
    EXPECT_FALSE(Pending());
  }
  EXPECT_GT(world_.Max(Wrong()), 0);
  Exchange exchange(world_, share_, targets_, read, 5 * kLength);
  for (int round = 0; round < exchange.Rounds(); ++round) exchange.Run(round);
  exchange.Check();
  EXPECT_EQ(Wrong(), 0);
  EXPECT_FALSE(Pending());
}

// As if each rank had a node of its own: all read, and each pair of ranks needs the same.
TEST_F(Exchanges, EveryRankReads) {
  const Part own = PartOf(kSegments, world_.Rank(), world_.Size());
  share_.assign(segments_.begin() + own.begin, segments_.begin() + own.end);
  const Part half = PartOf(kSegments * kLength, world_.Rank() / 2, (world_.Size() + 1) / 2);
  data_.assign(static_cast<std::size_t>(half.Size()), '\0');
  targets_ = {{half.begin, half.Size() / 3, data_.data()},
              {half.begin + half.Size() / 3, half.Size() - half.Size() / 3,
               data_.data() + half.Size() / 3}};
  const ReadSegment read = Fill;
  Exchange exchange(world_, share_, targets_, read, 5 * kLength);
  EXPECT_EQ(exchange.Receives(), world_.Rank() % 2 == 0);
  for (int round = 0; round < exchange.Rounds(); ++round) exchange.Run(round);
  exchange.Check();
  exchange.PassOn(targets_);
  EXPECT_EQ(Wrong(), 0);
  EXPECT_FALSE(Pending());
}

TEST_F(Exchanges, FailedReadKeepsNoRankWaiting) {
  const ReadSegment read = [](const Segment& segment, char* to) {
    if (segment.offset == 30 * kLength) throw std::bad_alloc();
    Fill(segment, to);
  };
  Exchange exchange(world_, share_, targets_, read, 5 * kLength);
  for (int round = 0; round < 6; ++round) exchange.Run(round);
  exchange.Run(6);
  if (world_.IsRoot()) {
    EXPECT_THROW(exchange.Check(), std::bad_alloc);
  } else {
    exchange.Check();
  }
  EXPECT_FALSE(Pending());
}

TEST_F(Layouts, RanksThatAreAskedToStopLeaveTogether) {
  TestState model(Model(), Splits()[0].second), none({});
  model.Fill();
  Write(world_, path_, 1, {model.Blocks(), none.Blocks(), {}}, false, 0);
  TestState back(Model(), Splits()[1].second);
  const std::string checkpoint = path_ + "/step_00000001";
  const Error error = Caught([&] {
    ReadTensors(world_, checkpoint, "model", back.Blocks(),
                [] { throw AgreedError(ExitCode::kStopped, "asked to"); });
  });
  EXPECT_EQ(error.Code(), ExitCode::kStopped);
  ReadTensors(world_, checkpoint, "model", back.Blocks());
  EXPECT_EQ(back.Wrong(), 0);
}

// The folder goes while it is read: not damage, and no reason to give up.
TEST_F(Layouts, VanishedOnesAreTold) {
  TestState model(Model(), Splits()[0].second), none({});
  model.Fill();
  Write(world_, path_, 1, {model.Blocks(), none.Blocks(), {}}, false, 0);
  const std::string checkpoint = path_ + "/step_00000001";
  const auto remove = [&](const std::string& path) {
    world_.Barrier();
    if (world_.IsRoot()) fs::remove_all(path);
    world_.Barrier();
  };
  TestState back(Model(), Splits()[1].second);
  remove(checkpoint + "/model.safetensors");
  EXPECT_FALSE(Vanished(checkpoint));
  EXPECT_THROW(ReadTensors(world_, checkpoint, "optimizer", back.Blocks()), AgreedError);
  remove(checkpoint);
  EXPECT_TRUE(Vanished(checkpoint));
  EXPECT_THROW(ReadTensors(world_, checkpoint, "model", back.Blocks()), VanishedError);
  EXPECT_THROW(ReadRun(world_, checkpoint), VanishedError);
}

}  // namespace
}  // namespace trireme::checkpoint::test
