#include "trireme/driver/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::driver {

namespace {

data::Sampler MakeSampler(const data::TokenFile& tokens, const TrainingSetup& setup) {
  const std::int64_t length = setup.model.length;
  return data::Sampler({tokens.Size(data::Split::kTrain), length,
                        setup.stride == 0 ? length : setup.stride, setup.batch, setup.model.seed,
                        true});
}

}  // namespace

std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch) {
  return CeilDivide(CeilDivide(batch, data_ranks), micro_batch);
}

TrainingSetup ReadTraining(Job& job, const comm::GridShape& grid, const data::TokenFile& tokens) {
  constexpr double kMib = 1024 * 1024;
  TrainingSetup setup;
  setup.pipeline = parallel::ReadPipeline(job.deck, grid.pipeline);
  const std::int64_t length = job.deck.Integer("data.sequence_length");
  const std::int64_t stride = job.deck.Integer("data.stride");
  const data::Sampler sampler(
      {tokens.Size(data::Split::kTrain), length, stride == 0 ? length : stride, 1, job.seed, true});
  const std::int64_t windows = sampler.Windows();
  const DataShape shape = ReadDataShape(job.deck, grid, setup.pipeline, windows);
  setup.model = ReadModelSetup(job, tokens, shape);
  setup.stride = shape.stride;
  setup.batch = shape.batch;
  model::CheckLayout(job.deck, setup.model.options, grid, setup.pipeline);
  model::CheckMicroBatches(job.deck, setup.pipeline, grid.data,
                           CeilDivide(std::min(shape.batch, windows), grid.data),
                           shape.micro_batch);
  setup.optimizer = optimizer::ReadOptimizer(job.deck);
  setup.model.label_smoothing = setup.optimizer.label_smoothing;
  setup.schedule = optimizer::ReadSchedule(job.deck, setup.optimizer.learning_rate,
                                           MakeSampler(tokens, setup).StepsPerEpoch());
  setup.bucket_bytes = static_cast<std::int64_t>(job.deck.Real("grid.bucket_mib") * kMib);
  setup.defect = job.defect;
  return setup;
}

std::string DescribeLayout(const comm::ProcessGrid& grid, const TrainingSetup& setup,
                           std::int64_t micro_batches) {
  constexpr std::array kRecomputes = {"none", "selective", "full"};
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
    text += fmt::format("; recompute {}",
                        kRecomputes.at(static_cast<std::size_t>(setup.model.options.recompute)));
  }
  return text;
}

Training::Training(const comm::ProcessGrid& grid, const data::TokenFile& tokens,
                   const TrainingSetup& setup)
    : grid_(grid), sampler_(MakeSampler(tokens, setup)), schedule_(setup.schedule) {
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
