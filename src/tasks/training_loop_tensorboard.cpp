// TrainingLoop: TensorBoard's files, and the histograms in them.
#include <fmt/format.h>

#include "trireme/tasks/training_loop.hpp"
#include "trireme/report/tensorboard_sink.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::tasks {

namespace {

// Sections of the deck that say what was trained, and how.
constexpr const char* kHyperparameters[] = {"model",    "optimizer", "schedule", "data",
                                            "pipeline", "grid",      "run"};

}  // namespace

// Rank 0. Nothing that fails here ends the run.
void TrainingLoop::AttachTensorBoard(const report::BannerFacts& banner) {
  if (!job_.options.monitor.tensorboard || !job_.World().IsRoot()) return;
  report::BoardFacts facts;
  facts.layout = report::BannerText(banner);
  for (const char* section : kHyperparameters) {
    for (const auto& [key, value] : job_.deck.Section(section)) {
      facts.deck.emplace_back(fmt::format("{}.{}", section, key), value);
    }
  }
  events_ = std::make_shared<report::EventLog>(report::EventLog::Setup{
      .folder = folder_ + "/tensorboard", .continues = continues_, .resume_step = step_});
  auto sink = std::make_unique<report::TensorBoardSink>(events_, std::move(facts));
  try {
    sink->Begin();
  } catch (const Error& error) {
    monitor_->Warn(fmt::format("{}; the run goes on without it", error.what()));
  }
  monitor_->Attach(std::move(sink));
}

// No transfer and no time of it counts as the steps'.
std::vector<report::NamedHistogram> TrainingLoop::HistogramsOf(const checkpoint::State& state,
                                                                    const char* prefix,
                                                                    double divisor) const {
  const comm::Ledger steps_alone = grid_.Traffic();
  const device::Scope scope(steps_alone.Trace(), {.name = device::SliceName::kHistograms,
                                                 .category = device::SliceCategory::kValidation});
  grid_.Traffic().TraceInto(nullptr);
  std::vector<report::NamedHistogram> histograms = report::HistogramsOf(
      grid_.Over(comm::Group::kWorld).OnHost(), state.model, state.read, prefix, divisor);
  grid_.Traffic() = steps_alone;
  return histograms;
}

// Gradients are gone once the weights have moved.
void TrainingLoop::AskForHistograms() {
  const std::int64_t every = job_.options.monitor.histogram_every_steps;
  if (every == 0 || (step_ + 1) % every != 0) return;
  training_step_.BeforeNextUpdate([this](std::int64_t targets) {
    gradient_histograms_ =
        HistogramsOf(state_.GradientState(), "gradients/", static_cast<double>(targets));
  });
}

void TrainingLoop::AddHistograms() {
  const std::int64_t every = job_.options.monitor.histogram_every_steps;
  if (every == 0 || step_ % every != 0) return;
  training_step_.BeforeNextUpdate({});  // of a bad step, whose gradients nobody has seen
  const auto weights = HistogramsOf(state_.CheckpointState(), "weights/", 1);
  const auto gradients = std::exchange(gradient_histograms_, {});
  if (events_ == nullptr) return;
  events_->AddHistograms(step_, weights);
  events_->AddHistograms(step_, gradients);
}

}  // namespace trireme::tasks
