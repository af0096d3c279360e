// Collective transfers: ranks with unequal work, failures of one rank that strand no other, and the
// calls of MPI that are made.
#include "parallel_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>

#include "checkpoint_fixture.hpp"
#include "checksums.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace {

// Calls of this process since the last reset.
struct Calls {
  int collective = 0, independent = 0;
};
Calls& CountedCalls() {
  static Calls calls;
  return calls;
}

}  // namespace

// MPI's profiling interface: these stand before the library's functions of the same names.
extern "C" {
int MPI_File_write_at_all(MPI_File file, MPI_Offset at, const void* data, int count,
                          MPI_Datatype type, MPI_Status* status) {
  ++CountedCalls().collective;
  return PMPI_File_write_at_all(file, at, data, count, type, status);
}
int MPI_File_read_at_all(MPI_File file, MPI_Offset at, void* data, int count, MPI_Datatype type,
                         MPI_Status* status) {
  ++CountedCalls().collective;
  return PMPI_File_read_at_all(file, at, data, count, type, status);
}
int MPI_File_write_at(MPI_File file, MPI_Offset at, const void* data, int count, MPI_Datatype type,
                      MPI_Status* status) {
  ++CountedCalls().independent;
  return PMPI_File_write_at(file, at, data, count, type, status);
}
int MPI_File_read_at(MPI_File file, MPI_Offset at, void* data, int count, MPI_Datatype type,
                     MPI_Status* status) {
  ++CountedCalls().independent;
  return PMPI_File_read_at(file, at, data, count, type, status);
}
}

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kBytes = 1000;      // of the file
constexpr std::int64_t kRoundBytes = 100;  // pieces are longer: several rounds each

class Collective : public testing::Test {
 protected:
  void SetUp() override {
    if (world_.IsRoot()) {
      std::string bytes(kBytes, '\0');
      std::iota(bytes.begin(), bytes.end(), '\0');
      WriteBytes(path_, bytes);
    }
    world_.Barrier();  // the file is there
    std::iota(expected_.begin(), expected_.end(), '\0');
  }

  ParallelFile Open(ParallelFile::Access access) const {
    return ParallelFile(world_, path_, access, ExitCode::kBadInput, kRoundBytes);
  }
  bool IsLast() const { return world_.Rank() == world_.Size() - 1; }
  void ExpectOneMessage(const Error& error) const {
    for (const std::string& text : world_.Gather(error.what())) EXPECT_EQ(text, error.what());
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const SharedFolder folder_{world_};
  std::string path_ = folder_ / "file";
  std::array<char, kBytes> expected_{};
};

// Only the last rank has work, in both directions.
TEST_F(Collective, RanksWithoutWorkTakePart) {
  std::array<char, kBytes> bytes{};
  bytes.fill('x');
  {
    ParallelFile file = Open(ParallelFile::Access::kWrite);
    std::vector<Piece> pieces;
    if (IsLast()) pieces = {{990, 10, bytes.data()}, {0, 250, bytes.data()}};
    file.WriteAll(pieces);
    file.SyncAndClose();
  }
  std::fill_n(expected_.begin(), 250, 'x');
  std::fill_n(expected_.begin() + 990, 10, 'x');
  ParallelFile file = Open(ParallelFile::Access::kRead);
  std::vector<Target> targets;
  if (IsLast()) targets = {{0, kBytes, bytes.data()}};
  file.ReadAll(targets);
  EXPECT_EQ(bytes == expected_, IsLast());
}

TEST_F(Collective, AFailureStrandsNoRank) {
  ParallelFile file = Open(ParallelFile::Access::kRead);
  std::array<char, kBytes> bytes{};
  std::vector<Target> targets;
  for (std::int64_t at = 0; at < kBytes; at += 10) targets.push_back({at, 10, &bytes[at]});
  const Error error = Caught([&] {
    file.ReadAll(targets, [&](std::size_t i) {
      if (IsLast() && i == 3) throw InputError("the fourth piece is bad");
    });
  });
  EXPECT_EQ(error.Code(), ExitCode::kBadInput);
  EXPECT_THAT(error.what(), HasSubstr("the fourth piece is bad"));
  ExpectOneMessage(error);
  EXPECT_EQ(bytes == expected_, !IsLast());
  // All are still in step.
  file.ReadAll(targets);
  EXPECT_TRUE(bytes == expected_);
}

TEST_F(Collective, ReadingPastTheEndIsAgreed) {
  ParallelFile file = Open(ParallelFile::Access::kRead);
  std::array<char, kBytes> bytes{};
  const Error error = Caught([&] { file.ReadAll({{IsLast() ? 1 : 0, kBytes, bytes.data()}}); });
  EXPECT_THAT(error.what(), HasSubstr("cannot be read at offset 1000: the file ends there"));
  ExpectOneMessage(error);
}

// A file system that cannot reserve, and is full: the collective writes may say what they like, but
// must come back, and reading back must tell.
TEST_F(Collective, AFullDiskStrandsNoRank) {
  std::optional<SmallDisk> disk;
  const std::string folder = path_ + "_disk";
  if (world_.IsRoot()) disk.emplace(folder, "1m");
  const std::string reason = world_.Broadcast(world_.IsRoot() ? disk->Reason() : "");
  if (!reason.empty()) GTEST_SKIP() << reason;
  constexpr std::int64_t kShare = 3'000'000;
  path_ = folder + "/file";
  if (world_.IsRoot()) {
    WriteBytes(path_, "");
    fs::resize_file(path_, static_cast<std::uintmax_t>(kShare * world_.Size()));
  }
  world_.Barrier();
  const std::string data(kShare, 'x');
  FileSums sums = {kShare * world_.Size(), {}};
  for (int rank = 0; rank < world_.Size(); ++rank) {
    sums.segments.push_back({rank * kShare, kShare, Hash(data.data(), kShare)});
  }
  const Error error = Caught([&] {
    {
      ParallelFile file(world_, path_, ParallelFile::Access::kWrite, ExitCode::kFailed);
      file.WriteAll({{world_.Rank() * kShare, kShare, data.data()}});
      file.SyncAndClose();
    }
    ParallelFile file(world_, path_, ParallelFile::Access::kRead, ExitCode::kFailed);
    VerifyTogether(world_, file, sums, {});
  });
  EXPECT_EQ(error.Code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), HasSubstr(path_));
  ExpectOneMessage(error);
  world_.Barrier();  // before rank 0 unmounts
}

// A whole checkpoint, written, read back and loaded, makes no independent transfer, and all ranks
// make the same number of collective ones.
TEST_F(Collective, CheckpointsMakeCollectiveCallsOnly) {
  const std::string folder = path_ + "_checkpoints";
  TestState model(SmallModel(), [&](std::int64_t tensor, std::int64_t n) {  // stages: unequal work
    return tensor % world_.Size() == world_.Rank() ? TestState::Part{0, n, 0, 1}
                                                   : TestState::Part{0, 0, 0, 1};
  });
  TestState none({});
  model.Fill();
  CountedCalls() = {};
  Write(world_, folder, 1, {model.Blocks(), none.Blocks(), {}}, false, 0);
  const int writing = CountedCalls().collective;
  EXPECT_GT(writing, 0);
  TestState back(SmallModel(Dtype::kFloat64));
  ReadTensors(world_, folder + "/step_00000001", "model", back.Blocks());
  EXPECT_GT(CountedCalls().collective, writing);
  EXPECT_EQ(CountedCalls().independent, 0);
  EXPECT_EQ(world_.Max(std::int64_t{CountedCalls().collective}), CountedCalls().collective);
  EXPECT_EQ(back.Wrong(true), 0);
}

}  // namespace
}  // namespace trireme::checkpoint::test
