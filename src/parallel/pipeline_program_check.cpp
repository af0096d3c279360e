// Runs all stages' programs without MPI: a send is complete only once its receive is posted, and
// every use of a buffer is checked.
#include <fmt/format.h>

#include <array>
#include <map>
#include <tuple>

#include "pipeline_links.hpp"
#include "trireme/parallel/pipeline_program.hpp"

namespace trireme::parallel {

namespace {

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

}  // namespace

std::string FirstFault(const std::vector<Program>& programs, const PipelineShape& shape) {
  return Machine(programs, shape).Run();
}

bool Terminates(const std::vector<Program>& programs, const PipelineShape& shape) {
  return FirstFault(programs, shape).empty();
}

}  // namespace trireme::parallel
