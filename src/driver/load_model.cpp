// A trained model for the tasks that do not train.
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/machine/node_memory.hpp"
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
  model::ModelSetup setup;
  parallel::PipelineShape pipeline;
  model::Canonical canonical;
  world.Together([&] {
    // With one stage there is no schedule.
    if (grid.Shape().pipeline > 1) {
      pipeline = parallel::ReadPipeline(job.deck, grid.Shape().pipeline);
    }
    setup = job::ReadModelSetup(job, tokens.VocabularySize(), shape);
    setup.training = setup.allocate = false;
    // Without a rehearsal: what the library proposes, the same in every run.
    if (job.products != nullptr) job.products->Seal();
    model::CheckLayout(job.deck, setup.options, grid.Shape(), pipeline);
    canonical =
        training::ReadCanonical(job.deck, setup.options, grid.Shape(), shape.batch, shape.length);
  });
  auto model = std::make_unique<model::ParallelModel>(grid, setup, pipeline, canonical);
  auto plan = model->MemoryPlan();
  training::AddGpuTerms(setup, plan);
  const machine::NodeDemand demand = machine::DemandOf(job.runtime->Node(), plan, job.stream);
  world.Together([&] {
    machine::CheckNodeMemory(demand, grid, canonical.On());
    model->Allocate();
    if (job.products != nullptr) job.products->Reserve(training::LargestOperand(setup));
  });
  const training::StateOnHost weights(setup.stream, model->Blocks());
  checkpoint::ReadTensors(world, checkpoint, "model", weights);
  weights.Store();
  return model;
}

}  // namespace trireme::driver
