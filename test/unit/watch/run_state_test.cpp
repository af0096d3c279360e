// Records of a run, of this version and of older ones, as what a view shows.
#include "run_state.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "trireme/base/clock.hpp"

namespace trireme::tools {
namespace {

std::string Step(std::int64_t step, double loss, double seconds = 0.5) {
  return fmt::format(
      R"({{"kind":"step","step":{},"epoch":{},"tokens":1,"loss":{},"perplexity":1.0,)"
      R"("learning_rate":0.001,"grad_norm":0.5,"step_seconds":{},"tokens_per_second":1000.0,)"
      R"("roof_fraction":0.8,"seconds_checkpoint":0.0,"bad_steps":2}})",
      step, static_cast<double>(step) / 100, loss, seconds);
}

constexpr const char* kInterval =
    R"({"kind":"interval","step":50,"steps":50,"loss_min":3.5,"loss_max":4.5,"loss_mean":4.0,)"
    R"("roof_fraction":0.7,"memory_bytes":1048576,"memory_rank":3,"memory_host":"node17",)"
    R"("joules":1000.0,"joules_per_token":0.5,"watts_per_node":400.0,"gpu_utilisation":0.9,)"
    R"("gpu_memory_bytes":2097152.0})";

TEST(RunState, StepsAndIntervals) {
  RunState state;
  for (int step = 1; step <= 50; ++step) state.Take(Step(step, 5 - step / 50.0));
  state.Take(kInterval);
  const Glance glance = state.Look({.steps = 100});
  EXPECT_EQ(glance.step, 50);
  EXPECT_EQ(glance.total_steps, 100);
  EXPECT_DOUBLE_EQ(glance.loss, 4);
  EXPECT_DOUBLE_EQ(glance.loss_least, 3.5);
  EXPECT_DOUBLE_EQ(glance.tokens_per_second, 1000);
  EXPECT_DOUBLE_EQ(glance.step_seconds, 0.5);
  EXPECT_DOUBLE_EQ(glance.seconds_left, 25);
  EXPECT_DOUBLE_EQ(glance.roof_fraction, 0.7);
  EXPECT_EQ(glance.bad_steps, 2);
  EXPECT_EQ(glance.memory_place, "rank 3 on node17");
  EXPECT_DOUBLE_EQ(glance.joules, 1000);
  EXPECT_DOUBLE_EQ(glance.watts_per_node, 400);
  EXPECT_DOUBLE_EQ(glance.gpu_utilisation, 0.9);
  EXPECT_FALSE(glance.some_joules);
  EXPECT_EQ(state.Records(), 51);
  EXPECT_EQ(state.Damaged(), 0);
}

TEST(RunState, ValidationsTakeTimeToo) {
  RunState state;
  for (int step = 1; step <= 50; ++step) state.Take(Step(step, 4));
  state.Take(R"({"kind":"valid","step":50,"loss":4.25,"step_seconds":25.0})");
  state.Take(R"({"kind":"valid_other","set":"code","step":50,"loss":2.5,"step_seconds":0.0})");
  EXPECT_DOUBLE_EQ(state.Look({.steps = 100}).seconds_left, 50);
  EXPECT_DOUBLE_EQ(state.Decider().best, 4.25);
  EXPECT_DOUBLE_EQ(state.OtherSets().at("code").last, 2.5);
  state.Take(R"({"kind":"valid","step":60,"loss":4.5,"step_seconds":25.0})");
  EXPECT_DOUBLE_EQ(state.Decider().best, 4.25);
  EXPECT_EQ(state.Decider().best_step, 50);
  EXPECT_DOUBLE_EQ(state.Decider().last, 4.5);
}

// Means over 50 steps, and more members.
TEST(RunState, RecordsOfOlderVersions) {
  RunState state;
  state.Take(Step(1, 9));
  for (int step = 50; step <= 500; step += 50) state.Take(Step(step, 4));
  const Glance glance = state.Look({.epochs = 10});
  EXPECT_DOUBLE_EQ(glance.step_seconds, 0.5);
  EXPECT_EQ(glance.total_steps, 1000);  // 100 steps an epoch
  EXPECT_TRUE(glance.about);
  EXPECT_DOUBLE_EQ(glance.seconds_left, 250);
  EXPECT_TRUE(std::isnan(glance.joules));
}

TEST(RunState, LossesThatAreNotFinite) {
  RunState state;
  state.Take(Step(1, 4));
  state.Take(R"({"kind":"step","step":2,"loss":null,"step_seconds":0.5,"tokens_per_second":10})");
  EXPECT_EQ(state.Damaged(), 0);
  EXPECT_TRUE(std::isnan(state.Look({}).loss));
  EXPECT_EQ(state.Losses().Bars(10, false), "_!");
}

TEST(RunState, DamagedLines) {
  RunState state;
  for (const char* line :
       {"", "{", "7", "[]", "null", "{}", R"({"kind":"step"})", R"({"kind":3,"step":1})",
        R"({"kind":"step","step":-1,"loss":1,"step_seconds":1,"tokens_per_second":1})",
        R"({"kind":"step","step":1e300,"loss":1,"step_seconds":1,"tokens_per_second":1})",
        R"({"kind":"step","step":5,"lo{"kind":"step","step":1,"loss":1})",
        R"({"kind":"step","step":1,"loss":4.{"kind":"step","step":2,"loss":1})",
        "{\"kind\":\"st\xff\xfe", R"({"kind":"valid","loss":1})"}) {
    state.Take(line);
  }
  EXPECT_EQ(state.Records(), 0);
  EXPECT_EQ(state.Damaged(), 14);
  state.Take(R"({"kind":"valid","step":1,"loss":"low"})");
  EXPECT_TRUE(std::isnan(state.Decider().last));
}

TEST(RunState, RecordsRewrittenWithBlanks) {
  RunState state;
  state.Take(
      R"({ "step": 7, "kind": "step", "loss": 4.5, "step_seconds": 1, "tokens_per_second": 8 })");
  EXPECT_EQ(state.Damaged(), 0);
  EXPECT_DOUBLE_EQ(state.Look({}).loss, 4.5);
  EXPECT_EQ(state.Look({}).step, 7);
}

TEST(RunState, StopsAndEnds) {
  RunState state;
  state.Take(Step(1, 4));
  state.Take(R"({"kind":"event","event":"stop","step":1,"text":"a signal"})");
  EXPECT_TRUE(state.Stopped());
  state.Take(R"({"kind":"event","event":"restart","step":1,"text":"start 2"})");
  EXPECT_FALSE(state.Stopped());
  ASSERT_EQ(state.LastEvents().size(), 2U);
  EXPECT_EQ(state.LastEvents().front().name, "restart");
  state.Take(R"({"kind":"done","step":1,"loss":4})");
  EXPECT_TRUE(state.Done());
  for (int i = 0; i < 1000; ++i) state.Take(R"({"kind":"event","event":"e","step":1})");
  EXPECT_LE(state.LastEvents().size(), 64U);
}

TEST(RunState, EventsArePrintable) {
  RunState state;
  state.Take(R"({"kind":"event","event":"a\u001b[2J","step":1,"text":"\u009b2J\nx"})");
  EXPECT_EQ(state.LastEvents().front().name, "a�[2J");
  EXPECT_EQ(state.LastEvents().front().text, "�2J x");
}

TEST(RunState, AMillionStepsTakeASecond) {
  const std::string line = Step(123456, 4);
  RunState state;
  const double start = Seconds();
  for (int i = 1; i <= 1'000'000; ++i) state.Take(line);
  const double seconds = Seconds() - start;
  fmt::print("1,000,000 records: {:.2f} s\n", seconds);
  EXPECT_LT(seconds, 5);
  EXPECT_EQ(state.Records(), 1'000'000);
}

TEST(Schedule, OfADeck) {
  const std::string deck =
      "# begins\n[checkpoint]\nsteps = 7\n[schedule]\nepochs           = 5       # from x\n"
      "stop_at          = 30\n[monitor]\nevery_steps = 3\n";
  const Schedule schedule = ReadSchedule(deck);
  EXPECT_EQ(schedule.steps, 0);
  EXPECT_EQ(schedule.epochs, 5);
  EXPECT_EQ(schedule.stop_at, 30);
  EXPECT_EQ(ReadSchedule("[schedule]\nsteps = 90\n").steps, 90);
  EXPECT_EQ(ReadSchedule("[schedule]\nsteps = -4\nepochs\n= 3\n").steps, 0);
}

}  // namespace
}  // namespace trireme::tools
