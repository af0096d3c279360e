// TrainingStep on a GPU: the host queues a step's work, or launches it as one graph, and meanwhile
// loads the next batch.
#include <utility>

#include "product_choices.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::train {

namespace {

// While it lives, the host waits for products that it times as it waits for a step's work: such
// that a lost rank is found, and the watchdogs know what is waited for.
class GridWaits {
 public:
  GridWaits(kernels::Libraries& libraries, const comm::ProcessGrid& grid) : libraries_(libraries) {
    libraries_.WaitBy([&grid](const device::Event& event) { grid.Await(event); });
  }
  ~GridWaits() { libraries_.WaitBy({}); }
  GridWaits(const GridWaits&) = delete;
  GridWaits& operator=(const GridWaits&) = delete;

 private:
  kernels::Libraries& libraries_;
};

}  // namespace

void TrainingStep::QueueOnGpu(model::StagedBatches::Taken batch) {
  state_.QueueGradients(std::move(batch));
  state_.QueueSums();
}

void TrainingStep::Rehearse() {
  kernels::Libraries* const libraries = kernels::LibrariesOf(Stream());
  if (libraries == nullptr || (libraries->Sealed() && libraries->Scaled())) return;
  const device::ProfileRange range("rehearsal");
  const comm::Communicator& world = Grid().World();
  const std::string& asked = state_.Plan().products_file;
  const std::string file = asked == "auto" ? ChoicesFile(libraries->Chosen()) : asked;
  if (!libraries->Sealed()) TakeKeptChoices(world, file, *libraries);
  const comm::Ledger before = Grid().Traffic();
  Net().Stages().ReceiveLate(true);
  {
    // Products are timed behind transfers, which another rank may have left.
    const GridWaits waits(*libraries, Grid());
    QueueOnGpu(Net().Take(Net().Stage(now_.Entries())));
  }
  done_.Record(Stream().gpu->queue);
  Grid().Await(done_);
  Grid().TakeExposed();
  if (!libraries->Sealed()) {
    // Ranks with cards of different kinds keep what each has found.
    AgreeOnChoices(world, *libraries);
    libraries->Seal();
    KeepChoices(world, file, *libraries);
  }
  state_.UpdateScales();
  Grid().Traffic() = before;
}

// Not between stages, which take turns, and not with shards that come and go: there the host
// decides on the way.
bool TrainingStep::RecordsGraph() const {
  return state_.Plan().graphs && Grid().Shape().pipeline == 1 && !Net().Units().ValuesSharded() &&
         !Net().Units().GradientsSharded() && Grid().Recordable();
}

void TrainingStep::GradientsOnGpu() {
  const device::ProfileRange range("gradients");
  const device::Scope scope(Trace(), {.name = device::SliceName::kGradients, .queues = true});
  gradients_start_ = Seconds();
  waited_before_ = Waited();
  bubble_before_ = Grid().Traffic().SecondsWaited(comm::Group::kPipeline);
  model::StagedBatches::Taken batch = TakeBatch();
  const bool whole = loader_->Whole(step_) && !now_.unread;
  Net().Stages().ReceiveLate(!whole || !warm_);
  if (!whole || !warm_ || !RecordsGraph()) {
    QueueOnGpu(std::move(batch));
    warm_ = warm_ || whole;
    return;
  }
  // A graph from before the library that tells kernels apart was there is recorded anew.
  const bool told = Trace() != nullptr && Trace()->TellsKernels();
  if (graph_.Recorded() && (!told || graph_told_)) {
    graph_.Launch(Stream());
    Net().Replayed(std::move(batch));
    Grid().Traffic().Add(graph_traffic_);
    return;
  }
  RecordGraph(std::move(batch));
  graph_told_ = told;
  graph_.Launch(Stream());
}

void TrainingStep::RecordGraph(model::StagedBatches::Taken batch) {
  const comm::Ledger before = Grid().Traffic();
  Grid().Traffic().TraceInto(nullptr);  // events of a graph tell no time
  graph_ = {};
  graph_.Begin(Stream());
  try {
    QueueOnGpu(std::move(batch));
  } catch (...) {
    graph_.Abandon(Stream());
    throw;
  }
  graph_.End(Stream());
  graph_traffic_ = Grid().Traffic();
  graph_traffic_.Subtract(before);
  Grid().Traffic().TraceInto(before.Trace());
}

void TrainingStep::LoadNextBatch() {
  if (step_ + 1 >= state_.Plan().schedule.Last()) return;
  const device::ProfileRange range("load next batch");
  const device::Scope scope(Trace(),
                           {.name = device::SliceName::kLoadBatch, .category = device::SliceCategory::kData});
  const double start = Seconds();
  loader_->Load(step_ + 1, next_);
  next_.staged = Net().Stage(next_.Entries());
  const double seconds = Seconds() - start;
  mine_.data += seconds;
  gradients_start_ += seconds;  // the GPU's work goes on, and is counted as far as it is waited for
}

void TrainingStep::AwaitGradients() {
  const device::ProfileRange range("await gradients");
  const device::Scope scope(Trace(), {.name = device::SliceName::kAwaitGradients});
  done_.Record(Stream().gpu->queue);
  Grid().Await(done_);
  Grid().TakeExposed();
  if (Trace() != nullptr) Trace()->Settle();
  const double bubble = Grid().Traffic().SecondsWaited(comm::Group::kPipeline) - bubble_before_;
  const double exposed = Waited() - waited_before_;
  mine_.bubble += bubble;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - gradients_start_ - exposed - bubble;
}

}  // namespace trireme::train
