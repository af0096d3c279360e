// TrainingStep: values that are not finite, batches without targets, and what becomes of their
// step.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "trireme/train/training_step.hpp"

namespace trireme::train {

namespace {

// Findings in the order in which they are told: a parameter spoils everything after it, a loss all
// gradients, and one rank's gradient the sums of all.
enum Order : std::int64_t { kParameter, kLoss, kGradient, kSummedGradient, kNorm, kNothing };

}  // namespace

std::string Fault::Text(const std::string& host) const {
  if (no_target) return what;
  return fmt::format("{} on rank {}{}{}", what, rank, host.empty() ? "" : " (" + host + ")", more);
}

// "blocks.1.ffn.down.weight (layer 2 of 12)"
std::string TrainingStep::Named(const std::string& parameter) const {
  constexpr std::string_view kBlocks = "blocks.";
  if (!parameter.starts_with(kBlocks)) return parameter;
  std::int64_t block = 0;
  const char* const end = parameter.data() + parameter.size();
  if (std::from_chars(parameter.data() + kBlocks.size(), end, block).ec != std::errc()) {
    return parameter;
  }
  return fmt::format("{} (layer {} of {})", parameter, block + 1,
                     state_.Plan().model.options.Blocks());
}

TrainingStep::Finding TrainingStep::LookForFault(bool finite_loss) {
  const std::string gradient = state_.NotFinite();
  if (finite_loss && gradient.empty()) {
    if (std::isfinite(result_.gradient_norm)) return {.order = kNothing, .what = {}};
    const std::string summed = state_.FirstNotFinite();
    if (summed.empty()) return {.order = kNorm, .what = "the gradient's norm is not finite"};
    return {.order = kSummedGradient,
            .what = fmt::format("the gradient of {} is not finite, summed over the ranks,",
                                Named(summed))};
  }
  Finding mine{.order = kGradient, .what = "the loss is not finite"};
  if (finite_loss) mine.what = fmt::format("the gradient of {} is not finite", Named(gradient));
  const std::string parameter = state_.FirstParameterNotFinite();
  if (!parameter.empty()) {
    mine.order = kParameter;
    mine.more = fmt::format("; nor is the parameter {}", Named(parameter));
  } else if (!finite_loss) {
    mine.order = kLoss;
    const std::string tensor = gradient.empty() ? state_.FirstNotFinite() : gradient;
    if (!tensor.empty()) mine.more = fmt::format("; nor is the gradient of {}", Named(tensor));
  }
  return mine;
}

// Of equal findings that of the lowest rank.
Fault TrainingStep::FindFault(bool finite_loss) {
  const Finding mine = LookForFault(finite_loss);
  const comm::Communicator& world = Grid().World();
  const std::int64_t first = world.Min(mine.order * world.Size() + world.Rank());
  Fault fault{.rank = static_cast<int>(first % world.Size()), .what = {}, .more = {}};
  fault.what = world.Broadcast(mine.what, fault.rank);
  fault.more = world.Broadcast(mine.more, fault.rank);
  return fault;
}

void TrainingStep::LeaveOutUpdate(OnFault on_fault) {
  if (on_fault == OnFault::kThrow) {
    Grid().World().Together([&] {
      throw RunError(fmt::format("step {}: {}", step_ + 1, result_.fault->Text()),
                     result_.fault->Advice());
    });
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  result_.loss = result_.gradient_norm = kNone;
  result_.learning_rate = state_.Plan().schedule.Rate(step_ + 1);
  state_.DropGradients();
}

}  // namespace trireme::train
