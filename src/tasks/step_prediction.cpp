// EnergyUse; StepPrediction: compares a simulated step with the mean of the steps that ran.
#include "step_prediction.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <string_view>

#include "root.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/predict/search.hpp"

namespace trireme::tasks {

namespace {

// Joules per token are given if the time without readings is at most this fraction of the time with
// readings. For the time without, the mean power is assumed.
constexpr double kMostLost = 0.1;

std::string OwnCard(const app::Device& device) {
  if (device.gpu == nullptr) return {};
  const std::vector<std::string> visible = device::GpuIds();
  const auto mine = static_cast<std::size_t>(device.gpu->Context().device);
  return mine < visible.size() ? visible[mine] : std::string();
}

void AddCards(const report::Sums& sums, EnergyUse::Numbers& numbers) {
  if (!(sums.card_seconds > 0)) return;
  numbers.emplace_back("gpu_utilisation", sums.busy_seconds / sums.card_seconds);
  numbers.emplace_back("gpu_memory_bytes", sums.card_bytes);
}

}  // namespace

EnergyUse::EnergyUse(const app::Ranks& ranks, const app::Device& device)
    : meter_(ranks.World(), ranks.Node(),
             {.places = {},
              .host = ranks.Hosts().Of(ranks.World().Rank()),
              .card = OwnCard(device),
              .cores = ranks.signals->UsableCores()}) {}

void EnergyUse::Begin() {
  meter_.Collect();
  session_ = {};
  tokens_ = session_tokens_ = 0;
}

EnergyUse::Numbers EnergyUse::EndInterval() {
  const report::Sums sums = meter_.Collect();
  session_ += sums;
  Numbers numbers;
  // Intervals shorter than the time between two readings are counted with the next one.
  if (!(sums.node_seconds > 0)) return numbers;
  const auto tokens = static_cast<double>(std::exchange(tokens_, 0));
  session_tokens_ += tokens;
  if (sums.Whole()) {
    numbers.emplace_back("joules", sums.joules);
    if (tokens > 0) numbers.emplace_back("joules_per_token", sums.joules / tokens);
  }
  numbers.emplace_back("watts_per_node", sums.joules / sums.node_seconds);
  AddCards(sums, numbers);
  return numbers;
}

report::Energy EnergyUse::EndSession() {
  EndInterval();
  session_tokens_ += static_cast<double>(std::exchange(tokens_, 0));
  const report::Sums& sums = session_;
  report::Energy energy{.numbers = {}, .texts = {}, .not_available = meter_.WhyNot()};
  if (meter_.Available() && !(sums.node_seconds > 0)) {
    energy.not_available = "no counter was read twice in this session";
  }
  if (energy.not_available.empty()) {
    Numbers& numbers = energy.numbers;
    const double lost = std::max(sums.lost_seconds, 0.0);
    numbers.emplace_back("joules", sums.joules);
    if (session_tokens_ > 0 && lost <= kMostLost * sums.node_seconds) {
      const double all = sums.joules * (1 + lost / sums.node_seconds);
      numbers.emplace_back("joules_per_token", all / session_tokens_);
    }
    numbers.emplace_back("watts_per_node", sums.joules / sums.node_seconds);
    AddCards(sums, numbers);
    numbers.emplace_back("nodes", meter_.Nodes());
    numbers.emplace_back("seconds", sums.node_seconds / meter_.Nodes());
    numbers.emplace_back("seconds_lost", lost / meter_.Nodes());
    if (meter_.Cards() > 0) {
      numbers.emplace_back("gpus", meter_.Cards());
      numbers.emplace_back("gpu_joules", sums.card_joules);
    }
    energy.texts = {{"covers", meter_.Covers()}, {"leaves_out", meter_.LeavesOut()}};
  }
  return energy;
}

std::string EnergyLine(const report::Energy& energy) {
  if (!energy.not_available.empty()) return "energy  not available: " + energy.not_available;
  const auto find = [](const auto& list, std::string_view name, auto none) {
    const auto found = std::ranges::find(list, name, [](const auto& each) { return each.first; });
    return found == list.end() ? none : found->second;
  };
  const auto number = [&](std::string_view name) {
    return find(energy.numbers, name, std::nan(""));
  };
  const auto text = [&](std::string_view name) { return find(energy.texts, name, std::string()); };
  std::string line =
      fmt::format("energy  {} of {}, {} per node", report::WithUnit(number("joules"), "J"),
                  text("covers"), report::WithUnit(number("watts_per_node"), "W"));
  if (const double each = number("joules_per_token"); !std::isnan(each)) {
    line += fmt::format(", {:.3g} J per token", each);
  }
  if (const double busy = number("gpu_utilisation"); !std::isnan(busy)) {
    line += fmt::format("; GPUs {:.0f}% busy, {} of the fullest in use", 100 * busy,
                        report::AsBytes(std::llround(number("gpu_memory_bytes"))));
  }
  constexpr double kSaid = 0.5;  // seconds; shorter losses are not mentioned
  if (const double lost = number("seconds_lost"); lost >= kSaid) {
    line += fmt::format("; no readings for {} of {}", report::AsClock(lost),
                        report::AsClock(lost + number("seconds")));
  }
  const std::string leaves_out = text("leaves_out");
  if (!leaves_out.empty()) line += "\n        without " + leaves_out;
  return line;
}

predict::Subject CalibrationSubject(const app::Job& job) {
  return {.world = job.ranks.World(),
          .node = job.ranks.Node(),
          .hosts = job.ranks.Hosts(),
          .schema = *job.request.schema,
          .stream = job.device.stream,
          .gpu = job.device.gpu.get(),
          .precision = job.request.machine.precision,
          .use_gpu = [&](comm::ProcessGrid& grid) { app::UseGpu(job.request, job.device, grid); }};
}

StepPrediction::StepPrediction(const app::Job& job, const train::Plan& plan)
    : job_(job), plan_(plan) {
  AtRoot(job.ranks.World(), [&] {
    predict::Described described =
        predict::DescribeRun(job.request.plan.machine, plan.machine, SharedFolder(ProgramFile()));
    machine_ = std::move(described.machine);
    why_none_ = std::move(described.why_none);
  });
}

void StepPrediction::Calibrate(bool done, double seconds_left) {
  constexpr double kLeastRun = 60, kLeastLeft = 60;  // seconds of the run, and left in the job
  const comm::Communicator& world = job_.ranks.World();
  const bool wanted = world.IsRoot() && done && !machine_ && !job_.device.stream.OnGpu() &&
                      job_.request.plan.machine == predict::kAutoMachine &&
                      Seconds() - job_.request.begun >= kLeastRun && seconds_left >= kLeastLeft;
  if (world.Max(std::int64_t{wanted}) == 0) return;
  predict::Calibration calibration =
      predict::Calibrate(CalibrationSubject(job_), predict::Effort::kShort);
  if (world.IsRoot()) machine_ = std::move(calibration.machine);
}

report::Comparison StepPrediction::Compare(const report::Record& means, std::int64_t steps,
                                           const comm::GroupSeconds& waited) const {
  report::Comparison comparison;
  if (!machine_) {
    comparison.not_available = why_none_ + "; trireme --calibrate FILE writes one for plan.machine";
    return comparison;
  }
  if (steps == 0) return comparison;
  predict::Prediction predicted;
  try {
    predicted = predict::Predict(plan_, *machine_);
  } catch (const Error& error) {  // the run has ended: only the comparison is lost
    comparison.not_available = error.what();
    return comparison;
  }
  comm::GroupSeconds a_step = waited;
  for (double& seconds : a_step) seconds /= static_cast<double>(steps);
  const comm::GroupSeconds exposed =
      comm::ExposedByGroup(a_step, means.seconds_bubble, means.seconds_exposed_communication);
  comparison.machine = machine_->name;
  if (!machine_->source.empty()) comparison.machine += fmt::format(" ({})", machine_->source);
  if (!machine_->gpu && machine_->threads != plan_.machine.stream.threads) {
    comparison.machine += fmt::format(", ranks of {} threads here", plan_.machine.stream.threads);
  }
  const auto add = [&](std::string name, double of_plan, double of_run) {
    comparison.terms.push_back({std::move(name), of_plan, of_run});
  };
  add("step", predicted.step, means.step_seconds);
  add("compute", predicted.compute, means.seconds_compute);
  for (std::size_t i = 0; i < exposed.size(); ++i) {
    if (predicted.exposed[i] <= 0 && exposed[i] <= 0) continue;
    add(fmt::format("exposed {}", comm::NameOf(static_cast<comm::Group>(i))), predicted.exposed[i],
        exposed[i]);
  }
  if (plan_.grid.pipeline > 1) add("bubble", predicted.bubble, means.seconds_bubble);
  add("other", predicted.other,
      means.step_seconds - means.seconds_compute - means.seconds_exposed_communication -
          means.seconds_bubble);
  comparison.not_available.clear();
  return comparison;
}

}  // namespace trireme::tasks
