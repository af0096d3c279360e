// monitor.trace_steps: its forms, and what is refused.
#include "trireme/report/monitor.hpp"

#include <gtest/gtest.h>

#include <string>

#include "trireme/base/error.hpp"

namespace trireme::report {
namespace {

StepWindow Window(const std::string& text) {
  deck::Schema schema;
  Declare(schema);
  const deck::Deck deck =
      deck::Deck::Parse(schema, "[monitor]\ntrace_steps = " + text + "\n", "test.in", {});
  return Read(deck).trace_steps;
}

TEST(TraceSteps, AreAWindowOrOneStepOrNone) {
  EXPECT_EQ(Window("10-12").first, 10);
  EXPECT_EQ(Window("10-12").last, 12);
  EXPECT_EQ(Window("7").first, 7);
  EXPECT_EQ(Window("7").last, 7);
  EXPECT_TRUE(Window("none").None());
  EXPECT_FALSE(Window("1-1").None());
}

TEST(TraceSteps, RefuseWhatNamesNoSteps) {
  for (const char* text : {"0", "0-3", "5-4", "a-b", "3-", "-3", "3-4-5", "1.5", "all", "3 - 4"}) {
    EXPECT_THROW(Window(text), Error) << text;
  }
}

}  // namespace
}  // namespace trireme::report
