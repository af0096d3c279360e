// Programs: no deadlock under the strictest rendezvous, slots and buffers as few as the schedule
// allows and never shared, and a checker that finds what is broken.
#include "trireme/parallel/pipeline.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "shapes.hpp"

namespace trireme::parallel {
namespace {

using enum TaskKind;
using testing::HasSubstr;

// Runs all stages' programs without MPI: a send is complete only once its receive is posted, and
// every use of a buffer is checked.

// Messages between two ranks with one tag: the n-th sent meets the n-th receive posted.
struct Channel {
  std::vector<int> sent, posted;  // micro-batches
};

struct BufferState {
  bool busy = false;
  std::size_t message = 0;  // number in the channel
};

struct StageState {
  std::size_t next = 0;  // operation
  std::map<std::pair<Flow, int>, BufferState> in, out;
  std::map<std::tuple<TaskKind, int, int>, int> done;  // kind, chunk, micro-batch: how often
  std::map<std::pair<int, int>, int> activation;       // chunk, micro-batch: its in-buffer
  int awaited = -1;                                    // task whose message has arrived
  int computed = -1;                                   // last task
};

class Machine {
 public:
  Machine(const std::vector<Program>& programs, const PipelineShape& shape)
      : programs_(programs), shape_(shape), stages_(programs.size()) {}

  std::string Run() {
    if (static_cast<int>(programs_.size()) != shape_.stages) return "not one program a stage";
    for (bool moved = true; moved && fault_.empty();) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size() && fault_.empty(); ++s) {
        while (stages_[s].next < programs_[s].operations.size() && fault_.empty() && Step(s)) {
          ++stages_[s].next;
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < stages_.size() && fault_.empty(); ++s) Finish(s);
    return fault_;
  }

 private:
  // Executes one operation; false where it must wait (or found a fault).
  bool Step(std::size_t s) {
    const Operation& operation = programs_[s].operations[stages_[s].next];
    switch (operation.action) {
      case Action::kPostReceive:
        return Post(s, operation);
      case Action::kAwaitReceive:
        return AwaitReceive(s, operation);
      case Action::kAwaitSend:
        return AwaitSend(s, operation);
      case Action::kCompute:
        return Compute(s, operation);
      case Action::kSend:
        return Send(s, operation);
    }
    return Fail(s, operation, "is an unknown operation");
  }

  const ProgramTask& TaskOf(std::size_t s, const Operation& operation) const {
    return programs_[s].tasks.at(static_cast<std::size_t>(operation.task));
  }

  bool Fail(std::size_t s, const Operation& operation, const std::string& what) {
    fault_ = fmt::format("stage {}, {}: {}", s, Describe(TaskOf(s, operation).task), what);
    return false;
  }

  Channel& Incoming(std::size_t s, const Task& task) {
    const Peer peer = SenderTo(shape_, static_cast<int>(s), task);
    return channels_[{peer.stage, static_cast<int>(s), peer.tag}];
  }
  Channel& Outgoing(std::size_t s, const Task& task) {
    const Peer peer = ReceiverFrom(shape_, static_cast<int>(s), task);
    return channels_[{static_cast<int>(s), peer.stage, peer.tag}];
  }

  bool Post(std::size_t s, const Operation& operation) {
    const Buffers& have = programs_[s].buffers;
    const bool forward = operation.flow == Flow::kActivation;
    if (operation.buffer < 0 ||
        operation.buffer >= (forward ? have.activations_in : have.gradients_in)) {
      return Fail(s, operation, "receives in a buffer that is not there");
    }
    BufferState& buffer = stages_[s].in[{operation.flow, operation.buffer}];
    if (buffer.busy) return Fail(s, operation, "receives in a buffer that is in use");
    const Task& task = TaskOf(s, operation).task;
    Channel& channel = Incoming(s, task);
    buffer = {true, channel.posted.size()};
    channel.posted.push_back(task.micro_batch);
    return true;
  }

  bool AwaitReceive(std::size_t s, const Operation& operation) {
    const BufferState& buffer = stages_[s].in[{operation.flow, operation.buffer}];
    if (!buffer.busy) return Fail(s, operation, "awaits a message that it never posted");
    const Channel& channel = Incoming(s, TaskOf(s, operation).task);
    if (channel.sent.size() <= buffer.message) return false;
    if (channel.sent[buffer.message] != TaskOf(s, operation).task.micro_batch) {
      return Fail(s, operation, "receives another micro-batch's message");
    }
    stages_[s].awaited = operation.task;
    return true;
  }

  bool AwaitSend(std::size_t s, const Operation& operation) {
    BufferState& buffer = stages_[s].out[{operation.flow, operation.buffer}];
    if (!buffer.busy) return Fail(s, operation, "awaits a send that never began");
    if (Outgoing(s, TaskOf(s, operation).task).posted.size() <= buffer.message) return false;
    buffer.busy = false;
    return true;
  }

  bool Send(std::size_t s, const Operation& operation) {
    const Buffers& have = programs_[s].buffers;
    const bool forward = operation.flow == Flow::kActivation;
    if (operation.buffer < 0 ||
        operation.buffer >= (forward ? have.activations_out : have.gradients_out)) {
      return Fail(s, operation, "sends from a buffer that is not there");
    }
    if (stages_[s].computed != operation.task) return Fail(s, operation, "sends what is not done");
    const Task& task = TaskOf(s, operation).task;
    Channel& channel = Outgoing(s, task);
    stages_[s].out[{operation.flow, operation.buffer}] = {true, channel.sent.size()};
    channel.sent.push_back(task.micro_batch);
    return true;
  }

  bool Compute(std::size_t s, const Operation& operation) {
    StageState& state = stages_[s];
    const ProgramTask& now = TaskOf(s, operation);
    const Task& task = now.task;
    const auto ran = [&](TaskKind kind) {
      return state.done[{kind, task.chunk, task.micro_batch}] > 0;
    };
    const int stage = static_cast<int>(s);
    if (GivesInputGradient(task.kind) && !ran(TaskKind::kForward)) {
      return Fail(s, operation, "runs before its forward pass");
    }
    if (task.kind == TaskKind::kBackwardWeight && !ran(TaskKind::kBackwardInput)) {
      return Fail(s, operation, "runs before its input gradient");
    }
    const bool receives = SourceOf(shape_, stage, task) != kNoStage;
    if (receives && state.awaited != operation.task) return Fail(s, operation, "has no input");
    if (DestinationOf(shape_, stage, task) != kNoStage &&
        state.out[{FlowOf(task.kind), now.sends_from}].busy) {
      return Fail(s, operation, "overwrites what is still being sent");
    }
    ++state.done[{task.kind, task.chunk, task.micro_batch}];
    state.computed = operation.task;
    FreeInputs(state, now, receives);
    return true;
  }

  static void FreeInputs(StageState& state, const ProgramTask& now, bool receives) {
    const Task& task = now.task;
    const std::pair<int, int> key{task.chunk, task.micro_batch};
    if (task.kind == TaskKind::kForward && receives) state.activation[key] = now.receives_in;
    if (GivesInputGradient(task.kind) || task.kind == TaskKind::kEvaluate) {
      if (receives) state.in[{FlowOf(task.kind), now.receives_in}].busy = false;
    }
    if (!GivesWeightGradient(task.kind)) return;
    const auto held = state.activation.find(key);
    if (held != state.activation.end()) state.in[{Flow::kActivation, held->second}].busy = false;
  }

  void Finish(std::size_t s) {
    const StageState& state = stages_[s];
    if (state.next < programs_[s].operations.size()) {
      const Operation& operation = programs_[s].operations[state.next];
      Fail(s, operation,
           operation.action == Action::kAwaitSend ? "waits for ever for its message to be received"
                                                  : "waits for ever for its message");
      return;
    }
    for (const auto& [which, buffer] : state.out) {
      if (buffer.busy) fault_ = fmt::format("stage {}: a send is never awaited", s);
    }
    const bool evaluates =
        !programs_[s].tasks.empty() && programs_[s].tasks[0].task.kind == TaskKind::kEvaluate;
    for (int chunk = 0; chunk < shape_.chunks && fault_.empty(); ++chunk) {
      for (int m = 0; m < shape_.micro_batches && fault_.empty(); ++m) {
        CheckDone(s, chunk, m, evaluates);
      }
    }
  }

  void CheckDone(std::size_t s, int chunk, int micro_batch, bool evaluates) {
    const auto times = [&](TaskKind kind) {
      const auto found = stages_[s].done.find({kind, chunk, micro_batch});
      return found == stages_[s].done.end() ? 0 : found->second;
    };
    using enum TaskKind;
    const std::array<int, 4> run = {times(kEvaluate), times(kForward),
                                    times(kBackward) + times(kBackwardInput),
                                    times(kBackward) + times(kBackwardWeight)};
    const std::array<int, 4> wanted =
        evaluates ? std::array<int, 4>{1, 0, 0, 0} : std::array<int, 4>{0, 1, 1, 1};
    if (run == wanted) return;
    fault_ = fmt::format(
        "stage {}, micro-batch {}, chunk {}: evaluation, forward pass, input and weight gradient "
        "run {}, {}, {} and {} times",
        s, micro_batch, chunk, run[0], run[1], run[2], run[3]);
  }

  const std::vector<Program>& programs_;
  const PipelineShape& shape_;
  std::vector<StageState> stages_;
  std::map<std::tuple<int, int, int>, Channel> channels_;  // from, to, tag
  std::string fault_;
};

// The first fault of the programs: a task missing, done twice or before its operands, a buffer
// reused too early, messages received in another order than sent, a deadlock. Empty: none.
std::string FirstFault(const std::vector<Program>& programs, const PipelineShape& shape) {
  return Machine(programs, shape).Run();
}

std::vector<Program> Programs(const PipelineShape& shape,
                              Program (*make)(const PipelineShape&, int) = MakeProgram) {
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) programs.push_back(make(shape, stage));
  return programs;
}

TEST(Program, EndsUnderStrictestRendezvous) {
  for (const PipelineShape& shape : AllShapes()) {
    EXPECT_EQ(FirstFault(Programs(shape), shape), "") << Text(shape);
  }
}

// MakeProgram gives every stage as many buffers and does not check: more stages than AllShapes has.
TEST(Program, EndsWithManyStages) {
  for (const ScheduleKind kind : kKinds) {
    const bool interleaved = kind == ScheduleKind::kInterleaved;
    for (const int stages : {11, 16, 32}) {
      for (const int chunks : {1, 2, 7}) {
        if (chunks > 1 && !interleaved) continue;
        for (const int count : {1, stages - 1, stages, stages + 1, 2 * stages, 5 * stages}) {
          if (interleaved && count % stages != 0) continue;
          const PipelineShape shape{kind, stages, chunks, count};
          EXPECT_EQ(FirstFault(Programs(shape), shape), "") << Text(shape);
          EXPECT_EQ(FirstFault(Programs(shape, MakeEvaluationProgram), shape), "") << Text(shape);
        }
      }
    }
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
  EXPECT_EQ(FirstFault(programs, shape), "");
  damage(programs);
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
