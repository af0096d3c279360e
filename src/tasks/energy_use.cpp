// EnergyUse: sums of the nodes' counters, divided by tokens, nodes and seconds.
#include "energy_use.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/device/gpu.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

// Share of a session without readings up to which its joules per token are told, that time taken
// at the mean power.
constexpr double kMostLost = 0.1;

std::string OwnCard(const app::Job& job) {
  if (job.gpu == nullptr) return {};
  const std::vector<std::string> visible = device::GpuIds();
  const auto mine = static_cast<std::size_t>(job.gpu->Context().device);
  return mine < visible.size() ? visible[mine] : std::string();
}

void AddCards(const report::Sums& sums, EnergyUse::Numbers& numbers) {
  if (!(sums.card_seconds > 0)) return;
  numbers.emplace_back("gpu_utilisation", sums.busy_seconds / sums.card_seconds);
  numbers.emplace_back("gpu_memory_bytes", sums.card_bytes);
}

}  // namespace

EnergyUse::EnergyUse(const app::Job& job)
    : meter_(job.World(), job.runtime->Node(),
             {.places = {},
              .host = job.runtime->Hosts().Of(job.World().Rank()),
              .card = OwnCard(job),
              .cores = job.signals->UsableCores()}) {}

void EnergyUse::Begin() {
  meter_.Collect();
  session_ = {};
  tokens_ = session_tokens_ = 0;
}

EnergyUse::Numbers EnergyUse::EndInterval() {
  const report::Sums sums = meter_.Collect();
  session_ += sums;
  Numbers numbers;
  // Steps shorter than the time between readings count with the next one.
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

}  // namespace trireme::tasks
