// Runs a stage's program: transfers through MPI, computation through an interface.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::parallel {

// Pipeline schedules as pure functions: the tasks of each stage, in order. No MPI.

// kGpipe: Huang et al. 2019. kOneForwardOneBackward: PipeDream-flush (Narayanan et al. 2021, figure
// 4 top). kInterleaved: the same paper, figure 4 bottom. kZeroBubble: ZB-H1 (Qi et al. 2023).
enum class ScheduleKind { kGpipe, kOneForwardOneBackward, kInterleaved, kZeroBubble };
const char* NameOf(ScheduleKind kind);  // as in the deck

// kForward, then kBackward (input and weight gradients in one), or kBackwardInput and some time
// later kBackwardWeight. kEvaluate: a forward pass that saves nothing.
enum class TaskKind { kForward, kBackward, kBackwardInput, kBackwardWeight, kEvaluate };
inline constexpr int kTaskKinds = 5;

struct Task {
  TaskKind kind = TaskKind::kForward;
  int micro_batch = 0;
  int chunk = 0;  // of the stage's chunks of the model: virtual stage chunk * stages + stage
  bool operator==(const Task&) const = default;
};

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int stages = 1;         // P
  int chunks = 1;         // v, runs of blocks that a stage holds; 1 unless interleaved
  int micro_batches = 1;  // M; interleaved: a multiple of P
  int VirtualStages() const { return stages * chunks; }
  bool operator==(const PipelineShape&) const = default;
};

// Micro-batches that a step of `count` runs: a multiple of the stages if interleaved (the caller
// adds empty micro-batches).
int PaddedMicroBatches(const PipelineShape& shape, int count);

// The tasks of one stage, in order: each micro-batch's forward and backward pass once per chunk;
// of any chunk, micro-batches in ascending order. With one stage: forward, backward, forward ...
std::vector<Task> MakeSchedule(const PipelineShape& shape, int stage);
// Forward passes alone, in one order for all stages; any number of micro-batches, also with several
// chunks.
std::vector<Task> MakeEvaluation(const PipelineShape& shape);

// The data flow between virtual stages, which every schedule must obey: the task that each waits
// for.

inline constexpr int kNoStage = -1;

inline int VirtualStage(const PipelineShape& shape, int stage, int chunk) {
  return chunk * shape.stages + stage;
}
inline bool GoesForward(TaskKind kind) {
  return kind == TaskKind::kForward || kind == TaskKind::kEvaluate;
}
inline bool GivesInputGradient(TaskKind kind) {
  return kind == TaskKind::kBackward || kind == TaskKind::kBackwardInput;
}
inline bool GivesWeightGradient(TaskKind kind) {
  return kind == TaskKind::kBackward || kind == TaskKind::kBackwardWeight;
}

// The virtual stage whose result `task` takes in; kNoStage if it needs none.
int SourceOf(const PipelineShape& shape, int stage, const Task& task);
// The virtual stage that takes in the result of `task`.
int DestinationOf(const PipelineShape& shape, int stage, const Task& task);

std::string Describe(const Task& task);  // "forward pass of micro-batch 3, chunk 1"

// Most micro-batches (times chunks) whose forward pass has begun on `stage` and whose last backward
// task has not ended, as published: gpipe M v; 1f1b min(P - stage, M); interleaved min((P - stage -
// 1) 2 + (v - 1) P + 1, M v); zero_bubble min(P, M).
int MostInFlight(const PipelineShape& shape, int stage);

// Blocks [begin, end) of each virtual stage such that the most expensive stage is as cheap as
// possible. Costs are relative to each other. Every virtual stage but the last has at least one
// block; the last has the head. layers + 1 >= virtual stages.
std::vector<Part> BalanceStages(std::int64_t layers, int virtual_stages, double block_cost,
                                double embedding_cost, double head_cost);

// Program: a stage's schedule with its transfers and its memory, as the stage executes it. A pure
// function; no MPI.

// Slots of activations, numbered from 0 for each chunk; one kind per lifetime.
struct Slots {
  int input = 0;     // from the forward pass to the end of the input gradient
  int weight = 0;    // from the forward pass to the end of the weight gradient
  int backward = 0;  // from the start of the input gradient to the end of the weight gradient, if
                     // these are two tasks (for all tasks of a stage or for none)
};

inline constexpr int kNoBuffer = -1;

struct ProgramTask {
  Task task;
  Slots slots;         // numbers, of this micro-batch and chunk; kEvaluate has none
  bool final = false;  // the last task of its chunk that adds to weight gradients
  int receives_in = kNoBuffer, sends_from = kNoBuffer;  // buffers of its flow
};

// Kinds of messages between virtual stages. A forward task takes and gives activations, a task with
// an input gradient takes and gives gradients.
enum class Flow { kActivation, kGradient };
Flow FlowOf(TaskKind kind);

// The other end and the tag of a task's message. Between the same two ranks, messages of one tag
// are sent and received in the same order.
struct Peer {
  int stage = 0;
  int tag = 0;  // flow + 2 * chunk of the receiver
};

// kPostReceive and kSend start a transfer of task `task` (as consumer, as producer) through buffer
// `buffer` of its flow; kAwaitReceive and kAwaitSend return when that buffer's transfer is
// complete.
enum class Action { kPostReceive, kAwaitReceive, kAwaitSend, kCompute, kSend };
struct Operation {
  Action action = Action::kCompute;
  int task = 0;  // index in tasks
  Flow flow = Flow::kActivation;
  int buffer = 0;
};

struct Buffers {  // numbers of them
  int activations_in = 0, activations_out = 0, gradients_in = 0, gradients_out = 0;
};

struct Program {
  std::vector<ProgramTask> tasks;
  std::vector<Operation> operations;
  std::vector<Slots> slots;  // [chunks]: numbers of each kind
  Buffers buffers;
};

// The other end of the message that `task` takes in or gives; only if the program has one
// (receives_in, sends_from).
Peer SenderTo(const PipelineShape& shape, int stage, const Task& task);
Peer ReceiverFrom(const PipelineShape& shape, int stage, const Task& task);

// The program of one stage. An incoming activation stays in its buffer until the weight gradient of
// its task is done (evaluation: until the task is done); an incoming gradient until its task is
// done. While a task computes, the next receive of each flow is posted.
Program MakeProgram(const PipelineShape& shape, int stage);
Program MakeEvaluationProgram(const PipelineShape& shape, int stage);

// The computation of a stage.
class StageWork {
 public:
  virtual ~StageWork() = default;
  // Rows of the residual stream that this rank holds of a micro-batch; may be 0.
  virtual std::int64_t Rows(int micro_batch) const = 0;
  // Runs one task. in, out: [rows, columns].
  //   kForward, kEvaluate  `in`: the residual stream that enters, Empty() on the first virtual
  //   stage; `out`:
  //                        to be filled with what leaves, Empty() on the last
  //   backward tasks       `in`: gradient of the stream that left; `out`: to be filled with the
  //                        gradient of the stream that entered
  //   kBackwardWeight      both Empty()
  // `in` of kForward keeps its contents until the micro-batch's weight gradient is done.
  virtual void Run(const ProgramTask& task, const kernels::Matrix& in,
                   const kernels::Matrix& out) = 0;
};

class Pipeline {
 public:
  // Allocates the buffers of the largest program (shape.micro_batches per step; at least 1). rows,
  // columns: of the largest micro-batch's stream on this rank. With one stage there are no buffers.
  Pipeline(const comm::Collectives& transfers, const PipelineShape& shape, Dtype dtype,
           std::int64_t rows, std::int64_t columns, const device::Stream& stream = {});

  // Micro-batches that a step of `count` runs: a multiple of the stages if interleaved (the caller
  // adds empty micro-batches).
  int Padded(int count) const;

  // The stage's programs of a step of Padded(...) micro-batches: made once, kept.
  const Program& TrainingProgram(int micro_batches);
  const Program& EvaluationProgram(int micro_batches);
  // Collective over the pipeline group, whose stages run the programs of one step.
  void Run(const Program& program, StageWork& work);
  // late: posts a receive only when its message is needed. For steps in which a GPU may stop to
  // load a kernel, which must not wait for a message still held up elsewhere.
  void ReceiveLate(bool late) { late_ = late; }
  // Gives outstanding transfers a chance to progress; cheap. For StageWork, between its kernels.
  void Progress();

  const PipelineShape& Shape() const { return shape_; }
  int Stage() const { return transfers_.Rank(); }
  // Seconds of the last program spent waiting for another stage's output, and for buffers
  // still being sent.
  double SecondsWaitedForInput() const { return waited_input_; }
  double SecondsWaitedForOutput() const { return waited_output_; }
  // Seconds of the tasks of this kind and chunk in the last program, all micro-batches.
  double SecondsOf(TaskKind kind, int chunk) const {
    return seconds_.at(static_cast<std::size_t>(chunk)).at(static_cast<std::size_t>(kind));
  }
  // Floating-point operations of the tasks since construction on a planned stream, [chunks][kinds].
  const std::vector<std::array<double, kTaskKinds>>& Operations() const { return operations_; }
  std::int64_t Bytes() const;  // of the buffers

 private:
  struct Lane {  // buffers of one flow in one direction
    device::Buffer memory;
    std::vector<comm::Request> requests;
  };
  void Execute(const Program& program, const Operation& operation, StageWork& work);
  void Compute(const ProgramTask& task, const kernels::Matrix& in, const kernels::Matrix& out,
               StageWork& work);
  std::int64_t BufferBytes() const;  // of one buffer
  kernels::Matrix BufferOf(const Lane& lane, int buffer, std::int64_t rows) const;

  comm::Collectives transfers_;
  PipelineShape shape_;  // micro_batches: the most per step
  Dtype dtype_;
  std::int64_t rows_, columns_;
  device::Stream stream_;
  bool late_ = false;
  Lane activations_in_, activations_out_, gradients_in_, gradients_out_;
  std::map<int, Program> training_, evaluation_;  // by micro-batches
  double waited_input_ = 0, waited_output_ = 0;
  std::vector<std::array<double, kTaskKinds>> seconds_;     // [chunks]
  std::vector<std::array<double, kTaskKinds>> operations_;  // [chunks]
};

}  // namespace trireme::parallel
