// MakeProgram: assigns slots for activations and buffers for messages, and places the start and
// the wait of each transfer.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

namespace {

// Two send buffers per flow let a message leave while the next one is computed. They suffice for
// every schedule here: tests run the programs of all stages against each other, with sends that
// complete only when their receive is posted.
constexpr int kOutBuffers = 2;

constexpr int kFlows = 2;
constexpr std::size_t At(Flow flow) { return static_cast<std::size_t>(flow); }

// Gives out numbers from 0, always the lowest free one.
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
  Builder(const PipelineShape& shape, int stage, const std::vector<Task>& tasks)
      : shape_(shape), stage_(stage), slots_(static_cast<std::size_t>(shape.chunks)) {
    for (const Task& task : tasks) program_.tasks.emplace_back().task = task;
  }

  Program Build() {
    MarkFinal();
    for (int i = 0; i < Count(); ++i) Add(i);
    for (const Flow flow : {Flow::kActivation, Flow::kGradient}) {
      const int used = std::min(sent_[At(flow)], kOutBuffers);
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
  struct Held {  // what a micro-batch holds in a chunk from its forward pass on
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

  // Posts the next receive of each flow, so that messages can arrive while task i computes.
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
    now.sends_from = which % kOutBuffers;
    if (which >= kOutBuffers) {
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

  // Frees the slots and receive buffers whose lifetime ends with this task.
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
  int stage_;
  Program program_;
  std::vector<ChunkSlots> slots_;  // [chunks]
  std::array<Numbers, kFlows> in_;
  std::array<int, kFlows> next_{}, sent_{};
  std::map<std::pair<Flow, int>, int> last_sender_;  // by send buffer: index of its last task
  std::map<Key, Held> held_;
};

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

Program MakeProgram(const PipelineShape& shape, int stage) {
  return Builder(shape, stage, MakeSchedule(shape, stage)).Build();
}

Program MakeEvaluationProgram(const PipelineShape& shape, int stage) {
  return Builder(shape, stage, MakeEvaluation(shape)).Build();
}

}  // namespace trireme::parallel
