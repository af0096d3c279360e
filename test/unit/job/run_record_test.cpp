// Formats of run.json: those of this version and before are read, later ones refused.
#include "trireme/job/run_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"

namespace trireme::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Message of the InputError that a run.json leads to; empty if it is read.
std::string Refusal(const nlohmann::json& run) {
  try {
    ParseRunRecord(run, "step_00000010/run.json");
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
}

TEST(RunRecord, FormatsUpToThisVersionsAreRead) {
  EXPECT_EQ(Refusal({{"step", 10}}), "");
  EXPECT_EQ(Refusal({{"step", 10}, {"format", 1}, {"trireme", "0.1.0"}}), "");
}

// A later format may lack any member of this one: the format is looked at first.
TEST(RunRecord, LaterFormatsNameTheVersionThatReadsThem) {
  EXPECT_EQ(Refusal({{"format", 2}, {"trireme", "0.9.3"}}),
            "step_00000010/run.json: written by Trireme 0.9.3 in format 2; this is Trireme " +
                Version() + ", which reads format 1\n  Use Trireme 0.9.3 or a later version.");
  EXPECT_THAT(Refusal({{"format", 7}}),
              AllOf(HasSubstr("written by a later Trireme in format 7"),
                    HasSubstr("Use the version of Trireme that wrote it, or a later one.")));
}

// Changes of a continued run, as its warnings name them.
std::vector<std::string> ChangesOf(const nlohmann::json& was, const nlohmann::json& now) {
  nlohmann::json run = was;
  run["step"] = 10;
  return Changes(ParseRunRecord(run, "step_00000010/run.json"), now);
}

TEST(Changes, NameKeysThatOneSideAloneHas) {
  const nlohmann::json was = {{"optimizer", {{"beta1", "0.9"}, {"kind", "adamw"}}},
                              {"schedule", {{"steps", "20"}, {"warmup_steps", "4"}}}};
  nlohmann::json now = was;
  now["schedule"] = {{"epochs", "3"}, {"warmup_steps", "4"}};
  EXPECT_THAT(
      ChangesOf(was, now),
      ElementsAre("schedule.epochs is 3 now and was not set when the checkpoint was written",
                  "schedule.steps is not set now and was 20 when the checkpoint was "
                  "written"));
  EXPECT_THAT(ChangesOf(now, was), SizeIs(2));
  EXPECT_THAT(ChangesOf(was, was), IsEmpty());
}

TEST(Changes, LeaveOutWhatIsOfASessionOrWasNotRecorded) {
  const nlohmann::json now = {{"batch", 8},
                              {"model", {{"dim", 4}, {"later", 1}}},
                              {"optimizer", {{"beta1", "0.90"}}},
                              {"schedule", {{"steps", "20"}, {"stop_at", "5"}}}};
  EXPECT_THAT(ChangesOf({}, now), IsEmpty()) << "an early version recorded none of it";
  const nlohmann::json was = {{"model", {{"dim", 4}}},
                              {"optimizer", {{"beta1", "0.9"}}},
                              {"schedule", {{"steps", "20"}, {"walltime_minutes", "1"}}}};
  EXPECT_THAT(ChangesOf(was, now), IsEmpty());
}

TEST(Changes, DocumentMasksAreNamedAlsoWhereAnEarlyVersionHadNone) {
  EXPECT_THAT(ChangesOf({}, {{"document_mask", true}}),
              ElementsAre("document_mask is yes now and was no when the checkpoint was written"));
  EXPECT_THAT(ChangesOf({{"document_mask", true}}, {{"document_mask", false}}), SizeIs(1));
  EXPECT_THAT(ChangesOf({{"document_mask", true}}, {{"document_mask", true}}), IsEmpty());
  EXPECT_THAT(ChangesOf({}, {{"document_mask", false}}), IsEmpty());
}

TEST(RunRecord, FormatsThatAreNoneAreRefused) {
  EXPECT_THAT(Refusal({{"step", 10}, {"format", "1"}}), HasSubstr("format"));
  EXPECT_THAT(Refusal({{"step", 10}, {"format", 0}}), HasSubstr("format"));
}

// A checkpoint is a file from anywhere: nothing of it reaches a terminal as it is, or at any
// length.
TEST(RunRecord, ValuesAreShownSafely) {
  input::Schema schema;
  model::Declare(schema);
  const auto taken = [&](const std::string& norm) {
    const RunRecord record =
        ParseRunRecord({{"step", 10}, {"model", {{"norm", norm}}}}, "run.json");
    input::Deck deck = input::Deck::Parse(schema, "", "a.in", {});
    try {
      TakeModel(schema, record, deck);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(taken("\x1B[2J"), HasSubstr("model.norm = ?[2J: not one of"));
  EXPECT_LT(taken(std::string(40'000, 'x')).size(), 400u);
  const RunRecord record = ParseRunRecord({{"step", 10}, {"precision", "\x1B[2J"}}, "run.json");
  EXPECT_THAT(
      Changes(record, {{"precision", "fp32"}, {"model", nullptr}}),
      testing::ElementsAre("precision is fp32 now and was ?[2J when the checkpoint was written"));
}

TEST(RunRecord, ScalesAreNumbersInSinglePrecision) {
  EXPECT_EQ(Refusal({{"step", 10}, {"fp8_scales", {1.0, 1e-300, 3.4e38}}}), "");
  EXPECT_THAT(Refusal({{"step", 10}, {"fp8_scales", {1e39}}}),
              HasSubstr("fp8_scales: numbers in single precision expected, 1e+39 found"));
  EXPECT_THAT(Refusal({{"step", 10}, {"fp8_scales", {"1"}}}), HasSubstr("\"1\" found"));
}

}  // namespace
}  // namespace trireme::job
