// Formats of run.json: those of this version and before are read, later ones refused.
#include "trireme/app/run_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.hpp"
#include "trireme/base/program.hpp"

namespace trireme::app {
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

TEST(Changes, TellOfAFileThatHasGrown) {
  const nlohmann::json was = {{"source_sha256", "a"}, {"train_tokens", 2000}, {"model", nullptr}};
  nlohmann::json now = was;
  EXPECT_THAT(ChangesOf(was, now), testing::IsEmpty());
  now["train_tokens"] = 3000;
  EXPECT_THAT(ChangesOf(was, now),
              ElementsAre("data.file holds another text: 3000 train tokens, was 2000"));
}

TEST(LayoutChange, NamesWhatIsOther) {
  const auto of = [](const nlohmann::json& was, const nlohmann::json& now) {
    nlohmann::json run = was;
    run["step"] = 10;
    return LayoutChange(ParseRunRecord(run, "step_00000010/run.json"), now);
  };
  const nlohmann::json was = {{"ranks", 2}, {"grid", "data 2"}, {"sharding", "none"}};
  EXPECT_EQ(of(was, was), "");
  EXPECT_EQ(of({}, was), "");  // of a version that did not record it
  EXPECT_EQ(of(was, {{"ranks", 4}, {"grid", "data 2"}, {"sharding", "parameters"}}),
            "ranks 4 after 2; sharding parameters after none");
}

// The set that decides on the best checkpoint, of versions that recorded it.
TEST(RunRecord, TheDecidingSetIsCompared) {
  const Decider code{.set = "code", .sha256 = std::string(64, 'a'), .tokens = 600, .since = 5};
  const RunRecord record =
      ParseRunRecord({{"step", 10}, {"validation", DeciderJson(code)}}, "run.json");
  ASSERT_TRUE(record.decider);
  EXPECT_EQ(record.decider->since, 5);
  EXPECT_EQ(DeciderChange(record, code), "");
  for (const auto& other :
       {Decider{.set = "text", .sha256 = code.sha256, .tokens = 600},
        Decider{.set = "code", .sha256 = "b", .tokens = 600},
        Decider{.set = "code", .sha256 = code.sha256, .tokens = 601},
        Decider{.set = "code", .sha256 = code.sha256, .tokens = 600, .windows = 9}}) {
    EXPECT_THAT(DeciderChange(record, other),
                HasSubstr("was by the set code (600 tokens, sha256 "));
  }
  EXPECT_EQ(DeciderChange(ParseRunRecord({{"step", 10}}, "run.json"), code), "");
  EXPECT_THAT(Refusal({{"step", 10}, {"validation", {{"set", "a"}}}}), HasSubstr("source_sha256"));
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
  EXPECT_THAT(
      ChangesOf({}, {{"document_mask", true}}),
      ElementsAre("data.document_mask is yes now and was no when the checkpoint was written"));
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
  deck::Schema schema;
  model::Declare(schema);
  const auto taken = [&](const std::string& norm) {
    const RunRecord record =
        ParseRunRecord({{"step", 10}, {"model", {{"norm", norm}}}}, "run.json");
    deck::Deck deck = deck::Deck::Parse(schema, "", "a.in", {});
    try {
      TakeModel(schema, record, false, deck);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(taken("\x1B[2J"), HasSubstr("model.norm = ?[2J: not one of"));
  EXPECT_LT(taken(std::string(40'000, 'x')).size(), 400u);
  const RunRecord record = ParseRunRecord({{"step", 10}, {"precision", "\x1B[2J"}}, "run.json");
  EXPECT_THAT(Changes(record, {{"precision", "fp32"}, {"model", nullptr}}),
              testing::ElementsAre(
                  "run.precision is fp32 now and was ?[2J when the checkpoint was written"));
}

// The model of a version without biases of their own for queries, norms of heads and scaled
// rotations: what they were then.
class OlderModel : public testing::Test {
 protected:
  OlderModel() {
    model::Declare(schema_);
    model::Options options;
    options.position = model::Position::kRope;
    json_ = ModelJson(options);
    for (const model::Setting& setting : model::SettingsOf({})) {
      const bool later = setting.of_rotation && setting.name != "rope_theta";
      const bool mup = setting.name == "parametrization" || setting.name.starts_with("mup_");
      if (later || mup || setting.name == "qkv_bias" || setting.name == "qk_norm") {
        json_.erase(setting.name);
      }
    }
  }
  // The model that a deck of these keys has with the checkpoint's weights.
  model::Options Taken(const std::vector<std::string>& keys, bool weights_alone = false) {
    const RunRecord record = ParseRunRecord({{"step", 10}, {"model", json_}}, "run.json");
    deck::Deck deck = deck::Deck::Parse(schema_, "", "a.in", keys);
    model::ResolvePreset(deck);
    TakeModel(schema_, record, weights_alone, deck);
    model::Resolve(deck);
    return model::Read(deck);
  }
  std::string Refused(const std::vector<std::string>& keys, bool weights_alone = false) {
    try {
      Taken(keys, weights_alone);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  deck::Schema schema_;
  nlohmann::json json_;
};

TEST_F(OlderModel, IsTakenAsItWas) {
  const model::Options options = Taken({});
  EXPECT_TRUE(options.qkv_bias);
  EXPECT_FALSE(options.qk_norm);
  EXPECT_EQ(options.rope_scaling, model::RopeScaling::kNone);
  EXPECT_EQ(Refused({"model.qkv_bias=yes", "model.qk_norm=no", "model.rope_scaling=none"}), "");
  json_["bias"] = false;
  EXPECT_FALSE(Taken({}).qkv_bias);
}

TEST_F(OlderModel, RefusesWhatItWasNot) {
  EXPECT_THAT(Refused({"model.qkv_bias=no"}),
              HasSubstr("model.qkv_bias = no, but the checkpoint was trained with "
                        "model.qkv_bias = yes"));
  EXPECT_THAT(Refused({"model.qk_norm=yes"}), HasSubstr("trained with model.qk_norm = no"));
  EXPECT_THAT(Refused({"model.rope_scaling=linear", "model.rope_factor=4"}),
              AllOf(HasSubstr("trained with model.rope_scaling = none"),
                    HasSubstr("trained with model.rope_factor = 0")));
  EXPECT_THAT(Refused({"model.parametrization=mup", "model.mup_base=64"}),
              AllOf(HasSubstr("trained with model.parametrization = standard"),
                    HasSubstr("trained with model.mup_base = 0")));
}

// For longer contexts; parameters stay as they are.
TEST_F(OlderModel, BeginsANewRunWithOtherRotations) {
  const model::Options options =
      Taken({"model.rope_scaling=linear", "model.rope_factor=4", "model.rope_theta=50000"}, true);
  EXPECT_EQ(options.rope_scaling, model::RopeScaling::kLinear);
  EXPECT_EQ(options.rope_factor, 4);
  EXPECT_EQ(options.rope_theta, 50'000);
  EXPECT_THAT(Refused({"model.qk_norm=yes"}, true), HasSubstr("trained with model.qk_norm = no"));
}

TEST_F(OlderModel, ANewRunHasNoNumbersOfTheFormerScaling) {
  json_["rope_scaling"] = "llama3";
  json_["rope_factor"] = 8.0;
  json_["rope_original_positions"] = 64;
  json_["rope_low_frequency_factor"] = 2.0;
  EXPECT_EQ(Taken({}).rope_low_frequency_factor, 2);
  EXPECT_EQ(Taken({}, true).rope_factor, 8);
  const model::Options options =
      Taken({"model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_positions=128"},
            true);
  EXPECT_EQ(options.rope_low_frequency_factor, 1);
  EXPECT_EQ(options.rope_original_positions, 128);
}

TEST(RunRecord, ScalesAreNumbersInSinglePrecision) {
  EXPECT_EQ(Refusal({{"step", 10}, {"fp8_scales", {1.0, 1e-300, 3.4e38}}}), "");
  EXPECT_THAT(Refusal({{"step", 10}, {"fp8_scales", {1e39}}}),
              HasSubstr("fp8_scales: numbers in single precision expected, 1e+39 found"));
  EXPECT_THAT(Refusal({{"step", 10}, {"fp8_scales", {"1"}}}), HasSubstr("\"1\" found"));
}

nlohmann::json FileJson(const std::string& file, const std::string& sha256, double weight) {
  return {{"file", file},  {"weight", weight},   {"source_sha256", sha256}, {"train_tokens", 1000},
          {"windows", 10}, {"windows_used", 25}, {"tokens", 2500}};
}

nlohmann::json RunWith(const nlohmann::json& mixture) {
  return {{"step", 10}, {"next_sample", 50}, {"tokens", 5000}, {"mixture", mixture}};
}

TEST(RunRecord, MixturesGiveTheirFilesPlaces) {
  const RunRecord record = ParseRunRecord(
      RunWith({FileJson("a.h5", "aa", 0.7), FileJson("b.h5", "bb", 0.3)}), "run.json");
  ASSERT_EQ(record.mixture.size(), 2u);
  EXPECT_EQ(record.mixture[1].file, "b.h5");
  EXPECT_EQ(record.mixture[1].sha256, "bb");
  EXPECT_EQ(record.mixture[1].source.tokens, 1000);
  EXPECT_EQ(record.mixture[1].source.proportion.weight, 0.3);
  ASSERT_TRUE(record.origin);
  EXPECT_EQ(record.origin->sources,
            (std::vector<data::SourcePlace>{{.windows = 25, .targets = 2500}, {25, 2500}}));
}

TEST(RunRecord, DamagedMixturesAreRefused) {
  const auto refusal = [](const std::string& member, const nlohmann::json& value) {
    nlohmann::json file = FileJson("a.h5", "aa", 1);
    file[member] = value;
    return Refusal(RunWith({FileJson("b.h5", "bb", 1), file}));
  };
  EXPECT_EQ(refusal("windows_used", 0), "");
  EXPECT_THAT(refusal("windows_used", -1), HasSubstr("run.json: mixture: windows_used"));
  EXPECT_THAT(refusal("train_tokens", std::int64_t{1} << 60), HasSubstr("train_tokens"));
  EXPECT_THAT(refusal("weight", 0), HasSubstr("weight"));
  EXPECT_THAT(refusal("file", 7), HasSubstr("file"));
  EXPECT_THAT(refusal("epochs", 2), HasSubstr("weights and epochs in one list"));
  EXPECT_THAT(Refusal(RunWith(nlohmann::json::array())), HasSubstr("1 to 100 files expected"));
  EXPECT_THAT(Refusal(RunWith({1, 2})), HasSubstr("mixture"));
  EXPECT_THAT(Refusal(RunWith("a.h5:1")), HasSubstr("mixture"));
}

TEST(Changes, NameAnotherMixture) {
  const nlohmann::json a = FileJson("a.h5", "aa", 0.7), b = FileJson("b.h5", "bb", 0.3);
  const nlohmann::json was = RunWith({a, b});
  // Names and a common factor of the weights change nothing.
  EXPECT_THAT(ChangesOf(was, was), IsEmpty());
  EXPECT_THAT(ChangesOf(was, RunWith({FileJson("c.h5", "aa", 7), FileJson("b.h5", "bb", 3)})),
              IsEmpty());
  EXPECT_THAT(ChangesOf(was, RunWith({b, a})),
              ElementsAre("data.mixture is b.h5:0.3, a.h5:0.7 now and was a.h5:0.7, b.h5:0.3 when "
                          "the checkpoint was written: each file goes on at its own place"));
  EXPECT_THAT(ChangesOf(was, RunWith({a, FileJson("b.h5", "new", 0.3)})),
              ElementsAre(HasSubstr("a file has other contents than when")));
  // A file alone is a mixture of one.
  const nlohmann::json alone = {{"step", 10}, {"source_sha256", "aa"}};
  EXPECT_THAT(ChangesOf(alone, RunWith(nlohmann::json::array({a}))), IsEmpty());
  EXPECT_THAT(ChangesOf(alone, was), ElementsAre(HasSubstr("and was not set when")));
}

}  // namespace
}  // namespace trireme::app
