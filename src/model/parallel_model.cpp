#include "trireme/model/parallel_model.hpp"

#include <algorithm>
#include <utility>

namespace trireme::model {

namespace {

// This stage's blocks, chunk by chunk.
std::vector<Part> ChunksOf(const Options& options, std::int64_t length,
                           const parallel::PipelineShape& shape, int stage) {
  const PartCosts costs = CostsPerToken(options, length);
  const std::vector<Part> parts = parallel::BalanceStages(options.layers, shape.VirtualStages(),
                                                          costs.block, costs.embedding, costs.head);
  std::vector<Part> chunks;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    chunks.push_back(parts.at(static_cast<std::size_t>(chunk * shape.stages + stage)));
  }
  return chunks;
}

}  // namespace

ParallelModel::ParallelModel(const comm::ProcessGrid& grid, ModelSetup setup,
                             const parallel::PipelineShape& pipeline, Defect defect)
    : grid_(grid),
      tensor_(grid.Over(comm::Group::kTensor), grid.SequenceParallel()),
      key_value_(grid.KeyValueGroup(setup.options.kv_heads)) {
  grid.World().Together([&] {
    parallel::PipelineShape shape = pipeline;
    shape.stages = grid.Shape().pipeline;
    setup.tensor = &tensor_;
    setup.stage = grid.Coordinates().pipeline;
    setup.stages = shape.stages;
    setup.chunks = ChunksOf(setup.options, setup.length, shape, setup.stage);
    const std::int64_t rows = tensor_.MostRows(setup.micro_batch * setup.length);
    pipeline_ = std::make_unique<parallel::Pipeline>(grid.Over(comm::Group::kPipeline), shape,
                                                     setup.dtype, rows, setup.options.dim);
    setup.slots = pipeline_->TrainingProgram(pipeline_->Shape().micro_batches).slots;
    setup.progress = [this] { pipeline_->Progress(); };
    part_ = std::make_unique<Model>(setup);
    shared_ = std::make_unique<parallel::SharedGradients>(
        part_->Parameters(),
        std::map<tensor::GradientSum, comm::Collectives>{
            {tensor::GradientSum::kTensor, grid.Over(comm::Group::kTensor)},
            {tensor::GradientSum::kKeyValue,
             comm::Collectives(key_value_, comm::Group::kKeyValue, grid.Traffic())},
            {tensor::GradientSum::kTied, grid.Over(comm::Group::kEmbedding)}},
        defect);
  });
}

double ParallelModel::LossOnce() const {
  return grid_.LastStage() && tensor_.Rank() == 0 ? part_->SummedLoss() : 0;
}

double ParallelModel::Train(std::span<const data::MicroBatch> batches,
                            const GradientsReady& ready) {
  if (batches.empty()) return 0;  // all ranks of the replica see this
  part_->Begin(batches, ready, nullptr);
  pipeline_->Train(static_cast<int>(batches.size()), *part_);
  return LossOnce();
}

double ParallelModel::Loss(std::span<const data::MicroBatch> batches, double* losses) {
  if (batches.empty()) return 0;
  part_->Begin(batches, {}, losses);
  pipeline_->Evaluate(static_cast<int>(batches.size()), *part_);
  return LossOnce();
}

std::vector<double> ParallelModel::Logits(const data::MicroBatch& batch, std::int64_t position) {
  part_->BeginLogits({&batch, 1}, position);
  pipeline_->Evaluate(1, *part_);
  const std::int64_t vocabulary = Setup().options.vocabulary;
  std::vector<double> logits(static_cast<std::size_t>(vocabulary));
  if (grid_.LastStage()) {
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < tensor_.Size(); ++rank) {
      counts.push_back(PartOf(vocabulary, rank, tensor_.Size()).Size());
    }
    double* own = logits.data() + part_->VocabularySlice().begin;
    const Matrix& slice = part_->LogitsSlice();
    DispatchDtype(slice.dtype,
                  [&](auto zero) { std::copy_n(slice.As<decltype(zero)>(), slice.columns, own); });
    tensor_.Transfers().AllGatherInPlace(Dtype::kFloat64, logits.data(), counts);
  }
  grid_.Over(comm::Group::kPipeline)
      .Broadcast(Dtype::kFloat64, logits.data(), vocabulary, grid_.Shape().pipeline - 1);
  return logits;
}

void ParallelModel::SumSharedGradients() { shared_->Sum(); }

std::vector<tensor::StateBlock> ParallelModel::Blocks() {
  tensor::Registry& parameters = part_->Parameters();
  return parameters.Blocks(parameters.Values(), parameters.Type(), "", grid_.Data().Rank(),
                           grid_.Data().Size());
}

std::vector<std::pair<std::string, std::int64_t>> ParallelModel::MemoryPlan() const {
  auto plan = part_->MemoryPlan();
  const std::int64_t buffers = pipeline_->Bytes() + shared_->Bytes();
  if (buffers > 0) plan.emplace_back("exchange buffers", buffers);
  return plan;
}

}  // namespace trireme::model
