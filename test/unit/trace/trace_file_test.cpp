// TraceFile: JSON that a reader of the format takes, lanes for slices that overlap, a failure that
// is told.
#include "trireme/device/trace_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "full_disk.hpp"
#include "temporary_folder.hpp"
#include "unzipped.hpp"

#include "trireme/base/json.hpp"

namespace trireme::device {
namespace {

using test::Unzipped;

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
