// Messages: what text, hyperparameters and histograms become.
#include "event_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace trireme::report {
namespace {

using testing::ElementsAre;

TEST(Messages, ScalarsAreFloats) {
  proto::Event event;
  AddScalar("loss/train", 0.1, event);
  EXPECT_EQ(event.summary().value(0).tag(), "loss/train");
  EXPECT_EQ(event.summary().value(0).simple_value(), 0.1F);
}

// Each line is code to Markdown, whatever ends it and whatever it holds.
TEST(Messages, TextIsShownLetterByLetter) {
  proto::Event event;
  AddText("sample", "# one\r<script>alert(1)</script>\n\nthree \xFF", event);
  EXPECT_EQ(event.summary().value(0).tensor().string_val(0),
            "    # one\n    <script>alert(1)</script>\n    \n    three \xEF\xBF\xBD\n");
  EXPECT_EQ(event.summary().value(0).metadata().plugin_data().plugin_name(), "text");
}

TEST(Messages, HyperparametersKeepTheirKind) {
  proto::Event event;
  AddHParams({{"optimizer.learning_rate", "2e-3"},
              {"model.dim", "128"},
              {"model.bias", "yes"},
              {"model.norm", "rmsnorm"},
              {"data.mixture", ""},
              {"grid.list", "1,2"},
              {"huge", "1e999"}},
             5, event);
  proto::HParamsPluginData data;
  ASSERT_TRUE(data.ParseFromString(event.summary().value(0).metadata().plugin_data().content()));
  const auto& values = data.session_start_info().hparams();
  EXPECT_EQ(values.size(), 6U);
  EXPECT_EQ(values.at("optimizer.learning_rate").number_value(), 2e-3);
  EXPECT_EQ(values.at("model.dim").number_value(), 128);
  EXPECT_TRUE(values.at("model.bias").bool_value());
  EXPECT_EQ(values.at("model.norm").string_value(), "rmsnorm");
  EXPECT_EQ(values.at("grid.list").string_value(), "1,2");
  EXPECT_EQ(values.at("huge").string_value(), "1e999");
  EXPECT_FALSE(EndsRun(event));
  AddEnd(7, event);
  EXPECT_TRUE(EndsRun(event));
}

TEST(Messages, HistogramsLeaveOutEmptyBuckets) {
  Histogram histogram;
  for (const double value : {-1.0, 0.0, 0.0, 1e-12}) histogram.Add(value);
  proto::Event event;
  AddHistogram("weights/w", histogram, event);
  const proto::HistogramProto& message = event.summary().value(0).histo();
  EXPECT_EQ(message.min(), -1);
  EXPECT_EQ(message.max(), 1e-12);
  EXPECT_EQ(message.num(), 4);
  EXPECT_THAT(message.bucket(), ElementsAre(1, 0, 2, 1));
  EXPECT_EQ(message.bucket_limit(1), 0);
  EXPECT_EQ(message.bucket_limit(2), 1e-12);
  EXPECT_GT(message.bucket_limit(0), -1);
}

TEST(Messages, AnEmptyHistogramHasOneBucket) {
  proto::Event event;
  AddHistogram("weights/w", Histogram(), event);
  EXPECT_THAT(event.summary().value(0).histo().bucket(), ElementsAre(0));
  EXPECT_EQ(event.summary().value(0).histo().max(), 0);
}

}  // namespace
}  // namespace trireme::report
