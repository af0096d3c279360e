// Event files of TensorBoard: records, messages, histograms, the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "event.pb.h"
#include "event_files.hpp"
#include "folders.hpp"
#include "trireme/base/error.hpp"
#include "trireme/report/tensorboard.hpp"

namespace trireme::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Event files as a session leaves them, and what the next one keeps.

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

// Histograms against a plain search of the limits, and put together from parts.

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t SearchedBucket(double value) {
  const std::vector<double>& limits = Histogram::Limits();
  const auto above = std::upper_bound(limits.begin(), limits.end(), value);
  return std::min<std::size_t>(above - limits.begin(), limits.size() - 1);
}

std::size_t BucketOf(double value) {
  Histogram histogram;
  histogram.Add(value);
  const auto& counts = histogram.Counts();
  return std::find(counts.begin(), counts.end(), 1.0) - counts.begin();
}

TEST(Histogram, LimitsAreTensorFlows) {
  const std::vector<double>& limits = Histogram::Limits();
  EXPECT_EQ(limits.size(), 1551U);
  EXPECT_TRUE(std::is_sorted(limits.begin(), limits.end()));
  EXPECT_EQ(limits.front(), -std::numeric_limits<double>::max());
  EXPECT_EQ(limits[775], 0);
  EXPECT_EQ(limits[776], 1e-12);
  EXPECT_NEAR(limits[777], 1.1e-12, 1e-24);
}

TEST(Histogram, FindsTheBucketThatASearchFinds) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-320, 308), sign(-1, 1);
  for (int i = 0; i < 200000; ++i) {
    const double value = std::copysign(std::pow(10, exponent(random)), sign(random));
    ASSERT_EQ(BucketOf(value), SearchedBucket(value)) << value;
    const auto narrow = static_cast<float>(value);
    ASSERT_EQ(BucketOf(narrow), SearchedBucket(narrow)) << narrow;
  }
}

// Limits themselves, their neighbours, and the ends of the range.
TEST(Histogram, PutsLimitsIntoTheBucketAboveThem) {
  for (const double limit : Histogram::Limits()) {
    for (const double value :
         {limit, std::nextafter(limit, kInfinity), std::nextafter(limit, -kInfinity)}) {
      ASSERT_EQ(BucketOf(value), SearchedBucket(value)) << value;
    }
  }
  EXPECT_EQ(BucketOf(0.0), 776U);
  EXPECT_EQ(BucketOf(-0.0), 776U);
  EXPECT_EQ(BucketOf(kInfinity), 1550U);
  EXPECT_EQ(BucketOf(-kInfinity), 0U);
}

TEST(Histogram, SumsAreOfAllValues) {
  Histogram histogram;
  for (const double value : {1.0, -2.0, 1e-30, 0.5}) histogram.Add(value);
  histogram.Add(std::nan(""));
  EXPECT_EQ(histogram.Count(), 4);
  EXPECT_EQ(histogram.Min(), -2);
  EXPECT_EQ(histogram.Max(), 1);
  EXPECT_EQ(histogram.Sum(), -0.5);
  EXPECT_EQ(histogram.Squares(), 5.25);
}

// The numbers that ranks send add up to the histogram of all values, bit for bit.
TEST(Histogram, PartsMakeUpTheWhole) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::array<Histogram, 3> parts;
  Histogram whole;
  for (int i = 0; i < 10000; ++i) {
    const double value = normal(random);
    parts[i * i % 3].Add(value);
    whole.Add(value);
  }
  std::vector<double> sum(Histogram::Addable(), 0), one(Histogram::Addable());
  std::array<double, 2> maxima = {-kInfinity, -kInfinity}, extremes{};
  for (const Histogram& part : parts) {
    part.Pack(one, extremes);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
    for (std::size_t i = 0; i < 2; ++i) maxima[i] = std::max(maxima[i], extremes[i]);
  }
  const Histogram joined = Histogram::Unpack(sum, maxima);
  EXPECT_EQ(joined.Counts(), whole.Counts());
  EXPECT_EQ(joined.Min(), whole.Min());
  EXPECT_EQ(joined.Max(), whole.Max());
  EXPECT_EQ(joined.Sum(), whole.Sum());
  EXPECT_EQ(joined.Squares(), whole.Squares());
}

// Copies of a tensor share the counting, and whatever part of it a rank holds.
TEST(HistogramsOf, CountsEachElementOnce) {
  std::vector<float> values(200000);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  const auto block = [&](std::int64_t begin, std::int64_t end, int replica, int replicas) {
    return kernels::StateBlock{.name = "w",
                               .shape = {200000},
                               .dtype = Dtype::kFloat32,
                               .begin = begin,
                               .end = end,
                               .data = values.data() + begin,
                               .replica = replica,
                               .replicas = replicas};
  };
  const auto count = [](const kernels::StateBlock& part) {
    const std::vector<kernels::StateBlock> blocks = {part};
    return HistogramsOf({}, blocks, {}, "weights/").front();
  };
  const NamedHistogram whole = count(block(0, 200000, 0, 1));
  EXPECT_EQ(whole.name, "weights/w");
  EXPECT_EQ(whole.histogram.Count(), 200000);
  double sum = 0, squares = 0;
  for (const auto& part : {block(0, 123456, 0, 2), block(123456, 200000, 0, 2),
                           block(0, 123456, 1, 2), block(123456, 200000, 1, 2)}) {
    const NamedHistogram of_part = count(part);
    sum += of_part.histogram.Count();
    squares += of_part.histogram.Squares();
  }
  EXPECT_EQ(sum, 200000);
  EXPECT_NEAR(squares, whole.histogram.Squares(), 1e-9 * squares);
}

TEST(HistogramsOf, ReadsAndDivides) {
  std::vector<double> values = {2, 4, 6};
  const std::vector<kernels::StateBlock> blocks = {
      {.name = "g", .shape = {3}, .dtype = Dtype::kFloat64, .begin = 0, .end = 3, .data = nullptr}};
  const auto read = [&](const kernels::StateBlock&, std::int64_t first, std::int64_t last,
                        void* to) {
    std::copy(values.begin() + first, values.begin() + last, static_cast<double*>(to));
  };
  const Histogram histogram = HistogramsOf({}, blocks, read, "", 2).front().histogram;
  EXPECT_EQ(histogram.Sum(), 6);
  EXPECT_EQ(histogram.Squares(), 14);
  EXPECT_EQ(histogram.Max(), 3);
}

// Messages: what text, hyperparameters and histograms become.

class Messages : public test::FolderTest {
 protected:
  // The events that a log writes, without that of the version.
  template <typename Add>
  std::vector<proto::Event> Written(const Add& add) const {
    EventLog log({.folder = In("tensorboard")});
    add(log);
    log.Flush();
    RecordReader reader(EventFiles(In("tensorboard")).back());
    std::vector<proto::Event> events;
    while (const auto payload = reader.Next()) {
      EXPECT_TRUE(events.emplace_back().ParseFromString(*payload));
    }
    events.erase(events.begin());
    return events;
  }
  template <typename Add>
  proto::Summary::Value Value(const Add& add) const {
    return Written(add).at(0).summary().value(0);
  }
};

TEST_F(Messages, ScalarsAreFloats) {
  const auto value = Value([](EventLog& log) { log.Add(1, {{"loss/train", 0.1}}); });
  EXPECT_EQ(value.tag(), "loss/train");
  EXPECT_EQ(value.simple_value(), 0.1F);
}

// Each line is code to Markdown, whatever ends it and whatever it holds.
TEST_F(Messages, TextIsShownLetterByLetter) {
  const auto value = Value([](EventLog& log) {
    log.AddText("sample", "# one\r<script>alert(1)</script>\n\nthree \xFF");
  });
  EXPECT_EQ(value.tensor().string_val(0),
            "    # one\n    <script>alert(1)</script>\n    \n    three \xEF\xBF\xBD\n");
  EXPECT_EQ(value.metadata().plugin_data().plugin_name(), "text");
}

TEST_F(Messages, HyperparametersKeepTheirKind) {
  const auto value = Value([](EventLog& log) {
    log.AddHParams({{"optimizer.learning_rate", "2e-3"},
                    {"model.dim", "128"},
                    {"model.bias", "yes"},
                    {"model.norm", "rmsnorm"},
                    {"data.mixture", ""},
                    {"grid.list", "1,2"},
                    {"huge", "1e999"}});
  });
  proto::HParamsPluginData data;
  ASSERT_TRUE(data.ParseFromString(value.metadata().plugin_data().content()));
  const auto& values = data.session_start_info().hparams();
  EXPECT_EQ(values.size(), 6U);
  EXPECT_EQ(values.at("optimizer.learning_rate").number_value(), 2e-3);
  EXPECT_EQ(values.at("model.dim").number_value(), 128);
  EXPECT_TRUE(values.at("model.bias").bool_value());
  EXPECT_EQ(values.at("model.norm").string_value(), "rmsnorm");
  EXPECT_EQ(values.at("grid.list").string_value(), "1,2");
  EXPECT_EQ(values.at("huge").string_value(), "1e999");
}

TEST_F(Messages, TheEndIsASuccessOfTheHyperparameters) {
  const auto value = Value([](EventLog& log) { log.AddEnd(); });
  EXPECT_EQ(value.tag(), "_hparams_/session_end_info");
  proto::HParamsPluginData data;
  ASSERT_TRUE(data.ParseFromString(value.metadata().plugin_data().content()));
  EXPECT_EQ(data.session_end_info().status(), proto::STATUS_SUCCESS);
}

TEST_F(Messages, HistogramsLeaveOutEmptyBuckets) {
  NamedHistogram named{"weights/w", {}};
  for (const double value : {-1.0, 0.0, 0.0, 1e-12}) named.histogram.Add(value);
  const auto value = Value([&](EventLog& log) { log.AddHistograms(1, std::vector{named}); });
  const proto::HistogramProto& message = value.histo();
  EXPECT_EQ(message.min(), -1);
  EXPECT_EQ(message.max(), 1e-12);
  EXPECT_EQ(message.num(), 4);
  EXPECT_THAT(message.bucket(), ElementsAre(1, 0, 2, 1));
  EXPECT_EQ(message.bucket_limit(1), 0);
  EXPECT_EQ(message.bucket_limit(2), 1e-12);
  EXPECT_GT(message.bucket_limit(0), -1);
}

TEST_F(Messages, AnEmptyHistogramHasOneBucket) {
  const auto value = Value([](EventLog& log) {
    log.AddHistograms(1, std::vector<NamedHistogram>{{"weights/w", {}}});
  });
  EXPECT_THAT(value.histo().bucket(), ElementsAre(0));
  EXPECT_EQ(value.histo().max(), 0);
}

// Framing of event files against known vectors, and what a reader makes of damage.

// RFC 3720, appendix B.4, and the check value of the Rocksoft catalogue.
TEST(Record, Crc32cHasTheKnownValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string bytes(32, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  EXPECT_EQ(Crc32c(bytes), 0x46DD794EU);
  std::ranges::reverse(bytes);
  EXPECT_EQ(Crc32c(bytes), 0x113FDB5CU);
  EXPECT_EQ(Crc32c(""), 0U);
}

// The bytes that TensorBoard's own writer gives.
TEST(Record, IsFramedAsTensorBoardDoesIt) {
  std::string record;
  AppendRecord("foo", record);
  const unsigned char expected[] = {0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xb0, 0x99,
                                    0x49, 0x0e, 0x66, 0x6f, 0x6f, 0x61, 0x8a, 0xbe, 0xfe};
  EXPECT_EQ(record, std::string(reinterpret_cast<const char*>(expected), sizeof expected));
}

class RecordFile : public test::FolderTest {
 protected:
  std::string Write(const std::string& bytes) const {
    test::WriteBytes(In("records"), bytes);
    return In("records");
  }
};

TEST_F(RecordFile, ReadsWhatWasAppended) {
  std::string bytes;
  const std::string large(100000, 'x');
  for (const std::string& payload : {std::string("one"), std::string(), large}) {
    AppendRecord(payload, bytes);
  }
  RecordReader reader(Write(bytes));
  EXPECT_EQ(reader.Next(), "one");
  EXPECT_EQ(reader.End(), 19);
  EXPECT_EQ(reader.Next(), "");
  EXPECT_EQ(reader.Next(), large);
  EXPECT_EQ(reader.Next(), std::nullopt);
  EXPECT_EQ(reader.End(), static_cast<std::int64_t>(bytes.size()));
  EXPECT_FALSE(reader.Failed());
}

// A file that was cut off anywhere within its second record ends after the first one.
TEST_F(RecordFile, EndsAtATornRecord) {
  std::string bytes;
  AppendRecord("first", bytes);
  const std::size_t whole = bytes.size();
  AppendRecord("second", bytes);
  for (std::size_t size = whole; size < bytes.size(); ++size) {
    RecordReader reader(Write(bytes.substr(0, size)));
    EXPECT_EQ(reader.Next(), "first");
    EXPECT_EQ(reader.Next(), std::nullopt) << size;
    EXPECT_EQ(reader.End(), static_cast<std::int64_t>(whole));
  }
}

// One bit of the second record, whichever: its length, a checksum or its payload.
TEST_F(RecordFile, EndsAtADamagedRecord) {
  std::string bytes;
  AppendRecord("first", bytes);
  const std::size_t whole = bytes.size();
  AppendRecord("second", bytes);
  AppendRecord("third", bytes);
  for (std::size_t at = whole; at < whole + 22; ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    RecordReader reader(Write(damaged));
    EXPECT_EQ(reader.Next(), "first");
    EXPECT_EQ(reader.Next(), std::nullopt) << at;
    EXPECT_EQ(reader.Next(), std::nullopt) << at;
    EXPECT_EQ(reader.End(), static_cast<std::int64_t>(whole));
  }
}

TEST_F(RecordFile, SaysThatAFileCannotBeRead) {
  RecordReader reader(In("none"));
  EXPECT_TRUE(reader.Failed());
  EXPECT_EQ(reader.Next(), std::nullopt);
}

}  // namespace
}  // namespace trireme::report
