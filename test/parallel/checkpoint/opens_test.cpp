// Cost of checkpoints in operations of the file system: opens and metadata calls follow the number
// of writers, never that of ranks; each byte is written once and read once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "call_count.hpp"
#include "checkpoint_fixture.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint::test {
namespace {

using trireme::test::CallCount;
using trireme::test::CallCounts;
using trireme::test::Counted;
using trireme::test::kCountedKinds;

constexpr std::size_t kReadBytes = static_cast<std::size_t>(Counted::kReadBytes);
constexpr std::size_t kWrittenBytes = static_cast<std::size_t>(Counted::kWrittenBytes);
constexpr std::size_t kCalls = kReadBytes;  // the kinds before bytes
constexpr int kTwice = 2;                   // files of tensors, or checkpoints written

// Two segments of one tensor among small ones.
std::vector<TestTensor> Model() {
  std::vector<TestTensor> tensors = SmallModel();
  tensors.insert(tensors.begin() + 1, {"large.weight", {1300, 1001}, Dtype::kFloat32, 0.25});
  return tensors;
}

struct Costs {
  CallCounts write{}, read{};
  std::int64_t file_bytes = 0;  // of both tensor files
  std::int64_t text_bytes = 0;  // of the other files of a checkpoint
};

// Sum over the ranks of a group.
CallCounts SumOver(const comm::Communicator& group, CallCounts counts) {
  for (std::int64_t& count : counts) count = group.Sum(count);
  return counts;
}

void WriteOne(Writer& writer, const std::string& folder, std::int64_t step) {
  writer.Begin({.folder = folder,
                .step = step,
                .run = {{"step", step}},
                .best = true,
                .retention = {.keep = 1}});
  EXPECT_EQ(writer.Finish().failure, "");
}

// Two checkpoints, the second of which replaces the first, then what a continued run reads.
Costs Measure(const comm::Communicator& group, const std::string& folder,
              const WriterOptions& options, bool shards) {
  const std::int64_t rank = group.Rank(), size = group.Size();
  const auto split = [=](std::int64_t, std::int64_t n) {
    return shards ? TestState::Part{n * rank / size, n * (rank + 1) / size, 0, 1}
                  : TestState::Part{0, n, static_cast<int>(rank), static_cast<int>(size)};
  };
  TestState model(Model(), split), moments(Moments(Model()), split);
  model.Fill();
  moments.Fill();
  if (group.IsRoot()) fs::create_directory(folder);
  group.Barrier();

  Costs costs;
  CallCount written(folder);
  {
    Writer writer(group, {model.Blocks(), moments.Blocks()}, options);
    for (const std::int64_t step : {1, 2}) WriteOne(writer, folder, step);
    costs.file_bytes = writer.Bytes();
  }
  costs.write = SumOver(group, written.Stop());
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const bool text = entry.is_regular_file() && !entry.is_symlink();
    if (text && entry.path().extension() != ".safetensors") costs.text_bytes += entry.file_size();
  }

  TestState model_back(Model(), split), moments_back(Moments(Model()), split);
  CallCount read(folder);
  const std::string checkpoint = Find(group, folder);
  EXPECT_EQ(ReadRun(group, checkpoint)["step"], 2);
  ReadTensors(group, checkpoint, "model", model_back.Blocks());
  ReadTensors(group, checkpoint, "optimizer", moments_back.Blocks());
  costs.read = SumOver(group, read.Stop());
  EXPECT_EQ(model_back.Wrong() + moments_back.Wrong(), 0);
  return costs;
}

std::string Shown(const CallCounts& counts) {
  std::string line;
  for (std::size_t i = 0; i < kCalls; ++i) {
    line += fmt::format("  {} {:3}", NameOf(static_cast<Counted>(i)), counts[i]);
  }
  return line;
}

// (ranks, writers) -> costs.
using Table = std::map<std::pair<int, int>, Costs>;

// Calls at every number of ranks are those at the first; with writers they grow by a fixed number.
void CheckGrowth(const Table& table, CallCounts Costs::*what, bool with_writers) {
  CallCounts per_writer{};
  const CallCounts one = table.at({8, 1}).*what;
  for (std::size_t i = 0; i < kCalls; ++i) per_writer[i] = (table.at({8, 2}).*what)[i] - one[i];
  for (const auto& [key, costs] : table) {
    const auto [ranks, writers] = key;
    for (std::size_t i = 0; i < kCalls; ++i) {
      EXPECT_EQ((costs.*what)[i], one[i] + (writers - 1) * per_writer[i])
          << NameOf(static_cast<Counted>(i)) << " at " << ranks << " ranks, " << writers
          << " writers";
    }
  }
  EXPECT_GT(one[0], 0) << "nothing was counted";
  EXPECT_EQ(per_writer[0] > 0, with_writers) << "opens of a writer";
  fmt::print("    each more writer:{}\n", Shown(per_writer));
}

void CheckBytes(const Costs& costs) {
  // Written, and read back, once a checkpoint. The length of a header is read before the header.
  constexpr std::int64_t kLengthBytes = 8;
  EXPECT_EQ(costs.write[kWrittenBytes], kTwice * (costs.file_bytes + costs.text_bytes));
  EXPECT_EQ(costs.write[kReadBytes], kTwice * costs.file_bytes);
  EXPECT_EQ(costs.read[kReadBytes], costs.file_bytes + kTwice * kLengthBytes);
  EXPECT_EQ(costs.read[kWrittenBytes], 0);
}

class Opens : public testing::Test {
 protected:
  // Rank 0 is of every group.
  void Check(bool async, bool shards) {
    Table table;
    for (const int ranks : {2, 4, 8}) {
      const bool member = world_.Rank() < ranks;
      const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
      for (int writers = 1; member && writers <= std::min(ranks, 4); writers *= 2) {
        const std::string folder = fmt::format("{}/{}_{}", path_, ranks, writers);
        const Costs costs = Measure(group, folder, {.async = async, .writers = writers}, shards);
        if (!world_.IsRoot()) continue;
        table[{ranks, writers}] = costs;
        CheckBytes(costs);
        fmt::print("{} ranks, {} writers: two written {}\n                    read        {}\n",
                   ranks, writers, Shown(costs.write), Shown(costs.read));
      }
      world_.Barrier();
    }
    if (!world_.IsRoot()) return;
    CheckGrowth(table, &Costs::write, true);
    CheckGrowth(table, &Costs::read, false);
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const SharedFolder folder_{world_};
  const std::string path_ = fs::canonical(folder_.Path()).string();
};

TEST_F(Opens, FollowWritersAlone) { Check(false, false); }
TEST_F(Opens, FollowWritersAloneWhenTheStateIsCopied) { Check(true, false); }
TEST_F(Opens, FollowWritersAloneForShards) { Check(false, true); }

}  // namespace
}  // namespace trireme::checkpoint::test
