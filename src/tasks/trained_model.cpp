// TrainedModel: plan, tokens, and the weights of a checkpoint.
#include "trireme/tasks/trained_model.hpp"

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::tasks {

namespace {

// Whether every node has the memory that its ranks plan.
bool Fits(const app::Job& job, const train::EvaluationPlan& plan) {
  device::MemoryTerms memory;
  job.World().Together([&] { memory = train::PlanMemory(plan, job.World().Rank()); });
  return app::HasMemory(job, memory);
}

void Pack(const app::Job& job, PackWeights packing, train::EvaluationPlan& plan) {
  if (packing == PackWeights::kNo) return;
  if (!train::CanPackWeights(plan)) {
    if (packing == PackWeights::kAuto) return;
    job.World().Together([&] {
      throw job.deck.Complain("generate.pack_weights", "there is none here",
                              "It serves 2 to 32 texts at once (generate.file, generate.batch) on "
                              "CPUs in fp32 or fp64, without run.canonical, grid.context and "
                              "grid.sharding = parameters: leave it out.");
    });
  }
  plan.model.pack_weights = true;
  if (packing == PackWeights::kAuto) plan.model.pack_weights = Fits(job, plan);
}

train::EvaluationPlan MakePlan(const app::Job& job, std::int64_t micro_batch,
                               std::int64_t cache_slots, PackWeights packing) {
  job.World().Together([&] {
    if (!job.start.candidates.empty()) return;
    throw job.deck.Complain("job.task", "a trained model is needed",
                            "Name a run folder or a checkpoint with -r.");
  });
  const train::TokenFacts facts = app::InspectTokens(job);
  train::EvaluationPlan plan;
  job.World().Together([&] {
    plan = train::MakeEvaluationPlan(app::RequestOf(job, facts), micro_batch, cache_slots);
  });
  Pack(job, packing, plan);
  return plan;
}

}  // namespace

TrainedModel::TrainedModel(const app::Job& job, std::int64_t micro_batch, std::int64_t cache_slots,
                           PackWeights packing)
    : plan_(MakePlan(job, micro_batch, cache_slots, packing)),
      grid_(job.World(), plan_.grid, plan_.sharing) {
  device::MemoryTerms memory;
  job.World().Together([&] { memory = train::PlanMemory(plan_, job.World().Rank()); });
  app::CheckMemory(job, memory, grid_);
  job.World().Together([&] { train::CheckTransfers(plan_, job.World().Rank()); });
  app::UseGpu(job, memory, grid_);
  if (plan_.tokens.pairs) {
    pairs_.emplace(app::OpenPairs(job));
  } else {
    tokens_.emplace(app::OpenTokens(job, grid_));
  }
  job.World().Together([&] {
    if (job.World().IsRoot()) app::CheckVocabulary(*job.start.record, Tokens());
  });
  // Without a rehearsal: the library's proposals, the same in every run.
  if (job.libraries != nullptr) job.libraries->Seal();
  model_ = std::make_unique<model::ParallelModel>(grid_, plan_.model, job.stream);
  job.World().Together([&] {
    if (job.libraries != nullptr) job.libraries->Reserve(train::LargestOperand(plan_.model));
  });
  std::optional<train::StateOnHost> weights;
  job.World().Together([&] { weights.emplace(model_->Stream(), model_->Blocks()); });
  checkpoint_ = app::ReadNewest(job, [&](const std::string& checkpoint) {
    checkpoint::ReadTensors(job.World(), checkpoint, "model", *weights);
  });
  weights->Store();
  model_->Inference().PackWeights();
}

}  // namespace trireme::tasks
