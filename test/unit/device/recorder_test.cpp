// The timeline: recorder, kernels' slices, and the file that is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "folders.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/device/trace_file.hpp"

namespace trireme::test {

// Contents of a file that gzip has compressed.

inline std::string Unzipped(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text;
  std::array<char, 4096> buffer{};
  for (int got = 0; (got = gzread(file, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  gzclose(file);
  return text;
}

}  // namespace trireme::test

#include "trireme/base/json.hpp"

namespace trireme::device {
namespace {

using device::Activity;
using test::Unzipped;

// Recorder: scopes that nest, the bound, and what a null pointer costs: nothing.

TEST(Recorder, KeepsScopesWithTheirPlace) {
  Recorder recorder(10, {});
  recorder.SetStep(7);
  {
    const Scope outer(&recorder, {.name = SliceName::kStep, .category = SliceCategory::kStep});
    recorder.SetTask(3, 1);
    const Scope inner(&recorder,
                      {.name = SliceName::kLayer, .phase = Phase::kBackward, .layer = 2});
  }
  const auto slices = recorder.Slices();
  ASSERT_EQ(slices.size(), 2u);
  const Slice &inner = slices[0], &outer = slices[1];
  EXPECT_EQ(inner.name, SliceName::kLayer);
  EXPECT_EQ(inner.phase, Phase::kBackward);
  EXPECT_EQ(inner.layer, 2);
  EXPECT_EQ(inner.micro_batch, 3);
  EXPECT_EQ(inner.chunk, 1);
  EXPECT_EQ(inner.step, 7);
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_LE(inner.begin, inner.end);
  EXPECT_LE(inner.end, outer.end);
}

TEST(Recorder, StopsAtItsBoundAndSaysFromWhichStep) {
  Recorder recorder(3, {});
  for (int step = 1; step <= 5; ++step) {
    recorder.SetStep(step);
    recorder.Add({.end = Seconds()});
  }
  EXPECT_EQ(recorder.Slices().size(), 3u);
  EXPECT_EQ(recorder.LeftOut(), 2);
  EXPECT_EQ(recorder.FirstStepLeftOut(), 4);
}

TEST(Recorder, TakesNothingFromBeforeItsTime) {
  const double before = Seconds();
  Recorder recorder(3, {});
  recorder.Add({.begin = before - 1, .end = Seconds()});
  EXPECT_GE(recorder.Slices().front().begin, before);
}

TEST(Recorder, IsNotNeeded) {
  const Scope scope(nullptr, {.name = SliceName::kUpdate, .queues = true});
}

// Kernels of a timeline: their names, the slices that they are of, their threads in the file.

TEST(ShortName, IsWithoutResultArgumentsAndNameSpaces) {
  EXPECT_EQ(ShortName("_ZN7trireme7kernels4cuda12_GLOBAL__N_19LayerNormIfLi256EEEvPKT_PS4_l"),
            "LayerNorm<float, 256>");
  EXPECT_EQ(ShortName("_Z6kernelPfi"), "kernel");
  EXPECT_EQ(ShortName("_ZN7cutlass7Kernel2I21cutlass_80_simt_sgemmEEvNT_6ParamsE"),
            "Kernel2<cutlass_80_simt_sgemm>");
  EXPECT_EQ(ShortName("_Z5applyIN2ns3AddIfEEEvT_PFvvE"), "apply<Add<float> >");
  EXPECT_EQ(ShortName("sm90_xmma_gemm_f32f32_tn_n_tilesize128x128x64"),
            "sm90_xmma_gemm_f32f32_tn_n_tilesize128x128x64");
  EXPECT_EQ(ShortName(""), "");
  EXPECT_EQ(ShortName(std::string(200, 'x')), std::string(77, 'x') + "...");
}

// Activities that a test makes up, with the tags that the recorder has pushed.
struct Script {
  std::vector<std::uint64_t> open, pushed;
  device::ActivityRecord record;
  bool finished = false;
  void Queue(Activity activity) {
    activity.tag = open.empty() ? 0 : open.back();
    record.all.push_back(activity);
  }
};
class Played : public device::Activities {
 public:
  explicit Played(Script& script) : script_(script) {}
  void Push(std::uint64_t tag) override {
    script_.open.push_back(tag);
    script_.pushed.push_back(tag);
  }
  void Pop() override { script_.open.pop_back(); }
  device::ActivityRecord Finish() override {
    script_.finished = true;
    return script_.record;
  }
  std::string Library() const override { return "played"; }

 private:
  Script& script_;
};

Activity Now(std::uint32_t queue, std::int32_t name) {
  const double now = Seconds();
  return {.begin = now, .end = now + 1e-9, .queue = queue, .name = name};
}

TEST(Recorder, KnowsTheSliceOfAKernel) {
  Script script;
  script.record.queue = 14;
  script.record.input_queue = 15;
  script.record.names = {"_Z6kernelPfi", "plain"};
  script.record.clock_error = 1e-6;
  Recorder recorder(20, {}, std::make_unique<Played>(script));
  recorder.SetStep(7);
  script.Queue(Now(15, -1));
  {
    const Scope step(&recorder, {.name = SliceName::kStep, .category = SliceCategory::kStep});
    recorder.SetTask(3, 1);
    {
      const Scope layer(&recorder,
                        {.name = SliceName::kLayer, .phase = Phase::kBackward, .layer = 2});
      script.Queue(Now(14, 0));
      script.Queue(Now(99, 1));
    }
    recorder.SetTask(-1, -1);
    script.Queue(Now(14, 1));
  }
  recorder.SetStep(8);
  script.Queue(Now(14, 1));
  script.Queue({.begin = Seconds() - 100, .end = Seconds() - 99, .queue = 14});
  recorder.Finish();
  EXPECT_TRUE(script.finished && script.open.empty());
  EXPECT_FALSE(recorder.TellsKernels());
  const Recorder::Kernels& kernels = recorder.AllKernels();
  ASSERT_EQ(kernels.all.size(), 5u);  // nothing from before its time
  EXPECT_THAT(kernels.names, testing::ElementsAre("kernel", "plain"));
  EXPECT_EQ(kernels.library, "played");
  const Kernel &input = kernels.all[0], &layer = kernels.all[1], &other = kernels.all[2],
               &step = kernels.all[3], &later = kernels.all[4];
  EXPECT_FALSE(input.tagged || later.tagged);
  EXPECT_EQ(input.step, 7);
  EXPECT_EQ(later.step, 8);
  EXPECT_EQ(layer.task, SliceName::kLayer);
  EXPECT_EQ(layer.phase, Phase::kBackward);
  EXPECT_EQ(layer.layer, 2);
  EXPECT_EQ(layer.micro_batch, 3);
  EXPECT_EQ(layer.chunk, 1);
  EXPECT_EQ(step.task, SliceName::kStep);
  EXPECT_EQ(step.layer, -1);
  EXPECT_EQ(step.micro_batch, -1);
  EXPECT_EQ((std::vector<int>{input.queue, layer.queue, other.queue, step.queue}),
            (std::vector<int>{1, 0, 2, 0}));
}

// Beyond the bound of slices a kernel is of the last slice around it that is known.
TEST(Recorder, TagsNoMoreThanItHasRoomFor) {
  Script script;
  Recorder recorder(2, {}, std::make_unique<Played>(script));
  recorder.SetStep(1);
  {
    const Scope outer(&recorder, {.name = SliceName::kStep});
    for (int i = 1; i <= 3; ++i) {
      const Scope inner(&recorder, {.name = SliceName::kLayer, .layer = i});
    }
  }
  EXPECT_THAT(script.pushed, testing::ElementsAre(1, 2, 1, 1));
  EXPECT_TRUE(script.open.empty());
}

TEST(Recorder, SaysFromWhichStepKernelsAreMissing) {
  Script script;
  Recorder recorder(2, {}, std::make_unique<Played>(script));
  recorder.SetStep(4);
  recorder.SetStep(5);
  script.record.left_out = 3;
  script.record.full_at = Seconds();
  recorder.SetStep(6);
  recorder.Finish();
  EXPECT_EQ(recorder.AllKernels().left_out, 3);
  EXPECT_EQ(recorder.AllKernels().first_step_left_out, 5);
}

TEST(TraceFile, HasAThreadForEachQueueOfACard) {
  const test::TemporaryFolder folder;
  const std::string path = folder.Path() + "/trace.json.gz";
  TraceFile file(path);
  Kernel kernel{.begin = 1e-3, .end = 2e-3, .step = 5, .layer = 2, .name = 0, .graph = 4};
  kernel.task = SliceName::kLayer;
  kernel.tagged = true;
  Kernel beside = kernel;  // at the same time: of a graph
  beside.begin = 1.5e-3;
  beside.name = -1;
  Kernel copy{.begin = 0, .end = 1e-3, .bytes = 12, .step = 5, .queue = 1};
  copy.kind = Activity::Kind::kCopy;
  RankFacts facts;
  facts.rank = 1;
  facts.aligned = [](double seconds) { return 2 * seconds; };
  file.Add(facts, {beside, copy, kernel}, {"Norm<\"1\">"});
  ASSERT_FALSE(file.Place({}));
  const nlohmann::json all = nlohmann::json::parse(test::Unzipped(path));
  std::map<std::string, nlohmann::json> threads, slices;
  for (const auto& event : all.at("traceEvents")) {
    if (event.at("name") == "thread_name") threads[event.at("args").at("name")] = event.at("tid");
    if (event.at("ph") == "X") slices[event.at("name")] = event;
  }
  ASSERT_EQ(threads.size(), 3u);
  ASSERT_EQ(slices.size(), 3u);
  const auto& first = slices.at("Norm<\"1\">");
  EXPECT_EQ(first.at("tid"), threads.at("kernels"));
  EXPECT_EQ(first.at("cat"), "kernel");
  EXPECT_EQ(first.at("ts"), 2000);
  EXPECT_EQ(first.at("dur"), 2000);
  EXPECT_EQ(first.at("args"),
            (nlohmann::json{{"step", 5}, {"task", "layer"}, {"layer", 2}, {"graph", 4}}));
  EXPECT_EQ(slices.at("kernel without a name").at("tid"), threads.at("kernels (2)"));
  EXPECT_EQ(slices.at("copy").at("tid"), threads.at("kernels: input"));
  EXPECT_EQ(slices.at("copy").at("args"), (nlohmann::json{{"step", 5}, {"bytes", 12}}));
}

// TraceFile: JSON that a reader of the format takes, lanes for slices that overlap, a failure that
// is told.

RankFacts Facts() {
  return {.rank = 3,
          .host = "node\"7\"",
          .group = [](int) { return "pipeline"; },
          .transfer = [](int) { return "send"; },
          .peer = [](const Slice& slice) { return slice.peer + 10; },
          .aligned = [](double seconds) { return 2 * seconds; }};
}

Slice Transfer(double begin, double end) {
  Slice slice{.begin = begin, .end = end, .bytes = 512};
  slice.name = SliceName::kTransfer;
  slice.category = SliceCategory::kTransfer;
  slice.queue = SliceQueue::kTransfers;
  slice.group = 5;
  slice.transfer = 5;
  return slice;
}

TEST(Lanes, AreAsManyAsSlicesOverlap) {
  const std::vector<Slice> slices = {Transfer(0, 4), Transfer(1, 2), Transfer(2, 3), Transfer(3, 5),
                                     Transfer(4, 6)};
  EXPECT_EQ(Lanes(slices), (std::vector<int>{0, 1, 1, 1, 0}));
}

TEST(TraceFile, IsWhatReadersOfTheFormatTake) {
  const test::TemporaryFolder folder;
  const std::string path = folder.Path() + "/trace.json.gz";
  TraceFile file(path);
  Slice task{.begin = 1e-3, .end = 3e-3};
  task.name = SliceName::kTask;
  task.category = SliceCategory::kCompute;
  task.phase = Phase::kForward;
  task.micro_batch = 4;
  Slice message = Transfer(1e-3, 2e-3);
  message.peer = 1;
  message.sequence = 9;
  file.Add(Facts(), {task, message, Transfer(1.5e-3, 4e-3)});
  ASSERT_FALSE(file.Place({{"clock_error_us", 1.5}}));

  const nlohmann::json all = nlohmann::json::parse(Unzipped(path));
  EXPECT_EQ(all.at("otherData").at("clock_error_us"), 1.5);
  std::map<std::string, nlohmann::json> threads;
  std::vector<nlohmann::json> slices;
  for (const auto& event : all.at("traceEvents")) {
    if (event.at("name") == "thread_name") threads[event.at("args").at("name")] = event.at("tid");
    if (event.at("name") == "process_name") {
      EXPECT_EQ(event.at("args").at("name"), "rank 3 on node\"7\"");
    }
    if (event.at("ph") == "X") slices.push_back(event);
  }
  ASSERT_EQ(slices.size(), 3u);
  const nlohmann::json& first = slices[0];
  EXPECT_EQ(first.at("name"), "forward 4");
  EXPECT_EQ(first.at("cat"), "compute");
  EXPECT_EQ(first.at("pid"), 3);
  EXPECT_EQ(first.at("tid"), threads.at("host"));
  EXPECT_EQ(first.at("ts"), 2000.0);  // the rank's clock brought to the file's
  EXPECT_EQ(first.at("dur"), 4000.0);
  EXPECT_EQ(slices[1].at("args").at("peer"), 11);
  EXPECT_EQ(slices[1].at("args").at("sequence"), 9);
  EXPECT_EQ(slices[1].at("args").at("bytes"), 512);
  EXPECT_EQ(slices[1].at("tid"), threads.at("transfers: pipeline"));
  EXPECT_EQ(slices[2].at("tid"), threads.at("transfers: pipeline (2)"));
}

TEST(TraceFile, TellsOfAFileThatCannotBeMade) {
  TraceFile file("/proc/no/such/trace.json.gz");
  file.Add(Facts(), {Transfer(0, 1)});
  EXPECT_TRUE(file.Place({}));
}

// As a full disk does, but with EFBIG.
TEST(TraceFile, LeavesNothingIfItCannotBeWrittenWhole) {
  const test::TemporaryFolder folder;
  const std::string path = folder.Path() + "/trace.json.gz";
  {
    TraceFile file(path);
    std::vector<Slice> slices;
    for (int i = 0; i < 50000; ++i) slices.push_back(Transfer(i, i + 1.0 / (i + 1)));
    const test::FullDisk full(20000);
    file.Add(Facts(), slices);
    EXPECT_EQ(file.Place({}), std::errc::file_too_large);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.Path()));
}

}  // namespace
}  // namespace trireme::device
