// The engine against times that can be worked out by hand, and against the schedules' simulation
// with instant transfers (parallel::Simulate).
#include "engine.hpp"

#include <gtest/gtest.h>

#include "schedule_clock.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::predict {
namespace {

using comm::Group, comm::Transfer;
using Kind = TapeEvent::Kind;

Machine Plain() {
  Machine machine;
  machine.memory = 1;
  return machine;
}

void Compute(Tape& tape, double seconds) { tape.events.push_back({Kind::kCompute, 0, seconds}); }

int Start(Tape& tape, Group group, Transfer transfer, const Cost& cost, int peer = -1,
          int tag = -1) {
  const int number = static_cast<int>(tape.transfers.size());
  tape.transfers.push_back({{.group = static_cast<std::int8_t>(group),
                             .transfer = static_cast<std::int8_t>(transfer),
                             .ranks = 2,
                             .bytes = 1,
                             .peer = peer,
                             .tag = tag},
                            cost});
  tape.events.push_back({Kind::kStart, number, 0});
  return number;
}

void Wait(Tape& tape, int number) { tape.events.push_back({Kind::kWait, number, 0}); }

double Exposed(const StageTimes& times, Group group) {
  return times.exposed[static_cast<std::size_t>(group)];
}

TEST(Engine, TransferHidesBehindComputation) {
  Tape tape;
  const int sum = Start(tape, Group::kData, Transfer::kAllReduce, {0.5, 2, false});
  Compute(tape, 2);
  Wait(tape, sum);
  Compute(tape, 1);
  const Simulated played = Play(Plain(), {tape}, false);
  EXPECT_NEAR(played.Makespan(), 3.5, 1e-9);  // 0.5 + 2 of transfer, then 1
  EXPECT_NEAR(Exposed(played.stages[0], Group::kData), 0.5, 1e-9);
  EXPECT_NEAR(played.stages[0].compute, 3, 1e-9);
}

TEST(Engine, TransfersOnOneLinkShareIt) {
  Tape tape;
  const int a = Start(tape, Group::kData, Transfer::kAllReduce, {0, 1, true});
  const int b = Start(tape, Group::kShard, Transfer::kAllGather, {0, 1, true});
  const int c = Start(tape, Group::kTensor, Transfer::kAllGather, {0, 1, false});  // another link
  Wait(tape, c);
  Compute(tape, 0.25);
  Wait(tape, a);
  Wait(tape, b);
  const Simulated played = Play(Plain(), {tape}, true);
  EXPECT_NEAR(played.Makespan(), 2, 1e-9);
  EXPECT_NEAR(Exposed(played.stages[0], Group::kTensor), 1, 1e-9);
  EXPECT_NEAR(Exposed(played.stages[0], Group::kData), 0.75, 1e-9);
}

TEST(Engine, TransfersOfOneGroupFollowEachOther) {
  Tape tape;
  Start(tape, Group::kShard, Transfer::kAllGather, {0, 1, true});
  const int second = Start(tape, Group::kShard, Transfer::kAllGather, {0.5, 1, true});
  Wait(tape, second);
  EXPECT_NEAR(Play(Plain(), {tape}, false).Makespan(), 2.5, 1e-9);
}

TEST(Engine, ComputationLosesSpeedBesideTransfers) {
  Machine machine = Plain();
  machine.interference = 0.5;
  Tape tape;
  Start(tape, Group::kData, Transfer::kAllReduce, {0, 1, false});
  Compute(tape, 2);  // 0.5 done in the first second
  EXPECT_NEAR(Play(machine, {tape}, false).Makespan(), 2.5, 1e-9);
}

TEST(Engine, WithoutBackgroundTransfersMoveWhileTheRankWaits) {
  Machine machine = Plain();
  machine.background = false;
  Tape tape;
  const int sum = Start(tape, Group::kData, Transfer::kAllReduce, {0, 2, false});
  Compute(tape, 5);
  Wait(tape, sum);
  EXPECT_NEAR(Play(machine, {tape}, false).Makespan(), 7, 1e-9);
}

TEST(Engine, WorldWaitsForItsSlowestStage) {
  Tape quick, slow;
  Compute(quick, 1);
  Wait(quick, Start(quick, Group::kWorld, Transfer::kAllReduce, {0, 1, false}));
  Compute(slow, 4);
  Wait(slow, Start(slow, Group::kWorld, Transfer::kAllReduce, {0, 1, false}));
  const Simulated played = Play(Plain(), {quick, slow}, false);
  EXPECT_NEAR(played.Makespan(), 5, 1e-9);
  EXPECT_NEAR(Exposed(played.stages[0], Group::kWorld), 4, 1e-9);
  EXPECT_NEAR(Exposed(played.stages[1], Group::kWorld), 1, 1e-9);
}

TEST(Engine, MessageThatNeverComesIsAnError) {
  Tape sender, receiver;
  Compute(sender, 1);
  Wait(receiver, Start(receiver, Group::kPipeline, Transfer::kReceive, {}, 0, 0));
  EXPECT_THROW(Play(Plain(), {sender, receiver}, false), Error);
}

// Tapes of a pipeline's programs, as Pipeline executes them.
std::vector<Tape> TapesOf(const parallel::PipelineShape& shape, double forward, double backward) {
  using parallel::Action;
  std::vector<Tape> tapes;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const parallel::Program program = parallel::MakeProgram(shape, stage);
    Tape& tape = tapes.emplace_back();
    std::map<std::tuple<bool, int, int>, int> open;  // sends, flow, buffer
    for (const parallel::Operation& operation : program.operations) {
      const parallel::Task& task = program.tasks[static_cast<std::size_t>(operation.task)].task;
      const int flow = static_cast<int>(operation.flow);
      const std::tuple in{false, flow, operation.buffer}, out{true, flow, operation.buffer};
      switch (operation.action) {
        case Action::kPostReceive: {
          const parallel::Peer from = parallel::SenderTo(shape, stage, task);
          open[in] = Start(tape, Group::kPipeline, Transfer::kReceive, {}, from.stage, from.tag);
          break;
        }
        case Action::kAwaitReceive:
          Wait(tape, open.at(in));
          break;
        case Action::kAwaitSend:
          Wait(tape, open.at(out));
          break;
        case Action::kCompute:
          Compute(tape, task.kind == parallel::TaskKind::kForward ? forward : backward);
          break;
        case Action::kSend: {
          const parallel::Peer to = parallel::ReceiverFrom(shape, stage, task);
          open[out] = Start(tape, Group::kPipeline, Transfer::kSend, {}, to.stage, to.tag);
          break;
        }
      }
    }
  }
  return tapes;
}

TEST(Engine, InstantTransfersGiveTheSchedulesTimes) {
  using parallel::ScheduleKind;
  for (const auto& [kind, chunks] :
       {std::pair{ScheduleKind::kGpipe, 1}, std::pair{ScheduleKind::kOneForwardOneBackward, 1},
        std::pair{ScheduleKind::kInterleaved, 2}}) {
    const parallel::PipelineShape shape{kind, 4, chunks, 8};
    const std::vector<parallel::StageCost> costs(static_cast<std::size_t>(shape.VirtualStages()),
                                                 {1, 1, 1});
    const parallel::Simulation expected = parallel::Simulate(shape, costs);
    const Simulated played = Play(Plain(), TapesOf(shape, 1, 2), false);
    EXPECT_NEAR(played.Makespan(), expected.makespan, 1e-6) << parallel::NameOf(kind);
    for (std::size_t stage = 0; stage < 4; ++stage) {
      EXPECT_NEAR(played.stages[stage].compute, expected.busy[stage], 1e-6);
    }
  }
}

}  // namespace
}  // namespace trireme::predict
