// A trained model for the tasks that do not train.
#include "trireme/driver/trained_model.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/training/state_on_host.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::driver {

namespace {

// Whether every node has the memory that its ranks plan.
bool Fits(const job::Job& job, const plan::EvaluationPlan& plan) {
  machine::MemoryTerms memory;
  job.World().Together([&] { memory = plan::PlanMemory(plan, job.World().Rank()); });
  return job::HasMemory(job, memory);
}

void Pack(const job::Job& job, PackWeights packing, plan::EvaluationPlan& plan) {
  if (packing == PackWeights::kNo) return;
  if (!plan::CanPackWeights(plan)) {
    if (packing == PackWeights::kAuto) return;
    job.World().Together([&] {
      throw job.deck.Complain("generate.pack_weights", "there is none here",
                              "It serves 2 to 32 texts at once (generate.file, generate.batch) on "
                              "CPUs in fp32 or fp64, without run.canonical, grid.context and "
                              "grid.sharding = parameters: leave it out.");
    });
  }
  plan.model.thin_panels = true;
  if (packing == PackWeights::kAuto) plan.model.thin_panels = Fits(job, plan);
}

plan::EvaluationPlan MakePlan(const job::Job& job, std::int64_t micro_batch,
                              std::int64_t cache_slots, PackWeights packing) {
  job.World().Together([&] {
    if (!job.start.candidates.empty()) return;
    throw job.deck.Complain("job.task", "a trained model is needed",
                            "Name a run folder or a checkpoint with -r.");
  });
  const plan::TokenFacts facts = job::InspectTokens(job);
  plan::EvaluationPlan plan;
  job.World().Together([&] {
    plan = plan::MakeEvaluationPlan(job::RequestOf(job, facts), micro_batch, cache_slots);
  });
  Pack(job, packing, plan);
  return plan;
}

}  // namespace

TrainedModel::TrainedModel(const job::Job& job, std::int64_t micro_batch, std::int64_t cache_slots,
                           PackWeights packing)
    : plan_(MakePlan(job, micro_batch, cache_slots, packing)),
      grid_(job.World(), plan_.grid, plan_.sharing) {
  machine::MemoryTerms memory;
  job.World().Together([&] { memory = plan::PlanMemory(plan_, job.World().Rank()); });
  job::CheckMemory(job, memory, grid_);
  job.World().Together([&] { plan::CheckTransfers(plan_, job.World().Rank()); });
  job::UseGpu(job, memory, grid_);
  if (plan_.tokens.pairs) {
    pairs_.emplace(job::OpenPairs(job));
  } else {
    tokens_.emplace(job::OpenTokens(job, grid_));
  }
  job.World().Together([&] {
    if (job.World().IsRoot()) job::CheckVocabulary(*job.start.record, Tokens());
  });
  // Without a rehearsal: the library's proposals, the same in every run.
  if (job.libraries != nullptr) job.libraries->Seal();
  model_ = std::make_unique<model::ParallelModel>(grid_, plan_.model, job.stream);
  job.World().Together([&] {
    if (job.libraries != nullptr) job.libraries->Reserve(training::LargestOperand(plan_.model));
  });
  std::optional<training::StateOnHost> weights;
  job.World().Together([&] { weights.emplace(model_->Stream(), model_->Blocks()); });
  checkpoint_ = job::ReadNewest(job, [&](const std::string& checkpoint) {
    checkpoint::ReadTensors(job.World(), checkpoint, "model", *weights);
  });
  weights->Store();
  if (plan_.model.thin_panels) model_->PackWeights();
}

}  // namespace trireme::driver
