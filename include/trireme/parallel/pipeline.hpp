// Pipeline parallelism: schedules, the program of one stage, and the class that runs it. Transfers
// go through MPI, computation through the interface StageWork.
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

// Schedules are pure functions that list the tasks of a stage in order; they need no MPI.

// kGpipe: Huang et al. 2019. kOneForwardOneBackward: PipeDream-flush (Narayanan et al. 2021, figure
// 4 top). kInterleaved: the same paper, figure 4 bottom. kZeroBubble: ZB-H1 (Qi et al. 2023).
enum class ScheduleKind { kGpipe, kOneForwardOneBackward, kInterleaved, kZeroBubble };
const char* NameOf(ScheduleKind kind);  // its name in the deck

// kForward is followed by kBackward (input and weight gradients), or by kBackwardInput and later
// kBackwardWeight. kEvaluate: a forward pass that saves no activations.
enum class TaskKind { kForward, kBackward, kBackwardInput, kBackwardWeight, kEvaluate };
inline constexpr int kTaskKinds = 5;

struct Task {
  TaskKind kind = TaskKind::kForward;
  int micro_batch = 0;
  int chunk = 0;  // which chunk of the stage: virtual stage chunk * stages + stage
  bool operator==(const Task&) const = default;
};

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int stages = 1;         // P
  int chunks = 1;         // v, separate runs of blocks per stage; 1 unless interleaved
  int micro_batches = 1;  // M; interleaved: a multiple of P
  int VirtualStages() const { return stages * chunks; }
  bool operator==(const PipelineShape&) const = default;
};

// How many micro-batches a step with `count` of them runs: if interleaved, rounded up to a multiple
// of the stages (the caller adds empty micro-batches).
int PaddedMicroBatches(const PipelineShape& shape, int count);

// The tasks of one stage, in order: the forward and the backward pass of each micro-batch, once per
// chunk, micro-batches of a chunk in ascending order. One stage: forward, backward, forward ...
std::vector<Task> MakeSchedule(const PipelineShape& shape, int stage);
// Forward passes only, in the same order on all stages. Allows any number of micro-batches.
std::vector<Task> MakeEvaluation(const PipelineShape& shape);

// The data flow between virtual stages, which every schedule must obey: where each task's input
// comes from and where its result goes.

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

// The virtual stage that sends the input of `task`; kNoStage if it needs no input.
int SourceOf(const PipelineShape& shape, int stage, const Task& task);
// The virtual stage that receives the result of `task`; kNoStage: none.
int DestinationOf(const PipelineShape& shape, int stage, const Task& task);

std::string Describe(const Task& task);  // "forward pass of micro-batch 3, chunk 1"

// The most micro-batches (times chunks) that are in flight on `stage`: their forward pass has begun
// and their last backward task has not ended. As published, gpipe M v; 1f1b min(P - stage, M);
// interleaved min((P - stage - 1) 2 + (v - 1) P + 1, M v); zero_bubble min(P, M).
int MostInFlight(const PipelineShape& shape, int stage);

// Blocks [begin, end) of each virtual stage. The cost of the most expensive stage is minimal; costs
// are in any common unit. Every virtual stage but the last has at least one block; the last has the
// head. RunError unless layers + 1 >= virtual_stages.
std::vector<Part> BalanceStages(std::int64_t layers, int virtual_stages, double block_cost,
                                double embedding_cost, double head_cost);

// A program is a stage's schedule with its transfers and buffers, as the stage executes it. Making
// one is a pure function, without MPI.

// Slots in which a micro-batch's activations are saved, numbered from 0 in each chunk. There is one
// kind of slot per lifetime.
struct Slots {
  int input = 0;     // from the forward pass to the end of the input gradient
  int weight = 0;    // from the forward pass to the end of the weight gradient
  int backward = 0;  // from the start of the input gradient to the end of the weight gradient, if
                     // these are two tasks (for all tasks of a stage or for none)
};

inline constexpr int kNoBuffer = -1;

struct ProgramTask {
  Task task;
  Slots slots;         // slot numbers of this micro-batch in its chunk; unused in kEvaluate
  bool final = false;  // last task of its chunk that adds to weight gradients
  int receives_in = kNoBuffer, sends_from = kNoBuffer;  // buffers of the task's flow
};

// Kinds of messages between virtual stages. A forward task receives and sends activations; a task
// that computes an input gradient receives and sends gradients.
enum class Flow { kActivation, kGradient };
Flow FlowOf(TaskKind kind);

// The other stage and the tag of a task's message. Messages between the same two ranks with the
// same tag are sent and received in the same order.
struct Peer {
  int stage = 0;
  int tag = 0;  // flow + 2 * (the receiver's chunk)
};

// kPostReceive starts to receive the input of task `task` into buffer `buffer` of its flow; kSend
// starts to send the task's result from there. kAwaitReceive and kAwaitSend wait until the transfer
// of that buffer is complete.
enum class Action { kPostReceive, kAwaitReceive, kAwaitSend, kCompute, kSend };
struct Operation {
  Action action = Action::kCompute;
  int task = 0;  // index in Program::tasks
  Flow flow = Flow::kActivation;
  int buffer = 0;
};

struct Buffers {  // how many of each kind
  int activations_in = 0, activations_out = 0, gradients_in = 0, gradients_out = 0;
};

struct Program {
  std::vector<ProgramTask> tasks;
  std::vector<Operation> operations;
  std::vector<Slots> slots;  // [chunks]: how many of each kind
  Buffers buffers;
};

// The stage that sends the input of `task`, and the stage that receives its result. Valid only if
// the task has such a message (receives_in, sends_from).
Peer SenderTo(const PipelineShape& shape, int stage, const Task& task);
Peer ReceiverFrom(const PipelineShape& shape, int stage, const Task& task);

// The program of one stage. A received activation stays in its buffer until the weight gradient of
// its micro-batch and chunk is done (in evaluation, until the task is done); a received gradient
// stays until its task is done. While a task computes, the next receive of each flow is posted.
Program MakeProgram(const PipelineShape& shape, int stage);
Program MakeEvaluationProgram(const PipelineShape& shape, int stage);

// Interface for the computation of a stage.
class StageWork {
 public:
  virtual ~StageWork() = default;
  // Rows of this micro-batch's residual stream that this rank holds; may be 0.
  virtual std::int64_t Rows(int micro_batch) const = 0;
  // Runs one task. in, out: [rows, columns].
  //   kForward, kEvaluate    in: input residual stream, Empty() on the first virtual stage
  //                          out: output residual stream, overwritten; Empty() on the last
  //   kBackward (and Input)  in: gradient of the output stream, Empty() on the last virtual stage
  //                          out: gradient of the input stream, overwritten; Empty() on the first
  //   kBackwardWeight        both are Empty()
  // `in` of kForward keeps its contents until the micro-batch's weight gradient is done.
  virtual void Run(const ProgramTask& task, const kernels::Matrix& in,
                   const kernels::Matrix& out) = 0;
};

class Pipeline {
 public:
  // Allocates the buffers of the largest program, with shape.micro_batches per step (at least 1).
  // rows, columns: this rank's residual stream for the largest micro-batch. One stage: no buffers.
  Pipeline(const comm::Collectives& transfers, const PipelineShape& shape, Dtype dtype,
           std::int64_t rows, std::int64_t columns, const device::Stream& stream = {});

  int Padded(int count) const;  // PaddedMicroBatches of this shape

  // The stage's programs for `micro_batches` micro-batches (training: as Padded returns), cached.
  const Program& TrainingProgram(int micro_batches);
  const Program& EvaluationProgram(int micro_batches);
  // Runs `program`. Collective over the pipeline group: every stage runs its program of this step.
  void Run(const Program& program, StageWork& work);
  // late: each receive is posted only when its message is needed. For steps in which a GPU may load
  // a kernel: loading must not wait for a message that another rank cannot send yet.
  void ReceiveLate(bool late) { late_ = late; }
  // Lets outstanding transfers progress; cheap. StageWork calls this between its kernels.
  void Progress();

  const PipelineShape& Shape() const { return shape_; }
  int Stage() const { return transfers_.Rank(); }
  // Seconds that the last program waited for messages from other stages, and for its own sends.
  double SecondsWaitedForInput() const { return waited_input_; }
  double SecondsWaitedForOutput() const { return waited_output_; }
  // Seconds of all tasks of this kind and chunk in the last program.
  double SecondsOf(TaskKind kind, int chunk) const {
    return seconds_.at(static_cast<std::size_t>(chunk)).at(static_cast<std::size_t>(kind));
  }
  // Floating-point operations since construction, [chunks][kinds]; counted on planned streams only.
  const std::vector<std::array<double, kTaskKinds>>& Operations() const { return operations_; }
  std::int64_t Bytes() const;  // of all buffers

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
  PipelineShape shape_;  // micro_batches: most per step
  Dtype dtype_;
  std::int64_t rows_, columns_;
  device::Stream stream_;
  bool late_ = false;
  std::array<Lane, 4> lanes_;                     // in the order of Buffers
  std::map<int, Program> training_, evaluation_;  // by number of micro-batches
  double waited_input_ = 0, waited_output_ = 0;
  std::vector<std::array<double, kTaskKinds>> seconds_;     // [chunks]
  std::vector<std::array<double, kTaskKinds>> operations_;  // [chunks]
};

}  // namespace trireme::parallel
