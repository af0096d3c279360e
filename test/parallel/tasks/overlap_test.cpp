// Transfers beside computation.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "counted_mpi.hpp"
#include "expected_traffic.hpp"
#include "small_run.hpp"
#include "training_run.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::test {
namespace {

using comm::Group;
using comm::Transfer;
using counted_mpi::Function;
using parallel::TaskKind;

// The run whose transfers beside computation are looked at.

std::string OverlapDeck(int batch, int layers, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nmicro_batch=1\nbatch={}\n[model]\nlayers={}\n"
      "heads=8\nkv_heads=4\nhead_dim=3\ndim=12\nffn=17\nmax_positions=7\n[schedule]\nsteps=20\n"
      "[grid]\nbucket_mib=0.001\n{}",
      batch, layers, layout);
}

std::int64_t BlocksOf(const TrainingRun& run) {
  std::int64_t blocks = 0;
  for (const Part& chunk : run.Net().LocalPlan().chunks) blocks += chunk.Size();
  return blocks;
}

// The micro-batches of step 0, as the training step cuts them.
std::vector<data::Entry> BatchesOf(TrainingRun& run, const data::TokenFile& tokens) {
  const comm::Communicator& data = run.Grid().Data();
  const auto share = run.Step().Samples().Share(0, data.Rank(), data.Size());
  std::vector<data::Entry> batches(share.size());
  for (std::size_t i = 0; i < share.size(); ++i) {
    data::FillEntry({{&share[i], 1}, tokens, data::Split::kTrain}, run.Net().Plan().length,
                    batches[i]);
  }
  return batches;
}

// Transfers beside computation, from recorded times and counts: gradient buckets that leave before
// the backward pass ends, receives that are posted before they are needed, and how many
// micro-batches a stage really holds meanwhile.

using OverlapTest = LayoutTest;

// Every bucket but those of the embedding's tables, which the backward pass reaches last.
TEST_F(OverlapTest, BucketsLeaveBeforeTheBackwardPassEnds) {
  for (const char* layout :
       {"data=2\ntensor=4\n", "data=8\n", "data=2\npipeline=4\n[pipeline]\nschedule=1f1b\n",
        "data=2\npipeline=4\n[pipeline]\nschedule=gpipe\n",
        "data=4\npipeline=2\n[pipeline]\nschedule=zero_bubble\n",
        "data=2\npipeline=4\n[pipeline]\nschedule=interleaved\nchunks=2\n",
        "data=2\ntensor=2\npipeline=2\nsequence_parallel=yes\n[model]\nrecompute=full\n"}) {
    const std::string deck = OverlapDeck(16, 8, layout);
    const RunSettings settings = SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32);
    TrainingRun run(world_, tokens_, settings);
    run.Train(1);  // the next step's times stand for any step's
    run.Grid().Traffic().Clear();
    counted_mpi::Reset();
    const double begin = Seconds();
    run.Train(2);
    const double end = Seconds();
    const parallel::GradientBuckets& buckets = run.Net().Buckets();
    const ExpectedTraffic expected(settings, run.Grid(), BlocksOf(run), settings.samples.batch);
    const std::string what = fmt::format("rank {}\n{}", world_.Rank(), deck);
    const auto count = static_cast<std::int64_t>(buckets.Count());
    EXPECT_EQ(count, expected.Buckets()) << what;
    EXPECT_GT(count, 1) << what;
    EXPECT_EQ(buckets.StartedBeforeEnd(), count - expected.LateBuckets()) << what;
    if (!run.Grid().FirstStage() || count > expected.LateBuckets()) {
      EXPECT_GT(buckets.FirstStart(), begin) << what;
      EXPECT_LT(buckets.FirstStart(), buckets.LastReady()) << what;
    }
    EXPECT_LT(buckets.LastReady(), end) << what;
    EXPECT_GT(run.Grid().Traffic().At(Group::kData, Transfer::kAllReduce).seconds_hidden, 0)
        << what;
    // No call among them that returns when the sum is there.
    const MPI_Comm data = run.Grid().SameShard().Handle();
    EXPECT_EQ(counted_mpi::Of(Function::kIallreduce, data).calls, count) << what;
    EXPECT_EQ(counted_mpi::Of(Function::kAllreduce, data).calls, 0) << what;
  }
}

// The sums go on while the ranks compute: with a nap in place of each further block's backward
// pass, the first rank to start a bucket finds it complete after the nap, not before.
TEST_F(OverlapTest, BucketsAreSummedMeanwhile) {
  constexpr double kNap = 2e-3, kMost = 0.5;  // s; ranks that come together may miss a nap
  for (const char* layout : {"data=2\ntensor=4\n", "data=8\n", "data=2\npipeline=4\n",
                             "data=4\npipeline=2\n[pipeline]\nschedule=zero_bubble\n"}) {
    const std::string deck = OverlapDeck(16, 8, layout);
    TrainingRun run(world_, tokens_, SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32));
    parallel::GradientBuckets& buckets = run.Net().Buckets();
    run.Grid().Traffic().Clear();
    buckets.Begin();
    const std::vector<data::Entry> batches = BatchesOf(run, tokens_);
    std::int64_t naps = 0;
    run.Net().Tasks().StartTrain(run.Net().Tasks().Batches().Take(batches),
                                 [&](std::int64_t begin) {
                                   buckets.Ready(begin);
                                   usleep(static_cast<unsigned>(kNap * 1e6));
                                   ++naps;
                                 });
    buckets.Ready(0);
    buckets.Wait();
    const std::int64_t early = std::min(naps, buckets.StartedBeforeEnd());
    EXPECT_GT(early, 0) << deck;
    const double hidden = run.Grid().Data().Sum(
        run.Grid().Traffic().At(Group::kData, Transfer::kAllReduce).seconds_hidden);
    EXPECT_GT(hidden, kMost * kNap * static_cast<double>(early)) << deck;
  }
}

// Stands between the executor and the model: looks at what is under way as each task begins.
class Watched : public parallel::StageWork {
 public:
  static constexpr double kNap = 1e-3;  // s, before each task: time for transfers to hide in

  Watched(TrainingRun& run, const parallel::Program& program) : run_(run), program_(program) {}

  std::int64_t Rows(int micro_batch) const override { return run_.Net().Tasks().Rows(micro_batch); }

  void Run(const parallel::ProgramTask& task, const kernels::Matrix& in,
           const kernels::Matrix& out) override {
    ExpectPosted();
    ++done_;
    const std::pair<int, int> pass{task.task.chunk, task.task.micro_batch};
    if (task.task.kind == TaskKind::kForward) {
      EXPECT_TRUE(flying_.insert(pass).second);
      // No other task's activations lie in this one's place.
      EXPECT_TRUE(inputs_.emplace(task.task.chunk, task.slots.input).second);
      EXPECT_TRUE(weights_.emplace(task.task.chunk, task.slots.weight).second);
      most_ = std::max(most_, flying_.size());
    }
    EXPECT_EQ(flying_.count(pass), 1U);
    usleep(static_cast<unsigned>(kNap * 1e6));
    run_.Net().Tasks().Run(task, in, out);
    const bool both = task.task.kind == TaskKind::kBackward;
    if (both || task.task.kind == TaskKind::kBackwardInput) {
      inputs_.erase({task.task.chunk, task.slots.input});
    }
    if (both || task.task.kind == TaskKind::kBackwardWeight) {
      weights_.erase({task.task.chunk, task.slots.weight});
      flying_.erase(pass);
    }
  }

  std::size_t Most() const { return most_; }
  bool AllLanded() const { return flying_.empty() && done_ == program_.tasks.size(); }

 private:
  // Receives of this task and those before it, and the next one of each flow, whoever takes it in.
  void ExpectPosted() const {
    std::int64_t wanted = 0;
    for (const parallel::Flow flow : {parallel::Flow::kActivation, parallel::Flow::kGradient}) {
      bool next = false;
      for (std::size_t i = 0; i < program_.tasks.size() && !next; ++i) {
        const parallel::ProgramTask& task = program_.tasks[i];
        if (task.receives_in == parallel::kNoBuffer) continue;
        if (parallel::FlowOf(task.task.kind) != flow) continue;
        ++wanted;
        next = i > done_;
      }
    }
    EXPECT_EQ(counted_mpi::Of(Function::kIrecv, run_.Grid().Pipeline().Handle()).calls, wanted)
        << "task " << done_;
  }

  TrainingRun& run_;
  const parallel::Program& program_;
  std::size_t done_ = 0, most_ = 0;
  std::set<std::pair<int, int>> flying_;            // chunk, micro-batch
  std::set<std::pair<int, int>> inputs_, weights_;  // chunk, slot
};

// Runs the step's program on the real model and compares with what is published and planned.
void ExpectAsPlanned(TrainingRun& run, const data::TokenFile& tokens, const std::string& what) {
  SCOPED_TRACE(what);
  const std::vector<data::Entry> batches = BatchesOf(run, tokens);
  model::ParallelModel& net = run.Net();
  const int count = static_cast<int>(batches.size());
  ASSERT_EQ(net.Tasks().Stages().Padded(count), count);
  const parallel::Program& program = net.Tasks().Stages().TrainingProgram(count);
  net.Tasks().Begin(net.Tasks().Batches().Take(batches), {}, nullptr);
  run.Grid().Traffic().Clear();
  counted_mpi::Reset();
  Watched watched(run, program);
  net.Tasks().Stages().Run(program, watched);
  EXPECT_TRUE(watched.AllLanded());
  parallel::PipelineShape shape = net.Tasks().Stages().Shape();
  EXPECT_EQ(shape.micro_batches, count);
  EXPECT_EQ(watched.Most(),
            static_cast<std::size_t>(parallel::MostInFlight(shape, net.Tasks().Stages().Stage())));
  // The model has the program's slots, no more and no fewer.
  ASSERT_EQ(net.LocalPlan().slots.size(), program.slots.size());
  for (std::size_t chunk = 0; chunk < program.slots.size(); ++chunk) {
    EXPECT_EQ(net.LocalPlan().slots[chunk].input, program.slots[chunk].input);
    EXPECT_EQ(net.LocalPlan().slots[chunk].weight, program.slots[chunk].weight);
    EXPECT_EQ(net.LocalPlan().slots[chunk].backward, program.slots[chunk].backward);
  }
  // All but the first receive, and all but the last send of each flow, had a nap to hide in.
  for (const auto& [transfer, function] :
       {std::pair{Transfer::kReceive, Function::kIrecv}, {Transfer::kSend, Function::kIsend}}) {
    const comm::Traffic& traffic = run.Grid().Traffic().At(Group::kPipeline, transfer);
    EXPECT_EQ(traffic.calls, counted_mpi::Of(function, run.Grid().Pipeline().Handle()).calls);
    EXPECT_GT(traffic.calls, 2);
    EXPECT_GT(traffic.seconds_hidden, static_cast<double>(traffic.calls - 2) * Watched::kNap);
  }
}

TEST_F(OverlapTest, StagesReceiveAheadAndHoldWhatIsPublished) {
  for (const int stages : {2, 4, 8}) {
    for (const char* schedule : {"gpipe", "1f1b", "zero_bubble", "interleaved"}) {
      const bool interleaved = std::string(schedule) == "interleaved";
      const int data = world_.Size() / stages;
      // Twice as many micro-batches as stages, one window each; 16 blocks for 16 virtual stages.
      const std::string deck =
          OverlapDeck(2 * stages * data, 16,
                      fmt::format("data={}\npipeline={}\n[pipeline]\nschedule={}\n{}", data, stages,
                                  schedule, interleaved ? "chunks=2\n" : ""));
      TrainingRun run(world_, tokens_, SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32));
      ExpectAsPlanned(run, tokens_, fmt::format("{} on {} stages", schedule, stages));
    }
  }
}

// Transfers of shards beside computation, from recorded counts and times: pieces and units that
// leave before the backward pass ends, parameters that come before they are used.

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
      net.UsesOf(net.Tasks().Stages().TrainingProgram(static_cast<int>(batches.size()))));
  run.Grid().Traffic().Clear();
  counted_mpi::Reset();
  net.BeginStep();
  run.Net().Buckets().Begin();
  const std::int64_t used_before = net.Units().Gathers();
  ShardedPass pass;
  net.Tasks().StartTrain(net.Tasks().Batches().Take(batches), [&](std::int64_t) {
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
      settings.samples.batch = kMicroBatches * settings.grid->data;
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
