// Executes a stage's program: starts and awaits its transfers, and has StageWork run its tasks.
#include "trireme/parallel/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::parallel {

namespace {

// Bytes, as in the arena: no two buffers of a lane share a cache line.
constexpr std::int64_t kPipelineAlignment = 128;

const Program& Kept(std::map<int, Program>& programs, PipelineShape shape, int micro_batches,
                    int stage, Program (*make)(const PipelineShape&, int)) {
  const auto found = programs.find(micro_batches);
  if (found != programs.end()) return found->second;
  shape.micro_batches = micro_batches;
  return programs.emplace(micro_batches, make(shape, stage)).first->second;
}

// [TaskKind]
constexpr std::array<device::Phase, kTaskKinds> kTaskPhases = {
    device::Phase::kForward, device::Phase::kBackward, device::Phase::kInputGradient,
    device::Phase::kWeightGradient, device::Phase::kEvaluate};

// The counts of lanes, in the order of Pipeline::lanes_.
constexpr std::array kLanes = {&Buffers::activations_in, &Buffers::activations_out,
                               &Buffers::gradients_in, &Buffers::gradients_out};

}  // namespace

Pipeline::Pipeline(const comm::Collectives& transfers, const PipelineShape& shape, Dtype dtype,
                   std::int64_t rows, std::int64_t columns, const device::Stream& stream)
    : transfers_(transfers),
      shape_(shape),
      dtype_(dtype),
      rows_(rows),
      columns_(columns),
      stream_(stream),
      operations_(static_cast<std::size_t>(shape.chunks)) {
  if (transfers.Size() != shape.stages || (shape.stages == 1 && shape.chunks > 1)) {
    throw RunError(fmt::format("pipeline of {} stages with {} chunks on {} ranks: a bug in Trireme",
                               shape.stages, shape.chunks, transfers.Size()));
  }
  shape_.micro_batches = Padded(std::max(shape.micro_batches, 1));
  // With this many micro-batches every stage is busy, and an evaluation needs its most buffers.
  const int busy = std::max(shape_.micro_batches, 2 * shape_.stages);
  const Buffers& training = TrainingProgram(shape_.micro_batches).buffers;
  const Buffers& evaluation =
      Kept(evaluation_, shape_, busy, Stage(), MakeEvaluationProgram).buffers;
  for (std::size_t i = 0; i < kLanes.size(); ++i) {
    const int count = std::max(training.*kLanes[i], evaluation.*kLanes[i]);
    lanes_[i].requests.resize(static_cast<std::size_t>(count));
    if (count == 0) continue;
    lanes_[i].memory = device::AllocateZeroed(count * BufferBytes(), stream_.Where());
  }
}

std::int64_t Pipeline::Bytes() const {
  std::int64_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += device::BytesOf(lane.memory);
  return bytes;
}

int Pipeline::Padded(int count) const { return PaddedMicroBatches(shape_, count); }

const Program& Pipeline::EvaluationProgram(int micro_batches) {
  return Kept(evaluation_, shape_, micro_batches, Stage(), MakeEvaluationProgram);
}

const Program& Pipeline::TrainingProgram(int micro_batches) {
  if (micro_batches > shape_.micro_batches) {  // every stage throws alike: none waits for another
    throw RunError(
        fmt::format("a pipeline step of {} micro-batches, planned for {}: a bug in "
                    "Trireme",
                    micro_batches, shape_.micro_batches));
  }
  return Kept(training_, shape_, micro_batches, Stage(), MakeProgram);
}

void Pipeline::Progress() {
  for (Lane& lane : lanes_) {
    for (comm::Request& request : lane.requests) {
      if (!request.Complete()) request.Test();
    }
  }
}

void Pipeline::Run(const Program& program, StageWork& work) {
  for (std::size_t i = 0; i < kLanes.size(); ++i) {
    if (std::ssize(lanes_[i].requests) >= program.buffers.*kLanes[i]) continue;
    throw RunError("a pipeline step with too few buffers: a bug in Trireme");
  }
  waited_input_ = waited_output_ = 0;
  seconds_.assign(static_cast<std::size_t>(shape_.chunks), {});
  for (const Operation& operation : program.operations) Execute(program, operation, work);
}

void Pipeline::Execute(const Program& program, const Operation& operation, StageWork& work) {
  const ProgramTask& task = program.tasks[static_cast<std::size_t>(operation.task)];
  const auto first = 2 * static_cast<std::size_t>(operation.flow);
  Lane &in = lanes_[first], &out = lanes_[first + 1];
  const auto request = [&](Lane& lane) -> comm::Request& {
    return lane.requests[static_cast<std::size_t>(operation.buffer)];
  };
  const auto matrix = [&](const Lane& lane, int buffer) {
    return buffer == kNoBuffer ? kernels::Matrix{}
                               : BufferOf(lane, buffer, work.Rows(task.task.micro_batch));
  };
  const auto wait = [](comm::Request& pending) {
    const double start = Seconds();
    pending.Wait();
    return Seconds() - start;
  };
  const auto receive = [&] {
    const Peer from = SenderTo(shape_, Stage(), task.task);
    const kernels::Matrix to = matrix(in, operation.buffer);
    request(in) = transfers_.StartReceive(dtype_, to.data, to.Size(), from.stage, from.tag);
  };
  switch (operation.action) {
    case Action::kPostReceive:
      if (!late_) receive();
      break;
    case Action::kAwaitReceive:
      if (late_) receive();
      waited_input_ += wait(request(in));
      break;
    case Action::kAwaitSend:
      waited_output_ += wait(request(out));
      break;
    case Action::kCompute: {
      const double start = Seconds(), counted = stream_.Planned() ? stream_.planned->flops : 0;
      Compute(task, matrix(in, task.receives_in), matrix(out, task.sends_from), work);
      seconds_[static_cast<std::size_t>(task.task.chunk)]
              [static_cast<std::size_t>(task.task.kind)] += Seconds() - start;
      if (stream_.Planned()) {
        operations_[static_cast<std::size_t>(task.task.chunk)]
                   [static_cast<std::size_t>(task.task.kind)] += stream_.planned->flops - counted;
      }
      break;
    }
    case Action::kSend: {
      const Peer to = ReceiverFrom(shape_, Stage(), task.task);
      const kernels::Matrix from = matrix(out, operation.buffer);
      request(out) = transfers_.StartSend(dtype_, from.data, from.Size(), to.stage, to.tag);
      break;
    }
  }
}

void Pipeline::Compute(const ProgramTask& task, const kernels::Matrix& in,
                       const kernels::Matrix& out, StageWork& work) {
  device::WorkLog* const log = stream_.Planned() ? stream_.planned->log : nullptr;
  if (log != nullptr) {
    log->BeginTask(static_cast<int>(task.task.kind), task.task.micro_batch, task.task.chunk);
    work.Run(task, in, out);
    return log->EndTask();
  }
  device::Recorder* const recorder = transfers_.Trace();
  if (recorder == nullptr) return work.Run(task, in, out);
  recorder->SetTask(task.task.micro_batch, task.task.chunk);
  {
    const device::Scope scope(recorder,
                              {.name = device::SliceName::kTask,
                               .phase = kTaskPhases.at(static_cast<std::size_t>(task.task.kind)),
                               .queues = true});
    work.Run(task, in, out);
  }
  recorder->SetTask(-1, -1);
}

std::int64_t Pipeline::BufferBytes() const {
  // At least one cache line: even a matrix without rows needs an address, because Empty() means
  // that there is no message.
  return RoundUp(std::max(BytesOf(dtype_, rows_ * columns_), std::int64_t{1}), kPipelineAlignment);
}

kernels::Matrix Pipeline::BufferOf(const Lane& lane, int buffer, std::int64_t rows) const {
  if (rows > rows_) {
    throw RunError(
        fmt::format("a micro-batch of {} rows in a pipeline planned for {}: a bug in "
                    "Trireme",
                    rows, rows_));
  }
  void* data = static_cast<char*>(lane.memory.get()) + buffer * BufferBytes();
  return {data, dtype_, rows, columns_, columns_};
}

}  // namespace trireme::parallel
