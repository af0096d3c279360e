// Optimizer: the norm of owned gradients, and the update of owned values.
#include "trireme/train/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::train {

// Bytes of weights that ExchangeAverage moves at a time.
static constexpr std::int64_t kExchangeBytes = std::int64_t{1} << 20;

ParameterGroup GroupOf(const kernels::Registry& registry, kernels::ParameterId id) {
  const kernels::Unit& unit = registry.Units().at(static_cast<std::size_t>(registry.UnitOf(id)));
  if (!registry.Parameters().at(static_cast<std::size_t>(id)).decay) return ParameterGroup::kNorms;
  if (unit.block) return ParameterGroup::kMatrices;
  return unit.name == "head" ? ParameterGroup::kHead : ParameterGroup::kEmbedding;
}

Optimizer::Optimizer(const OptimizerOptions& options, kernels::Registry& registry,
                     const device::Stream& stream, const comm::Collectives& tensor)
    : options_(options), registry_(&registry), stream_(stream) {
  FindOwned();
  FindUnowned();
  rule_ = MakeRule({options, owned_, registry, stream, tensor});
  if (options.average > 0) MakeAverage();
  // Memory for the host's copies, which the host reads and writes even if the stream is planned.
  const device::Kind host = stream.Planned() ? device::Kind::kCpu : stream.Where();
  scalars_ = device::AllocatePinned(ScalarBytes(), host);
  if (!stream.OnGpu()) return;
  scalars_there_ = device::AllocateZeroed(ScalarBytes(), stream.Where());
  const auto bytes = static_cast<std::int64_t>((counted_.size() + 1) * sizeof(double));
  squares_there_ = device::AllocateZeroed(bytes, stream.Where());
  squares_ = device::AllocatePinned(bytes, host);
}

void Optimizer::FindOwned() {
  const auto at = [this](void* storage, std::int64_t offset) {
    return ElementAt(storage, registry_->SumType(), offset);
  };
  const bool masters = registry_->Masters() != nullptr;
  const auto& parameters = registry_->Parameters();
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const kernels::Parameter& parameter = parameters[id];
    const kernels::Owned owned = registry_->OwnedOf(static_cast<kernels::ParameterId>(id));
    const std::int64_t size = owned.flat.Size();
    if (size == 0) continue;
    const std::int64_t first = parameter.begin + owned.flat.begin - parameter.offset;
    void* const gradients = at(registry_->Gradients(), owned.gradient);
    void* const values = ElementAt(registry_->Values(), registry_->Type(), owned.value);
    const ParameterGroup group = GroupOf(*registry_, static_cast<kernels::ParameterId>(id));
    const GroupOptions& own = options_.groups.at(static_cast<std::size_t>(group));
    const double decay = own.decay.value_or(parameter.decay ? options_.weight_decay : 0);
    kernels::UpdateRange storage{
        .count = size, .decay = decay, .gradients = gradients, .values = values, .rate = own.rate};
    if (masters) {
      storage.values = at(registry_->Masters(), owned.moment);
      storage.copies = values;
    }
    owned_.push_back({static_cast<kernels::ParameterId>(id),
                      &parameter,
                      {first, first + size},
                      owned.moment,
                      group,
                      storage});
    if (parameter.copy == 0) counted_.push_back({size, gradients});
  }
}

// Finds the gaps between owned gradients in the storage, including padding.
void Optimizer::FindUnowned() {
  std::vector<Part> owned;
  for (std::size_t id = 0; id < registry_->Parameters().size(); ++id) {
    const kernels::Owned part = registry_->OwnedOf(static_cast<kernels::ParameterId>(id));
    if (part.flat.Size() > 0) owned.push_back({part.gradient, part.gradient + part.flat.Size()});
  }
  std::sort(owned.begin(), owned.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  owned.push_back({registry_->Owns().gradients, registry_->Owns().gradients});
  std::int64_t end = 0;
  for (const Part& part : owned) {
    if (part.begin > end) unowned_.push_back({end, part.begin});
    end = part.end;
  }
}

void Optimizer::MakeAverage() {
  const Dtype type = registry_->SumType();
  average_ = {checkpoint::kAveragePrefix,
              device::AllocateZeroed(BytesOf(type, registry_->Owns().moments), stream_.Where())};
  std::int64_t largest = 0;
  for (const OwnedParameter& part : owned_) {
    averages_.push_back({.count = part.storage.count,
                         .decay = 1,
                         .gradients = part.storage.values,
                         .values = ElementAt(average_.storage.get(), type, part.moment),
                         .scale = -1});
    largest = std::max(largest, BytesOf(type, part.storage.count));
  }
  exchanged_ = device::AllocateZeroed(std::min(largest, kExchangeBytes), stream_.Where());
  if (!stream_.Planned()) FollowWeights();
}

// In fp32 the share is rounded so that it and its rest, by which the average is multiplied, add up
// to 1 exactly: otherwise averages of many steps would shrink or grow.
double Optimizer::ShareOf(std::int64_t step) const {
  const auto count = static_cast<double>(step - options_.average_from);
  const double share = count <= 1 ? 1.0 : std::max(1 - options_.average, 1 / count);
  if (registry_->SumType() == Dtype::kFloat64) return share;
  return 1 - static_cast<double>(static_cast<float>(1 - share));
}

void Optimizer::DropGradients(const kernels::WeightDropout& by) {
  if (by.probability == 0) return;
  for (const OwnedParameter& part : owned_) {
    if (part.parameter->number < 0) continue;
    const std::int64_t count = part.storage.count;
    const kernels::Matrix gradients{part.storage.gradients, registry_->SumType(), 1, count, count};
    kernels::DropElements(stream_, by, *part.parameter, part.elements, gradients, gradients);
  }
}

void Optimizer::QueueSquares() {
  if (!stream_.OnGpu() || counted_.empty()) return;
  auto* const there = static_cast<double*>(squares_there_.get());
  kernels::SquareSums(stream_, registry_->SumType(), counted_, there);
  device::StartCopyOut(stream_, there, squares_.get(),
                       std::ssize(counted_) * static_cast<std::int64_t>(sizeof(double)));
}

double Optimizer::GradientSquares() const {
  if (stream_.OnGpu()) {
    const auto* const squares = static_cast<const double*>(squares_.get());
    return std::accumulate(squares, squares + counted_.size(), 0.0);
  }
  return kernels::SquareSum(stream_, registry_->SumType(), counted_);
}

ExactSum Optimizer::ExactGradientSquares() const {
  ExactSum sum;
  kernels::ExactSquareSum(stream_, registry_->SumType(), counted_, sum);
  return sum;
}

std::string Optimizer::FirstNotFinite() const {
  for (const OwnedParameter& part : owned_) {
    const kernels::FlatRange gradients{part.storage.count, part.storage.gradients};
    if (!std::isfinite(kernels::SquareSum(stream_, registry_->SumType(), {&gradients, 1}))) {
      return part.parameter->name;
    }
  }
  return {};
}

void Optimizer::Step(std::int64_t step, double learning_rate, double gradient_norm,
                     std::int64_t count, bool clear) {
  const bool clip = options_.clip_norm > 0 && gradient_norm > options_.clip_norm;
  // This step's gradients were awaited, so the stream has read the previous step's scalars.
  const std::span scalars(static_cast<kernels::UpdateScalars*>(scalars_.get()),
                          static_cast<std::size_t>(ScalarSets()));
  const kernels::UpdateScalars common{
      .learning_rate = learning_rate,
      .gradient_scale =
          (clip ? options_.clip_norm / gradient_norm : 1.0) / static_cast<double>(count)};
  std::fill(scalars.begin(), scalars.end(), common);
  rule_->SetScalars(step, scalars.first(static_cast<std::size_t>(rule_->ScalarSets())));
  if (options_.average > 0) scalars.back() = {.learning_rate = ShareOf(step)};
  const kernels::UpdateScalars* there = scalars.data();
  if (scalars_there_ != nullptr) {
    device::StartCopyIn(stream_, scalars.data(), scalars_there_.get(), ScalarBytes());
    there = static_cast<const kernels::UpdateScalars*>(scalars_there_.get());
  }
  rule_->Update(there, clear);
  if (options_.average > 0) {
    kernels::GradientDescent(stream_, registry_->SumType(), averages_, there + rule_->ScalarSets(),
                             false);
  }
  if (!clear) return;
  registry_->GradientsCleared();
  for (const Part& part : unowned_) {
    const Dtype type = registry_->SumType();
    device::SetZero(stream_, ElementAt(registry_->Gradients(), type, part.begin),
                    BytesOf(type, part.Size()));
  }
}

int Optimizer::ScalarSets() const { return rule_->ScalarSets() + (options_.average > 0 ? 1 : 0); }

std::int64_t Optimizer::ScalarBytes() const {
  return ScalarSets() * static_cast<std::int64_t>(sizeof(kernels::UpdateScalars));
}

void Optimizer::RoundMasters() {
  for (const OwnedParameter& part : owned_) {
    const kernels::UpdateRange& range = part.storage;
    if (range.copies == nullptr) continue;
    kernels::Convert(stream_, range.count, registry_->SumType(), range.values, registry_->Type(),
                     range.copies);
  }
}

void Optimizer::FollowWeights() {
  for (const kernels::UpdateRange& range : averages_) {
    device::CopyWithin(stream_, range.gradients, range.values,
                       BytesOf(registry_->SumType(), range.count));
  }
}

void Optimizer::ExchangeAverage() {
  for (const kernels::UpdateRange& range : averages_) {
    auto* weights = static_cast<std::byte*>(range.gradients);
    auto* average = static_cast<std::byte*>(range.values);
    const std::byte* const end = weights + BytesOf(registry_->SumType(), range.count);
    while (weights < end) {
      const std::int64_t bytes = std::min<std::int64_t>(end - weights, kExchangeBytes);
      device::CopyWithin(stream_, weights, exchanged_.get(), bytes);
      device::CopyWithin(stream_, average, weights, bytes);
      device::CopyWithin(stream_, exchanged_.get(), average, bytes);
      weights += bytes;
      average += bytes;
    }
  }
  RoundMasters();
}

std::vector<kernels::StateBlock> Optimizer::Blocks(int rank, int ranks, int sharers) const {
  std::vector<kernels::StateBlock> blocks;
  if (options_.average > 0) {
    blocks = registry_->MomentBlocks(average_.storage.get(), average_.prefix, rank, ranks, sharers);
  }
  for (const Moment& moment : rule_->Moments()) {
    auto more = registry_->MomentBlocks(moment.storage.get(), moment.prefix, rank, ranks, sharers);
    for (std::size_t id = 0; id < more.size(); ++id) {
      const std::int64_t place = moment.places.empty() ? 0 : moment.places[id];
      if (place < 0) continue;
      if (!moment.places.empty() && more[id].data != nullptr) {
        more[id].data = ElementAt(moment.storage.get(), registry_->SumType(), place);
      }
      blocks.push_back(std::move(more[id]));
    }
  }
  return blocks;
}

std::int64_t Optimizer::Bytes() const {
  return rule_->Bytes() + device::BytesOf(average_.storage) + device::BytesOf(exchanged_) +
         device::BytesOf(squares_there_) + device::BytesOf(scalars_there_);
}

// Rule: memory for moments, and the choice of a rule.

Rule::Rule(const RuleParts& parts, const std::vector<std::string>& prefixes)
    : stream_(parts.stream), dtype_(parts.registry.SumType()) {
  for (const std::string& prefix : prefixes) {
    moments_.push_back(
        {prefix,
         device::AllocateZeroed(BytesOf(dtype_, parts.registry.Owns().moments), stream_.Where())});
  }
}

void Rule::AddMoment(const RuleParts& parts, const std::string& prefix,
                     FunctionRef<bool(kernels::ParameterId)> keeps) {
  constexpr std::int64_t kLine = 16;  // elements, so that each parameter begins on a cache line
  std::vector<std::int64_t> places;
  for (int id = 0; id < std::ssize(parts.registry.Parameters()); ++id) {
    places.push_back(keeps(id) ? 0 : -1);
  }
  std::int64_t end = 0;
  for (const OwnedParameter& part : parts.owned) {
    std::int64_t& place = places.at(static_cast<std::size_t>(part.id));
    if (place < 0) continue;
    place = end;
    end += RoundUp(part.storage.count, kLine);
  }
  moments_.push_back(
      {prefix, device::AllocateZeroed(BytesOf(dtype_, end), stream_.Where()), std::move(places)});
}

void* Rule::MomentAt(std::size_t which, const OwnedParameter& part) const {
  const Moment& moment = moments_.at(which);
  const std::int64_t element =
      moment.places.empty() ? part.moment : moment.places.at(static_cast<std::size_t>(part.id));
  return ElementAt(moment.storage.get(), dtype_, element);
}

std::int64_t Rule::Bytes() const {
  std::int64_t bytes = 0;
  for (const Moment& moment : moments_) bytes += device::BytesOf(moment.storage);
  return bytes;
}

std::unique_ptr<Rule> MakeRule(const RuleParts& parts) {
  switch (parts.options.kind) {
    case OptimizerKind::kAdamW:
      return std::make_unique<AdamW>(parts);
    case OptimizerKind::kSgd:
      return std::make_unique<Sgd>(parts);
    case OptimizerKind::kLion:
      return std::make_unique<Lion>(parts);
    case OptimizerKind::kMuon:
      return std::make_unique<Muon>(parts);
  }
  throw RunError("an optimizer without a rule", "This is a bug in Trireme.");
}

bool NeedsWholeParameters(OptimizerKind kind) {
  return kind == OptimizerKind::kMuon;  // the others update each element by itself
}

int LeastState(const OptimizerOptions& options) {
  const int average = options.average > 0 ? 1 : 0;
  if (options.kind == OptimizerKind::kAdamW) return 2 + average;
  return (options.kind == OptimizerKind::kSgd && options.momentum == 0 ? 0 : 1) + average;
}

// AdamW: two moments, updated in one parallel pass over all owned elements.

void AdamWScalars::Set(std::int64_t step, kernels::UpdateScalars& scalars) const {
  scalars.beta1 = beta1;
  scalars.beta2 = beta2;
  scalars.epsilon = epsilon;
  scalars.correction1 = 1 - std::pow(beta1, static_cast<double>(step));
  scalars.correction2 = 1 - std::pow(beta2, static_cast<double>(step));
}

AdamW::AdamW(const RuleParts& parts)
    : Rule(parts, {"first_moment.", "second_moment."}),
      scalars_{parts.options.beta1, parts.options.beta2, parts.options.epsilon} {
  for (const OwnedParameter& part : parts.owned) {
    kernels::UpdateRange range = part.storage;
    range.first = MomentAt(0, part);
    range.second = MomentAt(1, part);
    ranges_.push_back(range);
  }
}

void AdamW::SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const {
  scalars_.Set(step, scalars.front());
}

void AdamW::Update(const kernels::UpdateScalars* scalars, bool clear) {
  kernels::AdamW(Stream(), Type(), ranges_, scalars, clear);
}

// Sgd: a parallel pass over all owned elements, after one over the momentum if there is any.

Sgd::Sgd(const RuleParts& parts)
    : Rule(parts, parts.options.momentum > 0 ? std::vector<std::string>{"first_moment."}
                                             : std::vector<std::string>{}) {
  for (const OwnedParameter& part : parts.owned) {
    ranges_.push_back(part.storage);
    if (Moments().empty()) continue;
    void* const momentum = MomentAt(0, part);
    gathers_.push_back({.count = part.storage.count,
                        .decay = 1 - parts.options.momentum,
                        .gradients = part.storage.gradients,
                        .values = momentum,
                        .scale = -1});
    ranges_.back().gradients = momentum;
  }
}

void Sgd::SetScalars(std::int64_t, std::span<kernels::UpdateScalars> scalars) const {
  if (gathers_.empty()) return;
  scalars[0].gradient_scale = 1;  // the momentum's gradients are scaled already
  scalars[1].learning_rate = 1;
}

void Sgd::Update(const kernels::UpdateScalars* scalars, bool clear) {
  if (!gathers_.empty()) {
    kernels::GradientDescent(Stream(), Type(), gathers_, scalars + 1, clear);
  }
  kernels::GradientDescent(Stream(), Type(), ranges_, scalars, clear && gathers_.empty());
}

// Lion: one moment.

Lion::Lion(const RuleParts& parts)
    : Rule(parts, {"first_moment."}), beta1_(parts.options.beta1), beta2_(parts.options.beta2) {
  for (const OwnedParameter& part : parts.owned) {
    ranges_.push_back(part.storage);
    ranges_.back().first = MomentAt(0, part);
  }
}

void Lion::SetScalars(std::int64_t, std::span<kernels::UpdateScalars> scalars) const {
  scalars.front().beta1 = beta1_;
  scalars.front().beta2 = beta2_;
}

void Lion::Update(const kernels::UpdateScalars* scalars, bool clear) {
  kernels::Lion(Stream(), Type(), ranges_, scalars, clear);
}

// The learning-rate schedule.

Schedule MakeSchedule(const ScheduleOptions& options, double peak, std::int64_t steps_of_epochs) {
  Schedule schedule{options, peak};
  if (schedule.steps == 0) schedule.steps = steps_of_epochs;
  return schedule;
}

double Schedule::Rate(std::int64_t step) const {
  if (step <= warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  double begin = static_cast<double>(warmup_steps);
  if (decay == Decay::kWsd) {
    begin = std::max(begin, static_cast<double>(steps) * (1 - decay_fraction));
  }
  const double span = std::max(1.0, static_cast<double>(steps) - begin);
  const double progress = std::clamp((static_cast<double>(step) - begin) / span, 0.0, 1.0);
  switch (decay) {
    case Decay::kConstant:
      return peak;
    case Decay::kCosine:
      return peak * (final_fraction +
                     (1 - final_fraction) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
    default:
      return peak * (1 - (1 - final_fraction) * progress);
  }
}

}  // namespace trireme::train
