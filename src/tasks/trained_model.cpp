// TrainedModel: makes the plan, opens the tokens, and reads a checkpoint's weights.
#include "trireme/tasks/trained_model.hpp"

#include "root.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::tasks {

namespace {

// Packs the weights as asked. kAuto: if the model allows it and every node has the memory.
void Pack(const app::Request& request, const app::Ranks& ranks, const app::Device& device,
          PackWeights packing, train::EvaluationPlan& plan) {
  if (packing == PackWeights::kNo) return;
  if (!train::CanPackWeights(plan)) {
    if (packing == PackWeights::kAuto) return;
    ranks.World().Together([&] {
      throw request.deck.Complain(
          "generate.pack_weights", "there is none here",
          "It serves 2 to 32 texts at once (generate.file, generate.batch) on "
          "CPUs in fp32 or fp64, without run.canonical, grid.context and "
          "grid.sharding = parameters: leave it out.");
    });
  }
  plan.model.pack_weights = true;
  if (packing == PackWeights::kYes) return;
  device::MemoryTerms memory;
  ranks.World().Together([&] { memory = train::PlanMemory(plan, ranks.World().Rank()); });
  plan.model.pack_weights = app::HasMemory(ranks, device, memory);
}

train::EvaluationPlan MakePlan(const app::Job& job, std::int64_t micro_batch,
                               std::int64_t cache_slots, PackWeights packing) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  world.Together([&] {
    if (!job.start.candidates.empty()) return;
    throw request.deck.Complain("job.task", "a trained model is needed",
                                "Name a run folder or a checkpoint with -r.");
  });
  const train::TokenFacts facts = app::InspectTokens(request, job.ranks, job.files);
  train::EvaluationPlan plan;
  world.Together([&] {
    plan = train::MakeEvaluationPlan(app::RequestOf(request, world, job.device, job.start, facts),
                                     micro_batch, cache_slots);
  });
  Pack(request, job.ranks, job.device, packing, plan);
  return plan;
}

}  // namespace

TrainedModel::TrainedModel(const app::Job& job, std::int64_t micro_batch, std::int64_t cache_slots,
                           PackWeights packing)
    : plan_(MakePlan(job, micro_batch, cache_slots, packing)),
      grid_(job.ranks.World(), plan_.grid, plan_.sharing) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  device::MemoryTerms memory;
  world.Together([&] { memory = train::PlanMemory(plan_, world.Rank()); });
  app::CheckMemory(request, job.ranks, job.device, memory, grid_);
  world.Together([&] { train::CheckTransfers(plan_, world.Rank()); });
  app::UseGpu(request, job.device, memory, grid_);
  if (plan_.tokens.pairs) {
    pairs_.emplace(app::OpenPairs(request, job.ranks));
  } else {
    tokens_.emplace(app::OpenTokens(request, job.ranks, job.files, grid_));
  }
  AtRoot(world, [&] { app::CheckVocabulary(*job.start.record, Tokens()); });
  // Use the library's proposed algorithms without timing them: every run takes the same ones.
  if (job.device.libraries != nullptr) job.device.libraries->Seal();
  model_ = std::make_unique<model::ParallelModel>(grid_, plan_.model, job.device.stream);
  world.Together([&] {
    if (job.device.libraries != nullptr)
      job.device.libraries->Reserve(train::LargestOperand(plan_.model));
  });
  std::optional<train::StateOnHost> weights;
  world.Together([&] { weights.emplace(model_->Stream(), model_->Blocks()); });
  bool averages = false;
  checkpoint_ = app::ReadNewest(request, world, job.start, [&](const std::string& checkpoint) {
    averages = checkpoint::ReadWeights(world, checkpoint, *weights);
  });
  if (averages && world.IsRoot()) SayAverages(checkpoint_);
  weights->Store();
  model_->Inference().PackWeights();
}

}  // namespace trireme::tasks
