// The engine of predictions, descriptions of machines, and their fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "engine.hpp"
#include "fit.hpp"
#include "schedule_clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::predict {
namespace {

using testing::HasSubstr;

// The engine against times that can be worked out by hand, and against the schedules' simulation
// with instant transfers (parallel::Simulate).

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

// Machine descriptions: all that come with Trireme are read, and a written one reads back alike.

TEST(Machine, AllDescriptionsAreRead) {
  const std::vector<std::string> names = MachineNames(TRIREME_SOURCE);
  EXPECT_GE(names.size(), 10U);
  for (const std::string& name : names) {
    const Machine machine = ReadMachine(name, TRIREME_SOURCE);
    EXPECT_FALSE(machine.source.empty()) << name;
    EXPECT_FALSE(machine.assumptions.empty()) << name;
    EXPECT_GT(machine.bf16.peak, 1e14) << name;
    EXPECT_GT(machine.node.bandwidth, machine.network.bandwidth) << name;
  }
}

TEST(Machine, WrittenOneReadsBackAlike) {
  const Machine machine = ReadMachine("jupiter", TRIREME_SOURCE);
  const std::string path = testing::TempDir() + "/written.in";
  std::ofstream(path) << Write(machine, "a test");
  const Machine again = ReadMachine(path, TRIREME_SOURCE);
  EXPECT_EQ(Write(again, "a test"), Write(machine, "a test"));
  EXPECT_EQ(again.nodes, 5884);
  EXPECT_EQ(again.memory_bytes, machine.memory_bytes);
}

std::string Complaint(const std::string& name) {
  try {
    ReadMachine(name, TRIREME_SOURCE);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST(Machine, ErrorsNameTheFileAndItsLine) {
  EXPECT_THAT(Complaint("juptier"), HasSubstr("input/machines/juptier.in cannot be read"));
  EXPECT_THAT(Complaint("juptier"), HasSubstr("jupiter"));
  const std::string path = testing::TempDir() + "/typo.in";
  std::ofstream(path) << "[machine]\ntitle = x\n[compute]\nmemory_gb = 3\n";
  EXPECT_THAT(Complaint(path), HasSubstr(path + ":4"));
  EXPECT_THAT(Complaint(path), HasSubstr("memory_gbs"));
  std::ofstream(path) << "[compute]\nmemory_gbs = 3\n";
  EXPECT_THAT(Complaint(path), HasSubstr("links.node_gbs"));
}

// A program that was copied to a card without its files trains all the same.
TEST(Machine, ARunHasTheDescriptionOfItsCardOrNone) {
  device::GpuContext card;
  card.name = "NVIDIA H200";
  card.memory_bytes = std::int64_t{140} << 30;
  train::MachineFacts facts;
  facts.stream.gpu = &card;
  facts.dtype = Dtype::kBfloat16;
  const Described described = DescribeRun(kAutoMachine, facts, TRIREME_SOURCE);
  ASSERT_TRUE(described.machine) << described.why_none;
  EXPECT_EQ(described.machine->name, "h200");
  const Described none = DescribeRun(kAutoMachine, facts, testing::TempDir());
  EXPECT_FALSE(none.machine);
  EXPECT_THAT(none.why_none, HasSubstr("input/machines/h200.in is not beside the program"));
  EXPECT_THROW(DescribeRun("h200", facts, testing::TempDir()), Error);
}

// Fit: a known machine is found again from the steps that it would take; least squares without
// negative numbers.

predict::Machine Known() {
  predict::Machine machine;
  machine.fp64 = {.peak = 40e9, .efficiency = 0.5, .half = 12};
  machine.fp32 = {.peak = 100e9, .efficiency = 0.8, .half = 24};
  machine.attention = 0.3;
  machine.memory = 20e9;
  machine.kernel_seconds = 2e-6;
  machine.step_seconds = 3e-4;
  return machine;
}

// Steps of models in different sizes, as one rank computes them.
std::vector<Work> Works(Dtype type) {
  std::vector<Work> works;
  for (const double dim : {32.0, 64.0, 128.0, 256.0, 768.0}) {
    for (const double tokens : {16.0, 512.0, 4096.0}) {
      Work work;
      work.type = type;
      for (int i = 0; i < 6; ++i) {
        work.products.push_back({tokens, 4 * dim, dim});
        work.products.push_back({tokens, dim, 4 * dim});
        work.products.push_back({dim, 4 * dim, tokens});
      }
      work.attention_flops = 4 * dim * tokens * std::sqrt(tokens);
      work.bytes = 60 * tokens * dim + 200 * dim * dim;
      work.kernels = 40 + dim / 16;
      works.push_back(work);
    }
  }
  return works;
}

std::vector<Observation> Observed(const predict::Machine& machine) {
  std::vector<Observation> observations;
  for (const Dtype type : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const Work& work : Works(type)) observations.push_back({work, SecondsOf(work, machine)});
  }
  return observations;
}

TEST(Fit, FindsAMachineAgain) {
  const predict::Machine known = Known();
  predict::Machine found;
  found.fp64.peak = known.fp64.peak;
  found.fp32.peak = known.fp32.peak;
  Fit(Observed(known), found);
  EXPECT_NEAR(found.fp32.efficiency, known.fp32.efficiency, 1e-6);
  EXPECT_NEAR(found.fp64.efficiency, known.fp64.efficiency, 1e-6);
  EXPECT_EQ(found.fp32.half, known.fp32.half);
  EXPECT_EQ(found.fp64.half, known.fp64.half);
  EXPECT_NEAR(found.attention, known.attention, 1e-6);
  EXPECT_NEAR(found.memory / known.memory, 1, 1e-6);
  EXPECT_NEAR(found.kernel_seconds, known.kernel_seconds, 1e-10);
  EXPECT_NEAR(found.step_seconds, known.step_seconds, 1e-8);
}

// Steps that are faster than the measured peak raise it: shares stay at most 1, times as they were.
TEST(Fit, RaisesAPeakThatWasMeasuredTooLow) {
  const predict::Machine known = Known();
  predict::Machine found;
  found.fp64.peak = 10e9;
  found.fp32.peak = 25e9;
  const std::vector<Observation> observations = Observed(known);
  Fit(observations, found);
  EXPECT_LE(found.fp32.efficiency, 1);
  EXPECT_LE(found.fp64.efficiency, 1);
  EXPECT_LE(found.attention, 1);
  EXPECT_NEAR(found.fp32.peak * found.fp32.efficiency / 80e9, 1, 1e-6);
  for (const Observation& each : observations) {
    EXPECT_NEAR(SecondsOf(each.work, found) / each.seconds, 1, 1e-6);
  }
}

TEST(LeastSquares, HasNoNegativeNumbers) {
  // Exactly 2 x - y, which the best x and y >= 0 do not meet.
  const std::vector<std::vector<double>> rows = {{0.5, 0.001}, {1, 1.0}, {0.75, 0.5}};
  const std::vector<double> x = LeastSquares(rows);
  ASSERT_EQ(x.size(), 2U);
  EXPECT_GT(x[0], 0);
  EXPECT_EQ(x[1], 0);
  // One column alone: the sum of its numbers over that of its squares.
  EXPECT_NEAR(x[0], 2.25 / 1.8125, 1e-12);
}

TEST(LeastSquares, SolvesWhatHasASolution) {
  const std::vector<double> x = LeastSquares({{0.2, 0.3}, {0.4, 0.1}, {0.3, 0.2}});
  EXPECT_NEAR(0.2 * x[0] + 0.3 * x[1], 1, 1e-9);
  EXPECT_NEAR(0.4 * x[0] + 0.1 * x[1], 1, 1e-9);
}

}  // namespace
}  // namespace trireme::predict
