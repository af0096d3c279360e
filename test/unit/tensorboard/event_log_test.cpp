// Event files as a session leaves them, and what the next one keeps.
#include "trireme/report/tensorboard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "event.pb.h"
#include "event_files.hpp"
#include "folder_test.hpp"
#include "full_disk.hpp"
#include "trireme/base/error.hpp"

namespace trireme::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EventLogTest : public test::FolderTest {
 protected:
  // "v" the version, "start S", "S tag" of a value: of all files, in the order of reading.
  std::vector<std::string> Events() const {
    std::vector<std::string> found;
    for (const std::string& path : EventFiles(In("tensorboard"))) {
      RecordReader reader(path);
      while (const auto payload = reader.Next()) {
        proto::Event event;
        EXPECT_TRUE(event.ParseFromString(*payload));
        const std::string step = std::to_string(event.step());
        if (event.has_session_log()) found.push_back("start " + step);
        if (!event.file_version().empty()) found.push_back("v");
        for (const auto& value : event.summary().value()) {
          found.push_back(step + " " + value.tag());
        }
      }
    }
    return found;
  }

  EventLog::Setup From(std::int64_t step, bool continues = true) {
    return {.folder = In("tensorboard"),
            .continues = continues,
            .resume_step = step,
            .flush_seconds = 1000};
  }

  // Steps first to last of a session from `step` on.
  void Run(std::int64_t from, std::int64_t first, std::int64_t last) {
    EventLog log(From(from));
    if (!log.HasStart()) log.AddHParams({{"a", "1"}});
    for (std::int64_t step = first; step <= last; ++step) log.Add(step, {{"loss", 1}});
  }

  // As the monitor does: keeps what is thrown.
  template <typename Call>
  void Try(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      failures_.emplace_back(error.what());
    }
  }

  std::vector<std::string> failures_;
};

TEST_F(EventLogTest, WritesWhatItIsGiven) {
  {
    EventLog log(From(0, false));
    EXPECT_FALSE(log.HasStart());
    log.AddHParams({{"a", "1"}});
    log.Add(1, {{"loss", 2}, {"rate", 3}});
    log.AddText("sample", "text");
    log.AddHistograms(2, std::vector<NamedHistogram>{{"w", {}}, {"g", {}}});
    log.AddEnd();
  }
  EXPECT_THAT(Events(), ElementsAre("v", "0 _hparams_/session_start_info", "1 loss", "1 rate",
                                    "1 sample", "2 w", "2 g", "2 _hparams_/session_end_info"));
}

TEST_F(EventLogTest, IsBufferedUntilItIsFlushed) {
  EventLog log(From(0, false));
  log.Add(1, {{"loss", 2}});
  EXPECT_TRUE(Events().empty());
  log.Flush();
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss"));
  log.Add(2, {{"loss", 2}});
  log.Sync();
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss", "2 loss"));
}

TEST_F(EventLogTest, IsFlushedAfterAWhile) {
  EventLog::Setup setup = From(0, false);
  setup.flush_seconds = 0;
  EventLog log(setup);
  log.Add(1, {{"loss", 2}});
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss"));
}

TEST_F(EventLogTest, ASessionThatGoesOnCutsLaterSteps) {
  Run(0, 1, 5);
  Run(3, 4, 6);
  EXPECT_THAT(Events(), ElementsAre("v", "0 _hparams_/session_start_info", "1 loss", "2 loss",
                                    "3 loss", "v", "start 4", "4 loss", "5 loss", "6 loss"));
}

// Back before an earlier resumption: its file goes as a whole.
TEST_F(EventLogTest, SessionsThatBeganLaterAreRemoved) {
  Run(0, 1, 4);
  Run(3, 4, 6);
  Run(3, 4, 4);
  Run(2, 3, 3);
  EXPECT_THAT(Events(), ElementsAre("v", "0 _hparams_/session_start_info", "1 loss", "2 loss", "v",
                                    "start 3", "3 loss"));
  EXPECT_EQ(EventFiles(In("tensorboard")).size(), 2U);
}

// The end of a run is no end once it goes on.
TEST_F(EventLogTest, TheEndIsCut) {
  {
    EventLog log(From(0, false));
    log.Add(1, {{"loss", 1}});
    log.AddEnd();
  }
  Run(1, 2, 2);
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss", "v", "start 2", "2 loss"));
}

TEST_F(EventLogTest, ATornEndIsCut) {
  Run(0, 1, 3);
  const std::string path = EventFiles(In("tensorboard")).front();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  Run(3, 4, 4);
  EXPECT_THAT(Events(), ElementsAre("v", "0 _hparams_/session_start_info", "1 loss", "2 loss", "v",
                                    "start 4", "4 loss"));
}

TEST_F(EventLogTest, ANewRunRemovesTheEventsOfAnother) {
  Run(0, 1, 3);
  test::WriteBytes(In("tensorboard/mine.txt"), "kept");
  EventLog log(From(0, false));
  log.Add(1, {{"loss", 2}});
  log.Flush();
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss"));
  EXPECT_EQ(test::ReadBytes(In("tensorboard/mine.txt")), "kept");
}

TEST_F(EventLogTest, GoesBackWithinASession) {
  EventLog log(From(0, false));
  for (std::int64_t step = 1; step <= 5; ++step) log.Add(step, {{"loss", 2}});
  log.GoBack(3);
  log.Add(4, {{"loss", 2}});
  log.GoBack(3);
  log.Add(4, {{"loss", 2}});
  log.Flush();
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss", "2 loss", "3 loss", "v", "start 4", "4 loss"));
}

// Texts that are told early, late or after a step back never look like a restart.
TEST_F(EventLogTest, TextsAreOfTheLastStep) {
  EventLog log(From(0, false));
  log.AddText("events", "start");
  log.Add(5, {{"loss", 2}});
  log.AddText("events", "checkpoint");
  log.GoBack(3);
  log.AddText("events", "went back from step 5");
  log.Add(4, {{"loss", 2}});
  log.Flush();
  EXPECT_THAT(Events(), ElementsAre("v", "0 events", "v", "start 4", "3 events", "4 loss"));
}

TEST_F(EventLogTest, AFolderThatCannotBeMadeIsOneWarning) {
  test::WriteBytes(In("tensorboard"), "a file");
  EventLog log(From(0, false));
  log.AddHistograms(0, {});
  Try([&] { log.Add(1, {{"loss", 2}}); });
  Try([&] { log.GoBack(0); });
  Try([&] { log.Flush(); });
  Try([&] { log.Sync(); });
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("tensorboard: cannot be made")));
}

TEST_F(EventLogTest, AFullDiskIsOneWarning) {
  EventLog log(From(0, false));
  log.Add(1, {{"loss", 2}});
  log.Flush();
  const std::string path = EventFiles(In("tensorboard")).front();
  {
    const test::FullDisk limit(std::filesystem::file_size(path) + 10);
    for (std::int64_t step = 2; step < 4; ++step) {
      log.Add(step, {{"loss", 2}});
      Try([&] { log.Flush(); });
    }
    EXPECT_THAT(Events(), ElementsAre("v", "1 loss"));
  }
  EXPECT_THAT(failures_, ElementsAre(HasSubstr(path + ": cannot be written: ")));
  // Once there is room what has waited is written.
  log.Add(4, {{"loss", 2}});
  log.Flush();
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss", "2 loss", "3 loss", "4 loss"));
}

// Events that wait take a bounded memory.
TEST_F(EventLogTest, ADiskThatStaysFullLosesEvents) {
  EventLog log(From(0, false));
  log.Add(1, {{"loss", 2}});
  log.Flush();
  const std::string long_text(std::size_t{1} << 20, 'x');
  {
    const test::FullDisk limit(std::filesystem::file_size(EventFiles(In("tensorboard")).front()));
    Try([&] { log.AddText("sample", long_text); });
    EXPECT_EQ(failures_.size(), 1U);
  }
  log.Add(2, {{"loss", 2}});
  log.Flush();
  EXPECT_THAT(Events(), ElementsAre("v", "1 loss", "2 loss"));
}

}  // namespace
}  // namespace trireme::report
