// MakeProgram: slots for activations, buffers for messages, and the places at which each transfer
// is started and awaited.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

namespace {

constexpr int kFlows = 2;
constexpr std::size_t At(Flow flow) { return static_cast<std::size_t>(flow); }

// Numbers from 0, the lowest free one first.
class Numbers {
 public:
  int Take() {
    if (free_.empty()) return count_++;
    const int number = free_.top();
    free_.pop();
    return number;
  }
  void Give(int number) { free_.push(number); }
  int Count() const { return count_; }

 private:
  int count_ = 0;
  std::priority_queue<int, std::vector<int>, std::greater<>> free_;
};

class Builder {
 public:
  Builder(const PipelineShape& shape, int stage, const std::vector<Task>& tasks, int out_buffers)
      : shape_(shape),
        stage_(stage),
        out_buffers_(out_buffers),
        slots_(static_cast<std::size_t>(shape.chunks)) {
    for (const Task& task : tasks) program_.tasks.emplace_back().task = task;
  }

  Program Build() {
    MarkFinal();
    for (int i = 0; i < Count(); ++i) Add(i);
    for (const Flow flow : {Flow::kActivation, Flow::kGradient}) {
      const int used = std::min(sent_[At(flow)], out_buffers_);
      for (int buffer = 0; buffer < used; ++buffer) {
        Append(Action::kAwaitSend, last_sender_[{flow, buffer}], flow, buffer);
      }
      (flow == Flow::kActivation ? program_.buffers.activations_out
                                 : program_.buffers.gradients_out) = used;
    }
    program_.buffers.activations_in = in_[At(Flow::kActivation)].Count();
    program_.buffers.gradients_in = in_[At(Flow::kGradient)].Count();
    for (const ChunkSlots& chunk : slots_) {
      program_.slots.push_back({chunk.input.Count(), chunk.weight.Count(), chunk.backward.Count()});
    }
    return std::move(program_);
  }

 private:
  struct ChunkSlots {
    Numbers input, weight, backward;
  };
  struct Held {  // by a micro-batch of a chunk, from its forward pass on
    Slots slots;
    int buffer = kNoBuffer;
  };
  using Key = std::pair<int, int>;  // chunk, micro-batch

  int Count() const { return static_cast<int>(program_.tasks.size()); }
  ProgramTask& TaskAt(int i) { return program_.tasks[static_cast<std::size_t>(i)]; }
  bool Receives(int i) { return SourceOf(shape_, stage_, TaskAt(i).task) != kNoStage; }

  void Append(Action action, int task, Flow flow, int buffer) {
    program_.operations.push_back({action, task, flow, buffer});
  }

  void MarkFinal() {
    std::vector<bool> found(slots_.size(), false);
    for (int i = Count(); i-- > 0;) {
      const auto chunk = static_cast<std::size_t>(TaskAt(i).task.chunk);
      if (!GivesWeightGradient(TaskAt(i).task.kind) || found[chunk]) continue;
      TaskAt(i).final = found[chunk] = true;
    }
  }

  void Add(int i) {
    ProgramTask& now = TaskAt(i);
    const Flow flow = FlowOf(now.task.kind);
    if (Receives(i) && now.receives_in == kNoBuffer) Post(i);
    PostNext(i);
    if (Receives(i)) Append(Action::kAwaitReceive, i, flow, now.receives_in);
    const bool sends = DestinationOf(shape_, stage_, now.task) != kNoStage;
    if (sends) TakeOutBuffer(now, flow);
    TakeSlots(now);
    Append(Action::kCompute, i, flow, now.sends_from);
    if (sends) {
      Append(Action::kSend, i, flow, now.sends_from);
      last_sender_[{flow, now.sends_from}] = i;
    }
    Release(now);
  }

  void Post(int i) {
    const Flow flow = FlowOf(TaskAt(i).task.kind);
    TaskAt(i).receives_in = in_[At(flow)].Take();
    Append(Action::kPostReceive, i, flow, TaskAt(i).receives_in);
  }

  // While task i computes, the next message of each flow may already arrive.
  void PostNext(int i) {
    for (const Flow flow : {Flow::kActivation, Flow::kGradient}) {
      int& next = next_[At(flow)];
      next = std::max(next, i + 1);
      const auto wanted = [&](int j) { return Receives(j) && FlowOf(TaskAt(j).task.kind) == flow; };
      while (next < Count() && !wanted(next)) ++next;
      if (next < Count() && TaskAt(next).receives_in == kNoBuffer) Post(next);
    }
  }

  void TakeOutBuffer(ProgramTask& now, Flow flow) {
    const int which = sent_[At(flow)]++;
    now.sends_from = which % out_buffers_;
    if (which >= out_buffers_) {
      Append(Action::kAwaitSend, last_sender_[{flow, now.sends_from}], flow, now.sends_from);
    }
  }

  void TakeSlots(ProgramTask& now) {
    if (now.task.kind == TaskKind::kEvaluate) return;
    ChunkSlots& free = slots_[static_cast<std::size_t>(now.task.chunk)];
    Held& held = held_[{now.task.chunk, now.task.micro_batch}];
    if (now.task.kind == TaskKind::kForward) {
      held = {{free.input.Take(), free.weight.Take(), 0}, now.receives_in};
    }
    if (now.task.kind == TaskKind::kBackwardInput) held.slots.backward = free.backward.Take();
    now.slots = held.slots;
  }

  // Slots and buffers that end with this task.
  void Release(const ProgramTask& now) {
    const TaskKind kind = now.task.kind;
    if (kind == TaskKind::kEvaluate) {
      if (now.receives_in != kNoBuffer) in_[At(Flow::kActivation)].Give(now.receives_in);
      return;
    }
    if (kind == TaskKind::kForward) return;
    ChunkSlots& free = slots_[static_cast<std::size_t>(now.task.chunk)];
    if (GivesInputGradient(kind)) {
      free.input.Give(now.slots.input);
      if (now.receives_in != kNoBuffer) in_[At(Flow::kGradient)].Give(now.receives_in);
    }
    if (!GivesWeightGradient(kind)) return;
    free.weight.Give(now.slots.weight);
    if (kind == TaskKind::kBackwardWeight) free.backward.Give(now.slots.backward);
    const auto held = held_.find({now.task.chunk, now.task.micro_batch});
    if (held->second.buffer != kNoBuffer) in_[At(Flow::kActivation)].Give(held->second.buffer);
    held_.erase(held);
  }

  const PipelineShape& shape_;
  int stage_, out_buffers_;
  Program program_;
  std::vector<ChunkSlots> slots_;  // [chunks]
  std::array<Numbers, kFlows> in_;
  std::array<int, kFlows> next_{}, sent_{};
  std::map<std::pair<Flow, int>, int> last_sender_;  // of an out buffer: index of the task
  std::map<Key, Held> held_;
};

std::vector<Program> Build(const PipelineShape& shape,
                           std::vector<Task> (*schedule)(const PipelineShape&, int),
                           int out_buffers) {
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) {
    programs.push_back(Builder(shape, stage, schedule(shape, stage), out_buffers).Build());
  }
  return programs;
}

// Two buffers a flow and direction let a message leave while the next one is computed. That is
// enough for every schedule here (the tests say so); a schedule for which it is not gets more.
std::vector<Program> Make(const PipelineShape& shape,
                          std::vector<Task> (*schedule)(const PipelineShape&, int)) {
  constexpr int kUsualOutBuffers = 2;
  const int most = shape.micro_batches * shape.chunks;
  for (int buffers = kUsualOutBuffers;; ++buffers) {
    std::vector<Program> programs = Build(shape, schedule, buffers);
    if (Terminates(programs, shape)) return programs;
    if (buffers >= most) {
      throw RunError("pipeline schedule " + std::string(NameOf(shape.kind)) + ": " +
                     FirstFault(programs, shape));
    }
  }
}

}  // namespace

Flow FlowOf(TaskKind kind) { return GoesForward(kind) ? Flow::kActivation : Flow::kGradient; }

Peer SenderTo(const PipelineShape& shape, int stage, const Task& task) {
  const int source = SourceOf(shape, stage, task);
  return {source % shape.stages, static_cast<int>(FlowOf(task.kind)) + 2 * task.chunk};
}

Peer ReceiverFrom(const PipelineShape& shape, int stage, const Task& task) {
  const int destination = DestinationOf(shape, stage, task);
  return {destination % shape.stages,
          static_cast<int>(FlowOf(task.kind)) + 2 * (destination / shape.stages)};
}

namespace {
thread_local KeptPrograms* kept = nullptr;
}

KeptPrograms::KeptPrograms() : outer_(kept) { kept = this; }
KeptPrograms::~KeptPrograms() { kept = outer_; }

const std::vector<Program>& KeptPrograms::Of(const PipelineShape& shape) {
  constexpr std::size_t kMost = 3;  // shapes: a whole step and two short ones
  const auto found = std::ranges::find(entries_, shape, &Entry::shape);
  if (found != entries_.end()) return found->programs;
  if (entries_.size() == kMost) entries_.erase(entries_.begin());
  return entries_.emplace_back(Entry{shape, Make(shape, MakeSchedule)}).programs;
}

Program MakeProgram(const PipelineShape& shape, int stage) {
  if (kept != nullptr) return kept->Of(shape)[static_cast<std::size_t>(stage)];
  return std::move(Make(shape, MakeSchedule)[static_cast<std::size_t>(stage)]);
}

Program MakeEvaluationProgram(const PipelineShape& shape, int stage) {
  return std::move(Make(shape, MakeEvaluation)[static_cast<std::size_t>(stage)]);
}

// Runs all stages' programs without MPI: a send is complete only once its receive is posted, and
// every use of a buffer is checked.

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
