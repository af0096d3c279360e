// Transfers of shards beside computation, from recorded counts and times: pieces and units that
// leave before the backward pass ends, parameters that come before they are used.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "counted_mpi.hpp"
#include "expected_storage.hpp"
#include "layout_fixture.hpp"
#include "overlap_run.hpp"

namespace trireme::test {
namespace {

using comm::Group;
using comm::Transfer;
using counted_mpi::Function;

using ShardingOverlapTest = LayoutTest;

// With sharded moments pieces are scattered where buckets are summed: all but those of the
// embedding's tables before the backward pass ends.
TEST_F(ShardingOverlapTest, PiecesLeaveBeforeTheBackwardPassEnds) {
  for (const char* layout : {"", "shard_group=2\n", "data=4\ntensor=2\nshard_group=2\n",
                             "data=4\npipeline=2\n[pipeline]\nschedule=zero_bubble\n"}) {
    const std::string deck = OverlapDeck(16, 8, std::string("sharding=optimizer\n") + layout);
    const RunSettings settings = SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32);
    TrainingRun run(world_, tokens_, settings);
    run.Train(1);
    run.Grid().Traffic().Clear();
    counted_mpi::Reset();
    run.Train(2);
    const parallel::GradientBuckets& buckets = run.Net().Buckets();
    const ExpectedStorage storage(settings, run.Grid(), BlocksOf(run));
    const std::string what = fmt::format("rank {}\n{}", world_.Rank(), deck);
    const auto count = static_cast<std::int64_t>(buckets.Count());
    EXPECT_EQ(count, std::ssize(storage.Pieces())) << what;
    EXPECT_GT(count, storage.LatePieces() + 1) << what;
    EXPECT_EQ(buckets.StartedBeforeEnd(), count - storage.LatePieces()) << what;
    const MPI_Comm shard = run.Grid().Shard().Handle();
    EXPECT_EQ(counted_mpi::Of(Function::kIreduceScatter, shard).calls, count) << what;
    EXPECT_EQ(counted_mpi::Of(Function::kReduceScatter, shard).calls, 0) << what;
    EXPECT_GT(run.Grid().Traffic().At(Group::kShard, Transfer::kReduceScatter).seconds_hidden, 0)
        << what;
  }
}

// State of a step's transfers of sharded units each time when gradients are reported, late in the
// backward pass, with a nap after it.
struct ShardedPass {
  std::int64_t naps = 0, scattered = 0;  // before the last report
  std::int64_t gathered_ahead = 0;       // of each report: started and not used yet
  std::int64_t ahead_wanted = 0;         // as the setting says
  double scatters_hidden = 0;            // s
};

constexpr double kShardedNap = 2e-3;  // s

ShardedPass RunShardedPass(TrainingRun& run, const data::TokenFile& tokens, int prefetch) {
  const MPI_Comm shard = run.Grid().Shard().Handle();
  const std::vector<data::Entry> batches = BatchesOf(run, tokens);
  model::ParallelModel& net = run.Net();
  const std::int64_t uses = std::ssize(
      net.Layers().UsesOf(net.Stages().TrainingProgram(static_cast<int>(batches.size()))));
  run.Grid().Traffic().Clear();
  counted_mpi::Reset();
  net.BeginStep();
  run.Net().Buckets().Begin();
  const std::int64_t used_before = net.Units().Gathers();
  ShardedPass pass;
  net.StartTrain(net.Batches().Take(batches), [&](std::int64_t) {
    ++pass.naps;
    pass.scattered = counted_mpi::Of(Function::kIreduceScatter, shard).calls;
    if (net.Units().ValuesSharded()) {
      const std::int64_t used = net.Units().Gathers() - used_before;
      pass.gathered_ahead += counted_mpi::Of(Function::kIallgatherv, shard).calls - used;
      pass.ahead_wanted += std::min<std::int64_t>(prefetch, uses - used);
    }
    usleep(static_cast<unsigned>(kShardedNap * 1e6));
  });
  net.Units().FinishGradients();
  pass.scatters_hidden =
      run.Grid().Traffic().At(Group::kShard, Transfer::kReduceScatter).seconds_hidden;
  EXPECT_EQ(counted_mpi::Of(Function::kReduceScatter, shard).calls, 0);
  EXPECT_EQ(counted_mpi::Of(Function::kAllgatherv, shard).calls, 0);
  return pass;
}

// Each unit's gradients leave when they are there, in every micro-batch, and the next units come
// meanwhile. Without overlap the same transfers, none beside computation.
TEST_F(ShardingOverlapTest, UnitsComeAndLeaveDuringTheBackwardPass) {
  constexpr int kMicroBatches = 2, kPrefetch = 3;
  for (const char* layout :
       {"sharding=gradients\n", "sharding=parameters\n", "sharding=parameters\nshard_group=2\n",
        "data=4\ntensor=2\nsharding=parameters\n",
        "data=4\npipeline=2\nsharding=parameters\n[pipeline]\nschedule=zero_bubble\n"}) {
    for (const bool overlap : {true, false}) {
      const std::string deck = OverlapDeck(
          kMicroBatches * world_.Size(), 8,
          fmt::format("overlap={}\nprefetch={}\n{}", overlap ? "yes" : "no", kPrefetch, layout));
      // As many micro-batches on fewer data ranks.
      RunSettings settings = SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32);
      settings.batch = kMicroBatches * settings.grid->data;
      TrainingRun run(world_, tokens_, settings);
      const ShardedPass pass = RunShardedPass(run, tokens_, overlap ? kPrefetch : 0);
      const std::string what = fmt::format("rank {}\n{}", world_.Rank(), deck);
      const ExpectedStorage storage(settings, run.Grid(), BlocksOf(run));
      std::int64_t early = 0, late = 0;  // units; those of the first stage's tables leave last
      for (const ExpectedUnit& unit : storage.Units()) {
        const bool table = unit.kind == UnitKind::kTable || unit.kind == UnitKind::kPositions;
        (table && run.Grid().FirstStage() ? late : early) += 1;
      }
      EXPECT_GE(pass.naps, BlocksOf(run)) << what;
      EXPECT_EQ(pass.scattered, kMicroBatches * early + (kMicroBatches - 1) * late) << what;
      EXPECT_EQ(pass.gathered_ahead, pass.ahead_wanted) << what;
      // A task of weight gradients, which reports here, may come behind all uses.
      const bool split = settings.model.pipeline.kind == parallel::ScheduleKind::kZeroBubble;
      EXPECT_TRUE(split ||
                  (pass.ahead_wanted > 0) == (overlap && run.Net().Units().ValuesSharded()))
          << what;
      const double naps = kShardedNap * static_cast<double>(pass.naps);
      if (overlap) {
        EXPECT_GE(pass.scatters_hidden, naps) << what;
      } else {
        EXPECT_LT(pass.scatters_hidden, naps / 2) << what;
        EXPECT_EQ(run.Net().Units().GathersReady(), 0) << what;
      }
      if (run.Net().Units().ValuesSharded()) {
        const double ready = world_.Sum(static_cast<double>(run.Net().Units().GathersReady()));
        EXPECT_EQ(ready > 0, overlap) << what;
        EXPECT_GT(run.Net().Units().Gathers(), 0) << what;
      }
    }
  }
}

// Values that other ranks update are under way when a step ends, and hidden by the next one.
// Without overlap they have arrived.
TEST_F(ShardingOverlapTest, UpdatedValuesComeDuringTheNextStep) {
  for (const char* sharding : {"optimizer", "gradients"}) {
    for (const bool overlap : {true, false}) {
      const std::string deck = OverlapDeck(
          16, 8, fmt::format("sharding={}\noverlap={}\n", sharding, overlap ? "yes" : "no"));
      SCOPED_TRACE(deck);
      TrainingRun run(world_, tokens_, SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32));
      run.Train(1);
      const comm::Traffic& gathers = run.Grid().Traffic().At(Group::kShard, Transfer::kAllGather);
      const std::int64_t calls = gathers.calls;
      EXPECT_GT(calls, 8);  // a block or less each
      EXPECT_EQ(gathers.seconds_waited == 0, overlap);
      run.Train(2);
      EXPECT_EQ(gathers.calls, 2 * calls);
      if (overlap) {
        EXPECT_GT(gathers.seconds_hidden, 0);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
