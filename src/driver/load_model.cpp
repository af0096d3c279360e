// A trained model for the tasks that do not train.
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/machine/node_memory.hpp"
#include "trireme/model/check_layout.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::driver {

std::unique_ptr<model::ParallelModel> LoadModel(job::Job& job, const comm::ProcessGrid& grid,
                                                const data::TokenFile& tokens,
                                                const job::DataShape& shape,
                                                std::string& checkpoint) {
  const comm::Communicator& world = job.World();
  world.Together([&] {
    if (!job.line->resume.empty()) return;
    throw job.deck.Complain("job.task", "a trained model is needed",
                            "Name a run folder or a checkpoint with -r.");
  });
  checkpoint = checkpoint::Find(world, job.line->resume);
  model::ModelPlan plan;
  world.Together([&] {
    plan = job::ReadModelPlan(job, tokens.VocabularySize(), shape);
    plan.training = false;
    // With one stage there is no schedule.
    if (grid.Shape().pipeline > 1) {
      plan.pipeline = parallel::ReadPipeline(job.deck, grid.Shape().pipeline);
    }
    // Without a rehearsal: what the library proposes, the same in every run.
    if (job.products != nullptr) job.products->Seal();
    model::CheckLayout(job.deck, plan.options, grid.Shape(), plan.pipeline);
    plan.canonical =
        training::ReadCanonical(job.deck, plan.options, grid.Shape(), shape.batch, shape.length);
  });
  auto model = std::make_unique<model::ParallelModel>(grid, plan, job.stream);
  machine::MemoryTerms terms = training::TermsOf(model->Memory());
  training::AddGpuTerms(plan, job.stream, terms);
  const machine::NodeDemand demand = machine::DemandOf(job.runtime->Node(), terms, job.stream);
  world.Together([&] {
    machine::CheckNodeMemory(demand, grid, plan.canonical.On());
    model->Allocate();
    if (job.products != nullptr) job.products->Reserve(training::LargestOperand(plan));
  });
  const training::StateOnHost weights(model->Stream(), model->Blocks());
  checkpoint::ReadTensors(world, checkpoint, "model", weights);
  weights.Store();
  return model;
}

}  // namespace trireme::driver
