#include "trireme/optimizer/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/device/memory.hpp"

namespace trireme::optimizer {

Optimizer::Optimizer(const Options& options, tensor::Registry& registry,
                     const device::Stream& stream)
    : options_(options), registry_(&registry), stream_(stream) {
  // The host reads and writes its side of these, also if the stream is planned.
  const bool copies = stream.Where() == device::Kind::kCuda;
  const device::Kind host = copies ? device::Kind::kCuda : device::Kind::kCpu;
  if (options_.kind == Kind::kAdamW) {
    const auto size = static_cast<std::int64_t>(SizeOf(registry.SumType()));
    first_ = device::AllocateZeroed(registry.Owns().moments * size, stream.Where());
    second_ = device::AllocateZeroed(registry.Owns().moments * size, stream.Where());
  }
  if (stream.OnGpu()) {
    scalars_there_ = device::AllocateZeroed(sizeof(kernels::UpdateScalars), stream.Where());
  }
  scalars_ = device::AllocatePinned(sizeof(kernels::UpdateScalars), host);
  FindRanges();
  if (!stream.OnGpu()) return;
  const auto bytes = static_cast<std::int64_t>((counted_.size() + 1) * sizeof(double));
  squares_there_ = device::AllocateZeroed(bytes, stream.Where());
  squares_ = device::AllocatePinned(bytes, host);
}

void Optimizer::FindRanges() {
  const auto at = [this](void* storage, std::int64_t offset) {
    return storage == nullptr ? nullptr : ElementAt(storage, registry_->SumType(), offset);
  };
  const bool masters = registry_->Masters() != nullptr;
  const auto& parameters = registry_->Parameters();
  std::vector<Part> owned_gradients;
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const tensor::Owned owned = registry_->OwnedOf(static_cast<tensor::ParameterId>(id));
    const std::int64_t size = owned.flat.Size();
    if (size == 0) continue;
    void* const gradients = at(registry_->Gradients(), owned.gradient);
    void* const values = ElementAt(registry_->Values(), registry_->Type(), owned.value);
    updated_.push_back({.count = size,
                        .decay = parameters[id].decay ? options_.weight_decay : 0,
                        .gradients = gradients,
                        .values = masters ? at(registry_->Masters(), owned.moment) : values,
                        .first = at(first_.get(), owned.moment),
                        .second = at(second_.get(), owned.moment),
                        .copies = masters ? values : nullptr});
    if (parameters[id].copy == 0) counted_.push_back({size, gradients});
    owned_gradients.push_back({owned.gradient, owned.gradient + size});
  }
  // What lies between them, padding included.
  std::sort(owned_gradients.begin(), owned_gradients.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  std::int64_t end = 0;
  owned_gradients.push_back({registry_->Owns().gradients, registry_->Owns().gradients});
  for (const Part& part : owned_gradients) {
    if (part.begin > end) unowned_.push_back({end, part.begin});
    end = part.end;
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
  const auto& parameters = registry_->Parameters();
  std::size_t next = 0;  // of updated_, which has the parameters of which something is owned
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    if (registry_->OwnedOf(static_cast<tensor::ParameterId>(id)).flat.Size() == 0) continue;
    const kernels::UpdateRange& range = updated_[next++];
    const kernels::FlatRange gradients{range.count, range.gradients};
    if (!std::isfinite(kernels::SquareSum(stream_, registry_->SumType(), {&gradients, 1}))) {
      return parameters[id].name;
    }
  }
  return {};
}

void Optimizer::Step(std::int64_t step, double learning_rate, double gradient_norm,
                     std::int64_t count, bool clear) {
  const bool clip = options_.clip_norm > 0 && gradient_norm > options_.clip_norm;
  // The stream may still read those of the step before: that step's gradients were awaited since.
  auto* const scalars = static_cast<kernels::UpdateScalars*>(scalars_.get());
  *scalars = {.learning_rate = learning_rate,
              .beta1 = options_.beta1,
              .beta2 = options_.beta2,
              .epsilon = options_.epsilon,
              .correction1 = 1 - std::pow(options_.beta1, static_cast<double>(step)),
              .correction2 = 1 - std::pow(options_.beta2, static_cast<double>(step)),
              .gradient_scale =
                  (clip ? options_.clip_norm / gradient_norm : 1.0) / static_cast<double>(count)};
  const auto update = options_.kind == Kind::kAdamW ? kernels::AdamW : kernels::GradientDescent;
  const kernels::UpdateScalars* there = scalars;
  if (scalars_there_ != nullptr) {
    device::StartCopyIn(stream_, scalars, scalars_there_.get(), sizeof *scalars);
    there = static_cast<const kernels::UpdateScalars*>(scalars_there_.get());
  }
  update(stream_, registry_->SumType(), updated_, there, clear);
  if (!clear) return;
  registry_->GradientsCleared();
  for (const Part& part : unowned_) {
    const Dtype type = registry_->SumType();
    device::SetZero(stream_, ElementAt(registry_->Gradients(), type, part.begin),
                    part.Size() * static_cast<std::int64_t>(SizeOf(type)));
  }
}

void Optimizer::RoundMasters() {
  for (const kernels::UpdateRange& range : updated_) {
    if (range.copies == nullptr) continue;
    kernels::Convert(stream_, range.count, registry_->SumType(), range.values, registry_->Type(),
                     range.copies);
  }
}

std::vector<tensor::StateBlock> Optimizer::Blocks(int rank, int ranks, int sharers) const {
  if (options_.kind == Kind::kSgd) return {};
  auto blocks = registry_->MomentBlocks(first_.get(), "first_moment.", rank, ranks, sharers);
  auto second = registry_->MomentBlocks(second_.get(), "second_moment.", rank, ranks, sharers);
  blocks.insert(blocks.end(), second.begin(), second.end());
  return blocks;
}

std::int64_t Optimizer::Bytes() const {
  std::int64_t bytes = 0;
  for (const device::Buffer* buffer : {&first_, &second_, &squares_there_, &scalars_there_}) {
    bytes += device::BytesOf(*buffer);
  }
  return bytes;
}

}  // namespace trireme::optimizer
