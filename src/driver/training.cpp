#include "trireme/driver/training.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::driver {

namespace {

data::Sampler MakeSampler(std::int64_t tokens, const TrainingSetup& setup) {
  const std::int64_t length = setup.model.length;
  return data::Sampler({tokens, length, setup.stride == 0 ? length : setup.stride, setup.batch,
                        setup.model.seed, true});
}

// Micro-batches enough for a pipeline's bubble to stay small: (P - 1) / (M + P - 1) under a fifth.
constexpr std::int64_t kMicroBatchesAStage = 4;

// The micro-batch for a data rank's share of the batch: the deck's, no larger than the share; an
// automatic one, besides, such that a pipeline has enough of them.
std::int64_t ChooseMicroBatch(const input::Deck& deck, std::int64_t size, std::int64_t share,
                              const parallel::PipelineShape& pipeline) {
  size = std::min(size, share);
  if (pipeline.stages == 1 || deck.Integer("data.micro_batch") != 0) return size;
  size = std::clamp<std::int64_t>(share / (kMicroBatchesAStage * pipeline.stages), 1, size);
  if (pipeline.kind != parallel::ScheduleKind::kInterleaved) return size;
  const auto fits = [&](std::int64_t candidate) {
    return CeilDivide(share, candidate) % pipeline.stages == 0;
  };
  for (std::int64_t smaller = size; smaller >= 1; --smaller) {
    if (fits(smaller)) return smaller;
  }
  for (std::int64_t larger = size + 1; larger <= share; ++larger) {
    if (fits(larger)) return larger;
  }
  return size;  // none fits: CheckMicroBatches says so
}

}  // namespace

std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch) {
  return CeilDivide(CeilDivide(batch, data_ranks), micro_batch);
}

TrainingSetup ReadTraining(Job& job, const comm::GridShape& grid, std::int64_t vocabulary,
                           std::int64_t tokens) {
  constexpr double kMib = 1024 * 1024;
  TrainingSetup setup;
  setup.pipeline = parallel::ReadPipeline(job.deck, grid.pipeline);
  const DataShape shape = ReadDataShape(job.deck);
  setup.model = ReadModelSetup(job, vocabulary, shape);
  setup.stride = shape.stride;
  setup.batch = shape.batch;
  const data::Sampler sampler = MakeSampler(tokens, setup);
  const std::int64_t share = CeilDivide(std::min(shape.batch, sampler.Windows()), grid.data);
  std::int64_t& micro_batch = setup.model.micro_batch;
  micro_batch = ChooseMicroBatch(job.deck, micro_batch, share, setup.pipeline);
  model::CheckLayout(job.deck, setup.model.options, grid, setup.pipeline);
  model::CheckMicroBatches(job.deck, setup.pipeline, grid.data, share, micro_batch);
  setup.optimizer = optimizer::ReadOptimizer(job.deck);
  setup.model.label_smoothing = setup.optimizer.label_smoothing;
  setup.schedule =
      optimizer::ReadSchedule(job.deck, setup.optimizer.learning_rate, sampler.StepsPerEpoch());
  setup.bucket_bytes = static_cast<std::int64_t>(job.deck.Real("grid.bucket_mib") * kMib);
  setup.defect = job.defect;
  return setup;
}

std::string DescribeLayout(const comm::ProcessGrid& grid, const TrainingSetup& setup,
                           std::int64_t micro_batches) {
  std::string text = comm::Describe(grid.Shape());
  if (grid.SequenceParallel()) text += ", sequence parallel";
  const parallel::PipelineShape& pipeline = setup.pipeline;
  if (grid.Shape().pipeline > 1) {
    text += fmt::format("; {}", parallel::NameOf(pipeline.kind));
    if (pipeline.chunks > 1) text += fmt::format(" of {} chunks", pipeline.chunks);
    text += fmt::format(", {} micro-batch{}", monitor::WithThousands(micro_batches),
                        micro_batches == 1 ? "" : "es");
  }
  if (setup.model.options.recompute != model::Recompute::kNone) {
    text += fmt::format("; recompute {}", model::NameOf(setup.model.options.recompute));
  }
  return text;
}

Training::Training(const comm::ProcessGrid& grid, const data::TokenFile& tokens,
                   const TrainingSetup& setup)
    : grid_(grid),
      sampler_(MakeSampler(tokens.Size(data::Split::kTrain), setup)),
      schedule_(setup.schedule) {
  const int data_ranks = grid.Shape().data;
  model::ModelSetup model = setup.model;
  const std::int64_t batch = std::min(setup.batch, sampler_.Windows());  // the most of any step
  model.micro_batch = std::min(model.micro_batch, CeilDivide(batch, data_ranks));
  parallel::PipelineShape pipeline = setup.pipeline;
  pipeline.stages = grid.Shape().pipeline;
  pipeline.micro_batches = static_cast<int>(MicroBatches(batch, data_ranks, model.micro_batch));
  model_ = std::make_unique<model::ParallelModel>(grid, model, pipeline, setup.defect);
  grid.World().Together([&] {
    optimizer_ =
        std::make_unique<optimizer::Optimizer>(setup.optimizer, model_->Parameters(), model.stream);
    buckets_ = std::make_unique<parallel::GradientBuckets>(
        grid.Over(comm::Group::kData), model_->Parameters(), model.stream, setup.bucket_bytes);
    step_ = std::make_unique<TrainingStep>(tokens, sampler_, *model_, *optimizer_, schedule_,
                                           *buckets_, setup.defect);
  });
}

StepResult Training::Run(std::int64_t step, const Requests& mine) { return step_->Run(step, mine); }

std::vector<tensor::StateBlock> Training::ModelBlocks() { return model_->Blocks(); }

std::vector<tensor::StateBlock> Training::OptimizerBlocks() const {
  return optimizer_->Blocks(grid_.Data().Rank(), grid_.Data().Size());
}

void Training::LoadWeights(const std::string& checkpoint) {
  checkpoint::ReadTensors(grid_.World(), checkpoint, "model", ModelBlocks());
}

void Training::Load(const std::string& checkpoint) {
  LoadWeights(checkpoint);
  checkpoint::ReadTensors(grid_.World(), checkpoint, "optimizer", OptimizerBlocks());
}

}  // namespace trireme::driver
