// The schedules drawn as in the papers' figures, from the simulator's own times: what a reader of
// the papers would compare.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>

#include "schedule_clock.hpp"
#include "shapes.hpp"

namespace trireme::parallel {
namespace {

// A line for each chunk of each stage, a column a unit of time: digits are forward passes, small
// letters input gradients, capitals weight gradients of micro-batch 0, 1, ...; dots are idle times.
std::string Draw(const PipelineShape& shape) {
  const Simulation run = Simulate(shape, Equal(shape, {1, 1, 1}));
  const auto width = static_cast<std::size_t>(std::lround(run.makespan));
  std::string picture = "\n";
  for (std::size_t stage = 0; stage < run.tasks.size(); ++stage) {
    // Idle is what no chunk fills.
    std::vector<std::string> lines(static_cast<std::size_t>(shape.chunks), std::string(width, ' '));
    std::string idle(width, '.');
    for (const TimedTask& timed : run.tasks[stage]) {
      const Task& task = timed.task;
      const auto begin = static_cast<std::size_t>(std::lround(timed.begin));
      const auto letter = [&](char first) { return static_cast<char>(first + task.micro_batch); };
      std::string text;
      if (task.kind == TaskKind::kForward) text = {letter('0')};
      if (task.kind == TaskKind::kBackward) text = {letter('a'), letter('A')};
      if (task.kind == TaskKind::kBackwardInput) text = {letter('a')};
      if (task.kind == TaskKind::kBackwardWeight) text = {letter('A')};
      lines[static_cast<std::size_t>(task.chunk)].replace(begin, text.size(), text);
      idle.replace(begin, text.size(), text.size(), ' ');
    }
    for (std::size_t i = 0; i < width; ++i) {
      if (idle[i] == '.') lines[0][i] = '.';
    }
    for (const std::string& line : lines) picture += line + "|\n";
  }
  return picture;
}

TEST(Picture, Gpipe) {
  EXPECT_EQ(Draw({ScheduleKind::kGpipe, 4, 1, 8}), R"(
01234567.........aAbBcCdDeEfFgGhH|
.01234567......aAbBcCdDeEfFgGhH..|
..01234567...aAbBcCdDeEfFgGhH....|
...01234567aAbBcCdDeEfFgGhH......|
)");
}
TEST(Picture, OneForwardOneBackward) {
  EXPECT_EQ(Draw({ScheduleKind::kOneForwardOneBackward, 4, 1, 8}), R"(
0123......aA4bB5cC6dD7eE.fF.gG.hH|
.012....aA3bB4cC5dD6eE7fF.gG.hH..|
..01..aA2bB3cC4dD5eE6fF7gG.hH....|
...0aA1bB2cC3dD4eE5fF6gG7hH......|
)");
}
TEST(Picture, Interleaved) {
  EXPECT_EQ(Draw({ScheduleKind::kInterleaved, 4, 2, 8}), R"(
0123    456...  7  .       aA bBcC.dD.  .  .  .  eEfFgGhH|
    0123      aA bB 4cC5dD6  7        eE fF gG hH        |
.0123    4..  5  6  7   aA bB cC dD.  .  .  .  eEfFgGhH..|
     0123   aA bB cC dD4  5  6  7   eE fF gG hH          |
..0123   .     4  5  6aA7bB cC dD      .  .  eEfFgGhH....|
      012 aA3bB cC dD      4  5  6eE7fF gG hH            |
...0123            4aA5bB6cC7dD            eEfFgGhH......|
       0aA1bB2cC3dD            4eE5fF6gG7hH              |
)");
}
TEST(Picture, ZeroBubble) {
  EXPECT_EQ(Draw({ScheduleKind::kZeroBubble, 4, 1, 8}), R"(
0123...aA4bB5cC6dD7eEfFgGhH|
.012..a3bA4cB5dC6eD7fEgFhGH|
..01.a2b3cA4dB5eC6fD7gEhFGH|
...0a1b2c3dA4eB5fC6gD7hEFGH|
)");
}

}  // namespace
}  // namespace trireme::parallel
