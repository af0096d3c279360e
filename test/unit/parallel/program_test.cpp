// Programs: no deadlock under the strictest rendezvous, slots and buffers as few as the schedule
// allows and never shared, and a checker that finds what is broken.
#include "trireme/parallel/pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "shapes.hpp"

namespace trireme::parallel {
namespace {

using enum TaskKind;
using testing::HasSubstr;

std::vector<Program> Programs(const PipelineShape& shape,
                              Program (*make)(const PipelineShape&, int) = MakeProgram) {
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) programs.push_back(make(shape, stage));
  return programs;
}

TEST(Program, EndsUnderStrictestRendezvous) {
  for (const PipelineShape& shape : AllShapes()) {
    EXPECT_EQ(FirstFault(Programs(shape), shape), "") << Text(shape);
    EXPECT_TRUE(Terminates(Programs(shape), shape));
  }
}

TEST(Program, EvaluationEndsWithAnyNumberOfMicroBatches) {
  for (PipelineShape shape : AllShapes()) {
    for (int more = 0; more < shape.stages; ++more, ++shape.micro_batches) {
      const auto programs = Programs(shape, MakeEvaluationProgram);
      EXPECT_EQ(FirstFault(programs, shape), "") << Text(shape);
      for (const Program& program : programs) {
        EXPECT_LE(program.buffers.activations_in, 2);
        EXPECT_LE(program.buffers.activations_out, 2);
        EXPECT_EQ(program.buffers.gradients_in + program.buffers.gradients_out, 0);
        for (const Slots& slots : program.slots) {
          EXPECT_EQ(slots.input + slots.weight + slots.backward, 0);
        }
      }
    }
  }
}

TEST(Program, RunsTheScheduleInOrder) {
  for (const PipelineShape& shape : AllShapes()) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Program program = MakeProgram(shape, stage);
      std::vector<Task> computed;
      for (const Operation& operation : program.operations) {
        if (operation.action != Action::kCompute) continue;
        computed.push_back(program.tasks[static_cast<std::size_t>(operation.task)].task);
      }
      EXPECT_EQ(computed, MakeSchedule(shape, stage)) << Text(shape);
    }
  }
}

// Follows the lives of one stage's slots; fails where two micro-batches share one.
class SlotLives {
 public:
  explicit SlotLives(const Program& program) : program_(program) {
    for (const ProgramTask& task : program.tasks) Run(task);
    for (const auto& [where, live] : live_) EXPECT_TRUE(live.empty());
  }
  int Most(int chunk, int Slots::*kind) const {
    const auto found = most_.find({chunk, Index(kind)});
    return found == most_.end() ? 0 : found->second;
  }

 private:
  static int Index(int Slots::*kind) {
    return kind == &Slots::input ? 0 : kind == &Slots::weight ? 1 : 2;
  }
  void Take(const ProgramTask& now, int Slots::*kind) {
    auto& live = live_[{now.task.chunk, Index(kind)}];
    EXPECT_TRUE(live.insert(now.slots.*kind).second);
    EXPECT_LT(now.slots.*kind, program_.slots[static_cast<std::size_t>(now.task.chunk)].*kind);
    EXPECT_GE(now.slots.*kind, 0);
    int& most = most_[{now.task.chunk, Index(kind)}];
    most = std::max(most, static_cast<int>(live.size()));
    taken_[{now.task.chunk, now.task.micro_batch, Index(kind)}] = now.slots.*kind;
  }
  void Give(const ProgramTask& now, int Slots::*kind) {
    EXPECT_EQ((taken_.at({now.task.chunk, now.task.micro_batch, Index(kind)})), now.slots.*kind);
    EXPECT_EQ((live_[{now.task.chunk, Index(kind)}].erase(now.slots.*kind)), 1u);
  }
  void Run(const ProgramTask& now) {
    const TaskKind kind = now.task.kind;
    if (kind == kForward) {
      Take(now, &Slots::input);
      Take(now, &Slots::weight);
    }
    if (kind == kBackwardInput) Take(now, &Slots::backward);
    if (kind == kBackward || kind == kBackwardInput) Give(now, &Slots::input);
    if (kind == kBackward || kind == kBackwardWeight) Give(now, &Slots::weight);
    if (kind == kBackwardWeight) Give(now, &Slots::backward);
  }

  const Program& program_;
  std::map<std::pair<int, int>, std::set<int>> live_;  // chunk, kind: slots
  std::map<std::pair<int, int>, int> most_;            // chunk, kind
  std::map<std::tuple<int, int, int>, int> taken_;     // chunk, micro-batch, kind: slot
};

TEST(Program, SlotsAreAsManyAsAreInUseAtOnce) {
  for (const PipelineShape& shape : AllShapes()) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      SCOPED_TRACE(Text(shape) + ", stage " + std::to_string(stage));
      const Program program = MakeProgram(shape, stage);
      const SlotLives lives(program);
      ASSERT_EQ(static_cast<int>(program.slots.size()), shape.chunks);
      int weights = 0;
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        const Slots& slots = program.slots[static_cast<std::size_t>(chunk)];
        EXPECT_EQ(slots.input, lives.Most(chunk, &Slots::input));
        EXPECT_EQ(slots.weight, lives.Most(chunk, &Slots::weight));
        EXPECT_EQ(slots.backward, lives.Most(chunk, &Slots::backward));
        weights += slots.weight;
      }
      if (shape.chunks == 1) {
        EXPECT_EQ(weights, MostInFlight(shape, stage));
      }
      EXPECT_GE(weights, MostInFlight(shape, stage));
    }
  }
}

TEST(Program, ZeroBubbleKeepsInputsAsShortAs1f1b) {
  const PipelineShape shape{ScheduleKind::kZeroBubble, 4, 1, 12};
  for (int stage = 0; stage < 4; ++stage) {
    const Slots slots = MakeProgram(shape, stage).slots[0];
    EXPECT_EQ(slots.input, 4 - stage);
    EXPECT_EQ(slots.weight, 4);
    EXPECT_EQ(slots.backward, stage == 0 ? 0 : stage + 1);
  }
}

TEST(Program, MarksTheLastWeightGradientOfEveryChunk) {
  for (const PipelineShape& shape : AllShapes()) {
    for (const Program& program : Programs(shape)) {
      std::map<int, int> last;
      for (std::size_t i = 0; i < program.tasks.size(); ++i) {
        const Task& task = program.tasks[i].task;
        if (task.kind == kBackward || task.kind == kBackwardWeight) {
          last[task.chunk] = static_cast<int>(i);
        }
      }
      for (std::size_t i = 0; i < program.tasks.size(); ++i) {
        EXPECT_EQ(program.tasks[i].final, last[program.tasks[i].task.chunk] == static_cast<int>(i))
            << Text(shape);
      }
    }
  }
}

TEST(Program, MoreMicroBatchesNeedNoFewerBuffers) {
  // The executor allocates for the longest step and runs shorter ones too.
  std::map<std::tuple<ScheduleKind, int, int, int>, Buffers> most;
  for (const PipelineShape& shape : AllShapes()) {  // micro-batches ascend
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Buffers now = MakeProgram(shape, stage).buffers;
      Buffers& before = most[{shape.kind, shape.stages, shape.chunks, stage}];
      EXPECT_GE(now.activations_in, before.activations_in) << Text(shape);
      EXPECT_GE(now.activations_out, before.activations_out) << Text(shape);
      EXPECT_GE(now.gradients_in, before.gradients_in) << Text(shape);
      EXPECT_GE(now.gradients_out, before.gradients_out) << Text(shape);
      EXPECT_LE(now.activations_in, MostInFlight(shape, stage) + 1) << Text(shape);
      EXPECT_LE(std::max({now.activations_out, now.gradients_out, now.gradients_in}), 2);
      before = now;
    }
  }
}

TEST(Program, NextReceivesArePostedBeforeComputing) {
  for (const PipelineShape& shape : AllShapes()) {
    for (const Program& program : Programs(shape)) {
      std::set<int> posted, computed;
      for (const Operation& operation : program.operations) {
        if (operation.action == Action::kPostReceive) posted.insert(operation.task);
        if (operation.action != Action::kCompute) continue;
        const auto next = static_cast<std::size_t>(operation.task) + 1;
        if (next < program.tasks.size() && program.tasks[next].receives_in != kNoBuffer) {
          EXPECT_TRUE(posted.contains(static_cast<int>(next))) << Text(shape);
        }
      }
    }
  }
}

TEST(Program, OneStageOnlyComputes) {
  for (const ScheduleKind kind : kKinds) {
    const Program program = MakeProgram({kind, 1, 1, 3}, 0);
    EXPECT_EQ(program.operations.size(), 6u);
    for (const Operation& operation : program.operations) {
      EXPECT_EQ(operation.action, Action::kCompute);
    }
    EXPECT_EQ(program.buffers.activations_in + program.buffers.gradients_out, 0);
  }
}

TEST(Program, PeersAreNeighboursOnTheRing) {
  const PipelineShape shape{ScheduleKind::kInterleaved, 4, 2, 4};
  const Peer wrapped = ReceiverFrom(shape, 3, {kForward, 0, 0});
  EXPECT_EQ(wrapped.stage, 0);
  EXPECT_EQ(wrapped.tag, 2);  // an activation for chunk 1
  const Peer sender = SenderTo(shape, 0, {kForward, 0, 1});
  EXPECT_EQ(sender.stage, 3);
  EXPECT_EQ(sender.tag, 2);
  const Peer back = ReceiverFrom(shape, 0, {kBackward, 0, 1});
  EXPECT_EQ(back.stage, 3);
  EXPECT_EQ(back.tag, 1);  // a gradient for chunk 0
}

// Message of the checker after `damage` was done to sound programs.
template <typename Damage>
std::string FaultAfter(ScheduleKind kind, Damage damage) {
  const PipelineShape shape{kind, 3, 1, 6};
  auto programs = Programs(shape);
  EXPECT_TRUE(Terminates(programs, shape));
  damage(programs);
  EXPECT_FALSE(Terminates(programs, shape));
  return FirstFault(programs, shape);
}

std::vector<Operation>::iterator Find(Program& program, Action action, int which) {
  auto found = program.operations.begin();
  for (;; ++found) {
    if (found->action == action && which-- == 0) return found;
  }
}

constexpr ScheduleKind kAlternating = ScheduleKind::kOneForwardOneBackward;

TEST(FirstFault, FindsADroppedTask) {
  EXPECT_THAT(FaultAfter(kAlternating,
                         [](auto& programs) {
                           programs[1].operations.erase(Find(programs[1], Action::kCompute, 2));
                         }),
              HasSubstr("sends what is not done"));
  // A weight gradient at the end is missed by nobody else.
  EXPECT_THAT(FaultAfter(ScheduleKind::kZeroBubble,
                         [](auto& programs) {
                           auto& list = programs[2].operations;
                           std::size_t last = list.size();
                           while (list[--last].action != Action::kCompute) continue;
                           list.erase(list.begin() + static_cast<std::ptrdiff_t>(last));
                         }),
              HasSubstr("run 0, 1, 1 and 0 times"));
}

TEST(FirstFault, FindsADroppedMessage) {
  EXPECT_THAT(FaultAfter(kAlternating,
                         [](auto& programs) {
                           auto& list = programs[0].operations;
                           list.erase(Find(programs[0], Action::kSend, 5));
                         }),
              testing::AnyOf(HasSubstr("waits for ever"), HasSubstr("never began")));
}

TEST(FirstFault, FindsMessagesInAnotherOrder) {
  EXPECT_THAT(FaultAfter(ScheduleKind::kGpipe,
                         [](auto& programs) {
                           auto& tasks = programs[1].tasks;  // same operations, tasks exchanged
                           std::swap(tasks[1].task, tasks[2].task);
                         }),
              HasSubstr("another micro-batch's message"));
}

TEST(FirstFault, FindsSwappedTasks) {
  EXPECT_THAT(FaultAfter(kAlternating,
                         [](auto& programs) {
                           auto& tasks = programs[2].tasks;  // F0 and B0 of the last stage
                           std::swap(tasks[0].task.kind, tasks[1].task.kind);
                         }),
              testing::Not(""));
}

TEST(FirstFault, FindsTooFewBuffers) {
  EXPECT_THAT(
      FaultAfter(kAlternating, [](auto& programs) { --programs[1].buffers.activations_in; }),
      HasSubstr("a buffer that is not there"));
  // All incoming activations through one buffer.
  EXPECT_THAT(FaultAfter(kAlternating,
                         [](auto& programs) {
                           for (auto& operation : programs[1].operations) {
                             if (operation.flow == Flow::kActivation &&
                                 operation.action == Action::kPostReceive) {
                               operation.buffer = 0;
                             }
                           }
                         }),
              HasSubstr("a buffer that is in use"));
  // A message is overwritten before it has left.
  EXPECT_THAT(FaultAfter(ScheduleKind::kGpipe,
                         [](auto& programs) {
                           programs[0].operations.erase(Find(programs[0], Action::kAwaitSend, 0));
                         }),
              HasSubstr("overwrites what is still being sent"));
}

TEST(FirstFault, FindsADeadlock) {
  // Both neighbours wait for their message to be taken before they take the other's.
  EXPECT_THAT(FaultAfter(kAlternating,
                         [](auto& programs) {
                           for (Program& program : programs) {
                             std::vector<Operation> strict;
                             for (const Operation& operation : program.operations) {
                               if (operation.action == Action::kPostReceive ||
                                   operation.action == Action::kAwaitSend) {
                                 continue;
                               }
                               if (operation.action == Action::kAwaitReceive) {
                                 strict.push_back(operation);
                                 strict.back().action = Action::kPostReceive;
                               }
                               strict.push_back(operation);
                               if (operation.action == Action::kSend) {
                                 strict.push_back(operation);
                                 strict.back().action = Action::kAwaitSend;
                               }
                             }
                             program.operations = strict;
                           }
                         }),
              HasSubstr("waits for ever for its message to be received"));
}

TEST(FirstFault, CountsPrograms) {
  const PipelineShape shape{kAlternating, 3, 1, 2};
  auto programs = Programs(shape);
  programs.pop_back();
  EXPECT_EQ(FirstFault(programs, shape), "not one program a stage");
}

}  // namespace
}  // namespace trireme::parallel
