// The executor on pipelines of 2, 3, 4 and 8 ranks: every task gets its own input, whatever the
// rows of its micro-batch, and what it must keep is kept.
#include "trireme/parallel/pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::parallel {
namespace {

using enum TaskKind;
using kernels::Matrix;

constexpr std::int64_t kMostRows = 5;

// Every element of a message tells what it is: who made it, for which micro-batch, where it stands.
double Element(TaskKind kind, int virtual_stage, int micro_batch, std::int64_t at) {
  const double sign = kind == kForward ? 1 : kind == kEvaluate ? 3 : -1;
  return sign * (1 + virtual_stage + 100 * micro_batch) + static_cast<double>(at) * 0x1p-30;
}

class TellTale : public StageWork {
 public:
  TellTale(const PipelineShape& shape, int stage, std::int64_t columns, Pipeline& pipeline)
      : shape_(shape), stage_(stage), columns_(columns), pipeline_(pipeline) {}

  std::int64_t Rows(int micro_batch) const override { return (3 * micro_batch + 2) % 6; }

  void Run(const ProgramTask& now, const Matrix& in, const Matrix& out) override {
    const Task& task = now.task;
    SCOPED_TRACE("stage " + std::to_string(stage_) + ", micro-batch " +
                 std::to_string(task.micro_batch) + ", chunk " + std::to_string(task.chunk));
    tasks_.push_back(task);
    const int here = task.chunk * shape_.stages + stage_;
    const bool first = here == 0, last = here == shape_.VirtualStages() - 1;
    const int m = task.micro_batch;
    switch (task.kind) {
      case kForward:
      case kEvaluate:
        Check(in, first, task.kind, here - 1, m);
        if (task.kind == kForward) kept_[{task.chunk, m}] = in;
        Fill(out, last, task.kind, here, m);
        break;
      case kBackward:
      case kBackwardInput:
        CheckKept(task, first, here);
        Check(in, last, kBackward, here + 1, m);
        Fill(out, first, kBackward, here, m);
        break;
      case kBackwardWeight:
        EXPECT_TRUE(in.Empty() && out.Empty());
        break;
    }
    // Stages drift apart, in another way every time.
    usleep(static_cast<unsigned>((here * 7 + m * 13 + static_cast<int>(task.kind) * 5) % 4) * 50);
    pipeline_.Progress();
    if (task.kind == kBackward || task.kind == kBackwardWeight) CheckKept(task, first, here);
  }

  std::vector<Task> tasks_;
  std::int64_t sent_ = 0;  // elements

 private:
  void Check(const Matrix& in, bool none, TaskKind kind, int maker, int m) const {
    ASSERT_EQ(in.Empty(), none);
    if (none) return;
    ASSERT_EQ(in.rows, Rows(m));
    ASSERT_EQ(in.columns, columns_);
    ASSERT_EQ(in.stride, columns_);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < in.Size(); ++i) {
      wrong += in.As<double>()[i] != Element(kind, maker, m, i);
    }
    EXPECT_EQ(wrong, 0);
  }
  void CheckKept(const Task& task, bool first, int here) const {
    Check(kept_.at({task.chunk, task.micro_batch}), first, kForward, here - 1, task.micro_batch);
  }
  void Fill(const Matrix& out, bool none, TaskKind kind, int here, int m) {
    ASSERT_EQ(out.Empty(), none);
    if (none) return;
    ASSERT_EQ(out.rows, Rows(m));
    ASSERT_EQ(out.columns, columns_);
    for (std::int64_t i = 0; i < out.Size(); ++i) {
      out.As<double>()[i] = Element(kind, here, m, i);
    }
    sent_ += out.Size();
  }

  PipelineShape shape_;
  int stage_;
  std::int64_t columns_;
  Pipeline& pipeline_;
  std::map<std::pair<int, int>, Matrix> kept_;  // chunk, micro-batch: the forward pass's input
};

class PipelineTest : public testing::Test {
 protected:
  // The stages of one group, and what it sent according to the ledger.
  void TrainAndEvaluate(const comm::Communicator& group, ScheduleKind kind, int chunks,
                        std::int64_t columns, std::vector<int> counts) {
    const int stages = group.Size();
    const PipelineShape most{kind, stages, chunks, 2 * stages + 3};
    const comm::Collectives transfers(group, comm::Group::kPipeline, ledger_);
    Pipeline pipeline(transfers, most, Dtype::kFloat64, kMostRows, columns);
    for (const int count : counts) {
      SCOPED_TRACE(std::string(NameOf(kind)) + ", " + std::to_string(stages) + " stages, " +
                   std::to_string(count) + " micro-batches");
      PipelineShape shape = most;
      shape.micro_batches = pipeline.Padded(count);
      ledger_.Clear();
      TellTale train(shape, group.Rank(), columns, pipeline);
      pipeline.Run(pipeline.TrainingProgram(shape.micro_batches), train);
      EXPECT_EQ(train.tasks_, MakeSchedule(shape, group.Rank()));
      EXPECT_EQ(Sent(), train.sent_ * 8);
      EXPECT_GE(pipeline.SecondsWaitedForInput(), 0);
      EXPECT_GE(pipeline.SecondsWaitedForOutput(), 0);

      shape.micro_batches = count;
      TellTale evaluate(shape, group.Rank(), columns, pipeline);
      pipeline.Run(pipeline.EvaluationProgram(count), evaluate);
      EXPECT_EQ(evaluate.tasks_, MakeEvaluation(shape));
    }
  }

  std::int64_t Sent() const {
    return ledger_.At(comm::Group::kPipeline, comm::Transfer::kSend).payload;
  }
  // All ranks, cut into groups of `size` (the last may be smaller).
  comm::Communicator Groups(int size) const {
    return world_.Split(world_.Rank() / size, world_.Rank());
  }

  comm::Ledger ledger_;
  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
};

TEST_F(PipelineTest, EveryTaskGetsItsInput) {
  for (const int stages : {2, 3, 4, 8}) {
    const comm::Communicator group = Groups(stages);
    const int size = group.Size();
    const std::vector<int> counts = {1, size, 2 * size + 3, 2};
    TrainAndEvaluate(group, ScheduleKind::kGpipe, 1, 3, counts);
    TrainAndEvaluate(group, ScheduleKind::kOneForwardOneBackward, 1, 3, counts);
    TrainAndEvaluate(group, ScheduleKind::kZeroBubble, 1, 3, counts);
    for (const int chunks : {2, 3}) {
      TrainAndEvaluate(group, ScheduleKind::kInterleaved, chunks, 3, counts);
    }
  }
}

TEST_F(PipelineTest, LargeMessagesWaitForTheirReceiver) {
  // Far beyond any eager limit: a send is complete only once its receive is posted.
  constexpr std::int64_t kColumns = 20000;
  for (const int stages : {2, 4, 8}) {
    const comm::Communicator group = Groups(stages);
    for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward,
                                    ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}) {
      const int chunks = kind == ScheduleKind::kInterleaved ? 2 : 1;
      TrainAndEvaluate(group, kind, chunks, kColumns, {2 * stages});
    }
  }
}

TEST_F(PipelineTest, WaitsAreMeasured) {
  // The last of two stages sleeps; the first waits for its gradient.
  const comm::Communicator group = Groups(2);
  class Sleeper : public StageWork {
   public:
    explicit Sleeper(bool sleeps) : sleeps_(sleeps) {}
    std::int64_t Rows(int) const override { return 1; }
    void Run(const ProgramTask&, const Matrix&, const Matrix&) override {
      if (sleeps_) usleep(50000);
    }

   private:
    bool sleeps_;
  };
  const comm::Collectives transfers(group, comm::Group::kPipeline, ledger_);
  Pipeline pipeline(transfers, {ScheduleKind::kOneForwardOneBackward, 2, 1, 2}, Dtype::kFloat32, 1,
                    1);
  Sleeper work(group.Rank() == 1);
  pipeline.Run(pipeline.TrainingProgram(2), work);
  if (group.Rank() == 0) {
    EXPECT_GT(pipeline.SecondsWaitedForInput(), 0.1);  // of four naps, 0.2 s
  }
}

TEST_F(PipelineTest, OneStageHasNoBuffers) {
  for (const ScheduleKind kind :
       {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZeroBubble}) {
    const PipelineShape shape{kind, 1, 1, 3};
    Pipeline pipeline(comm::Collectives(), shape, Dtype::kFloat64, kMostRows, 3);
    EXPECT_EQ(pipeline.Bytes(), 0);
    TellTale work(shape, 0, 3, pipeline);
    pipeline.Run(pipeline.TrainingProgram(3), work);
    EXPECT_EQ(work.tasks_.size(), 6u);
    pipeline.Run(pipeline.EvaluationProgram(3), work);
    EXPECT_EQ(work.tasks_.size(), 9u);
  }
}

TEST_F(PipelineTest, BuffersArePlanned) {
  const comm::Communicator group = Groups(4);
  const comm::Collectives transfers(group, comm::Group::kPipeline, ledger_);
  // 1f1b, 8 micro-batches: in flight and one arriving, two leaving; a gradient more of each.
  Pipeline pipeline(transfers, {ScheduleKind::kOneForwardOneBackward, 4, 1, 8}, Dtype::kFloat32, 4,
                    32);
  const int stage = group.Rank();
  const int in_activations = stage == 0 ? 0 : (4 - stage) + 1, out_activations = stage == 3 ? 0 : 2;
  const int in_gradients = stage == 3 ? 0 : 2, out_gradients = stage == 0 ? 0 : 2;
  EXPECT_EQ(pipeline.Bytes(),
            (in_activations + out_activations + in_gradients + out_gradients) * 4 * 32 * 4);
  EXPECT_EQ(pipeline.Padded(7), 7);
  Pipeline interleaved(transfers, {ScheduleKind::kInterleaved, 4, 2, 5}, Dtype::kFloat32, 4, 32);
  EXPECT_EQ(interleaved.Padded(5), 8);
  EXPECT_EQ(interleaved.Shape().micro_batches, 8);
}

TEST_F(PipelineTest, RefusesWhatWasNotPlanned) {
  const auto message = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message([] {
                Pipeline({}, {ScheduleKind::kGpipe, 2, 1, 1}, Dtype::kFloat32, 1, 1);
              }),
              testing::HasSubstr("pipeline of 2 stages with 1 chunks on 1 ranks"));
  const PipelineShape shape{ScheduleKind::kGpipe, 1, 1, 2};
  Pipeline pipeline({}, shape, Dtype::kFloat32, 1, 1);
  TellTale work(shape, 0, 1, pipeline);
  EXPECT_THAT(message([&] { pipeline.Run(pipeline.TrainingProgram(3), work); }),
              testing::HasSubstr("a pipeline step of 3 micro-batches, planned for 2"));
}

}  // namespace
}  // namespace trireme::parallel
