// TrainingStep on a GPU: the host queues a step's work, or launches it as one graph, and meanwhile
// loads the next batch.
#include "product_choices.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/training/training_step.hpp"

namespace trireme::training {

void TrainingStep::Rehearse() {
  kernels::Products* const products = Stream().products;
  if (products == nullptr || (products->Sealed() && products->Scaled())) return;
  const device::ProfileRange range("rehearsal");
  const comm::Communicator& world = Grid().World();
  const std::string file =
      products_file_ == "auto" ? ChoicesFile(products->Chosen()) : products_file_;
  if (!products->Sealed()) TakeKeptChoices(world, file, *products);
  const comm::Ledger before = Grid().Traffic();
  model_.Stages().ReceiveLate(true);
  QueueGradients();
  QueueSums();
  done_.Record(Stream().gpu->queue);
  Grid().Await(done_);
  Grid().TakeExposed();
  if (!products->Sealed()) {
    // Ranks with cards of different kinds keep what each has found.
    products->Adopt(world.Gather(products->Chosen()));
    products->Seal();
    KeepChoices(world, file, *products);
  }
  UpdateScales();
  Grid().Traffic() = before;
}

// Over all ranks: a tensor's scale does not depend on who holds which part of it.
void TrainingStep::UpdateScales() {
  kernels::Products* const products = Stream().products;
  if (products == nullptr) return;
  const std::span<float> largest = products->Largest();
  if (largest.empty()) return;
  Grid()
      .Over(comm::Group::kWorld)
      .AllReduce(Dtype::kFloat32, largest.data(), std::ssize(largest), comm::Reduction::kMax);
  products->UpdateScales(Stream());
}

// Stages take turns and shards come and go by what the host decides on the way.
bool TrainingStep::RecordsGraph() const {
  return graphs_ && Grid().Shape().pipeline == 1 && !model_.Units().ValuesSharded() &&
         !model_.Units().GradientsSharded() && Grid().Recordable();
}

void TrainingStep::GradientsOnGpu() {
  const device::ProfileRange range("gradients");
  gradients_start_ = Seconds();
  waited_before_ = Waited();
  bubble_before_ = Grid().Traffic().SecondsWaited(comm::Group::kPipeline);
  if (now_.count > 0) model_.Take(now_.Entries());
  // The same on all ranks: shares follow from the size of the batch.
  const bool whole = sampler_.BatchSize(step_) == batch_;
  model_.Stages().ReceiveLate(!whole || !warm_);
  if (!whole || !warm_ || !RecordsGraph()) {
    QueueGradients();
    QueueSums();
    warm_ = warm_ || whole;
    return;
  }
  if (graph_.Recorded() && graph_memory_ == model_.MemoryVersion()) {
    graph_.Launch(Stream());
    if (now_.count > 0) model_.Repeated(now_.Entries());
    Grid().Traffic().Add(graph_traffic_);
    return;
  }
  const comm::Ledger before = Grid().Traffic();
  graph_ = {};
  graph_.Begin(Stream());
  try {
    QueueGradients();
    QueueSums();
  } catch (...) {
    graph_.Abandon(Stream());
    throw;
  }
  graph_.End(Stream());
  graph_memory_ = model_.MemoryVersion();
  graph_traffic_ = Grid().Traffic();
  graph_traffic_.Subtract(before);
  graph_.Launch(Stream());
}

void TrainingStep::LoadNextBatch() {
  const device::ProfileRange range("load next batch");
  const double start = Seconds();
  Load(step_ + 1, next_);
  if (next_.count > 0) model_.Prepare(next_.Entries());
  const double seconds = Seconds() - start;
  mine_.data += seconds;
  gradients_start_ += seconds;  // the GPU's work goes on, and is counted as far as it is waited for
}

void TrainingStep::AwaitGradients() {
  const device::ProfileRange range("await gradients");
  done_.Record(Stream().gpu->queue);
  Grid().Await(done_);
  Grid().TakeExposed();
  const double bubble = Grid().Traffic().SecondsWaited(comm::Group::kPipeline) - bubble_before_;
  const double exposed = Waited() - waited_before_;
  mine_.bubble += bubble;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - gradients_start_ - exposed - bubble;
}

}  // namespace trireme::training
