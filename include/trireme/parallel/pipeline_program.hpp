// Program: a stage's schedule with its transfers and its memory, as the stage executes it. A pure
// function; no MPI.
#ifndef TRIREME_PARALLEL_PIPELINE_PROGRAM_HPP_
#define TRIREME_PARALLEL_PIPELINE_PROGRAM_HPP_

#include <string>
#include <vector>

#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::parallel {

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

// While one lives, the thread's MakeProgram keeps the programs of all stages of the last shapes
// that it was asked for: each call makes all of them, and a planner asks for one stage after the
// other.
class KeptPrograms {
 public:
  KeptPrograms();
  ~KeptPrograms();
  KeptPrograms(const KeptPrograms&) = delete;
  KeptPrograms& operator=(const KeptPrograms&) = delete;

 private:
  friend Program MakeProgram(const PipelineShape& shape, int stage);
  struct Entry {
    PipelineShape shape;
    std::vector<Program> programs;  // [stages]
  };
  const std::vector<Program>& Of(const PipelineShape& shape);
  std::vector<Entry> entries_;  // the latest last
  KeptPrograms* outer_;
};

// True if all stages' programs end under the strictest rendezvous, in which a send completes only
// when its receive is posted; they then end under any.
bool Terminates(const std::vector<Program>& programs, const PipelineShape& shape);
// The first fault of the programs: a task missing, done twice or before its operands, a buffer
// reused too early, messages received in another order than sent, a deadlock. Empty: none.
std::string FirstFault(const std::vector<Program>& programs, const PipelineShape& shape);

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_PIPELINE_PROGRAM_HPP_
