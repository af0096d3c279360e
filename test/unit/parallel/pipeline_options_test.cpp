// The [pipeline] section: defaults, names, and what does not go together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shapes.hpp"
#include "trireme/base/error.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::parallel {
namespace {

using testing::HasSubstr;

PipelineShape Read(const std::string& text, int stages) {
  deck::Schema schema;
  Declare(schema);
  const deck::Deck deck = deck::Deck::Parse(schema, text, "a.in", {});
  return MakePipelineShape(parallel::Read(deck), deck, stages);
}

std::string Complaint(const std::string& text, int stages) {
  try {
    Read(text, stages);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST(PipelineOptions, Defaults) {
  const PipelineShape shape = Read("", 4);
  EXPECT_EQ(shape.kind, ScheduleKind::kOneForwardOneBackward);
  EXPECT_EQ(shape.stages, 4);
  EXPECT_EQ(shape.chunks, 1);
}

TEST(PipelineOptions, EveryScheduleHasItsName) {
  for (const ScheduleKind kind : kKinds) {
    const bool interleaved = kind == ScheduleKind::kInterleaved;
    const std::string text = std::string("[pipeline]\nschedule = ") + NameOf(kind) +
                             (interleaved ? "\nchunks = 3\n" : "\n");
    EXPECT_EQ(Read(text, 2).kind, kind) << text;
    EXPECT_EQ(Read(text, 2).chunks, interleaved ? 3 : 1);
    if (!interleaved) {
      EXPECT_EQ(Read(text, 1).stages, 1);
    }
  }
}

TEST(PipelineOptions, WhatDoesNotGoTogether) {
  EXPECT_THAT(Complaint("[pipeline]\nschedule = interleaved\nchunks = 1\n", 4),
              testing::StartsWith("a.in:3: pipeline.chunks = 1: interleaved needs several parts of "
                                  "the model a stage\n  Choose 2 or more."));
  EXPECT_THAT(Complaint("[pipeline]\nschedule = interleaved\n", 4),
              HasSubstr("pipeline.chunks = 1 (default): interleaved needs several parts"));
  EXPECT_THAT(Complaint("[pipeline]\nschedule = gpipe\nchunks = 2\n", 4),
              testing::StartsWith("a.in:3: pipeline.chunks = 2: schedule gpipe has one part of the "
                                  "model a stage\n  Choose pipeline.schedule = interleaved"));
  EXPECT_THAT(Complaint("[pipeline]\nchunks = 2\n", 4),
              HasSubstr("schedule 1f1b has one part of the model a stage"));
  EXPECT_THAT(
      Complaint("[pipeline]\nschedule = interleaved\nchunks = 2\n", 1),
      testing::StartsWith("a.in:2: pipeline.schedule = interleaved: one stage has nothing to "
                          "interleave with\n  Set grid.pipeline to 2 or more"));
  EXPECT_THAT(Complaint("[pipeline]\nschedule = zerobubble\n", 4), HasSubstr("zero_bubble"));
  EXPECT_THAT(Complaint("[pipeline]\nchunks = 0\n", 4), HasSubstr("pipeline.chunks = 0"));
}

}  // namespace
}  // namespace trireme::parallel
