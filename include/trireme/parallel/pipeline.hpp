// Runs a stage's program: transfers through MPI, computation through an interface.
#ifndef TRIREME_PARALLEL_PIPELINE_HPP_
#define TRIREME_PARALLEL_PIPELINE_HPP_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/parallel/pipeline_program.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::parallel {

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

  // Collective over the pipeline group: runs a step of Padded(...) micro-batches.
  void Train(int micro_batches, StageWork& work);
  void Evaluate(int micro_batches, StageWork& work);
  // late: posts a receive only when its message is needed. For steps in which a GPU may stop to
  // load a kernel, which must not wait for a message still held up elsewhere.
  void ReceiveLate(bool late) { late_ = late; }
  // Gives outstanding transfers a chance to progress; cheap. For StageWork, between its kernels.
  void Progress();

  const Program& TrainingProgram(int micro_batches);    // made once, kept
  const Program& EvaluationProgram(int micro_batches);  // likewise
  const PipelineShape& Shape() const { return shape_; }
  int Stage() const { return transfers_.Rank(); }
  // Seconds of the last Train or Evaluate spent waiting for another stage's output, and for buffers
  // still being sent.
  double SecondsWaitedForInput() const { return waited_input_; }
  double SecondsWaitedForOutput() const { return waited_output_; }
  // Seconds of the tasks of this kind and chunk in the last Train or Evaluate, all micro-batches.
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
  void Run(const Program& program, StageWork& work);
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

#endif  // TRIREME_PARALLEL_PIPELINE_HPP_
