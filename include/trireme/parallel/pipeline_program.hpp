// A stage's schedule with its transfers and its memory: what the stage really executes. A pure
// function too; no MPI.
#ifndef TRIREME_PARALLEL_PIPELINE_PROGRAM_HPP_
#define TRIREME_PARALLEL_PIPELINE_PROGRAM_HPP_

#include <string>
#include <vector>

#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::parallel {

// Activations live in slots, numbered from 0 for each chunk. Three lifetimes, three kinds of slot:
struct Slots {
  int input = 0;     // from the forward pass to the end of the input gradient
  int weight = 0;    // from the forward pass to the end of the weight gradient
  int backward = 0;  // from the start of the input gradient to the end of the weight gradient; only
                     // where these are two tasks, which they are for all of a stage or for none
};

inline constexpr int kNoBuffer = -1;

struct ProgramTask {
  Task task;
  Slots slots;         // of this micro-batch and chunk, where they live; kEvaluate has none
  bool final = false;  // the last task of its chunk that adds to weight gradients
  int receives_in = kNoBuffer, sends_from = kNoBuffer;  // buffers of its flow
};

// What travels between virtual stages. A forward task takes and gives activations, a task with an
// input gradient takes and gives gradients.
enum class Flow { kActivation, kGradient };
Flow FlowOf(TaskKind kind);

// Which message a task takes in or gives: between the same two ranks, messages of one tag are sent
// and received in the same order.
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

struct Buffers {  // how many of each
  int activations_in = 0, activations_out = 0, gradients_in = 0, gradients_out = 0;
};

struct Program {
  std::vector<ProgramTask> tasks;
  std::vector<Operation> operations;
  std::vector<Slots> slots;  // [chunks]: how many of each kind
  Buffers buffers;
};

// The other end of the message that `task` takes in or gives. Only where program.tasks says that
// there is one (receives_in, sends_from).
Peer SenderTo(const PipelineShape& shape, int stage, const Task& task);
Peer ReceiverFrom(const PipelineShape& shape, int stage, const Task& task);

// An incoming activation stays in its buffer until the weight gradient of its task is done
// (evaluation: until the task is done); an incoming gradient until its task is done. While a task
// computes, the next receive of each flow is posted.
Program MakeProgram(const PipelineShape& shape, int stage);
Program MakeEvaluationProgram(const PipelineShape& shape, int stage);

// Whether all stages' programs end, where a send completes only once its receive is posted: the
// strictest rendezvous, hence under any.
bool Terminates(const std::vector<Program>& programs, const PipelineShape& shape);
// Why not, or what else is wrong: a task missing or done twice, before what it needs, a buffer
// reused too early, messages received in another order than sent. Empty: all is well.
std::string FirstFault(const std::vector<Program>& programs, const PipelineShape& shape);

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_PIPELINE_PROGRAM_HPP_
