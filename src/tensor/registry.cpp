#include "trireme/tensor/registry.hpp"

#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::tensor {

namespace {

constexpr std::int64_t kAlignment =
    32;  // elements: 128 bytes in fp32, so that products start aligned

// Value of global element `index` of the tensor whose name hashes to `hash` (doc/numerics.md).
double InitialValue(const Initialiser& initialiser, std::uint32_t seed, std::uint64_t hash,
                    std::int64_t index) {
  if (initialiser.kind == InitialiserKind::kConstant) return initialiser.scale;
  const auto block = static_cast<std::uint64_t>(index / 4);
  const PhiloxCounter words =
      Philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
              static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)},
             MakeKey(seed, Purpose::kInitialise));
  const int lane = static_cast<int>(index % 4);
  if (initialiser.kind == InitialiserKind::kUniform) {
    return initialiser.scale * (2 * UniformFrom(words[lane]) - 1);
  }
  // Box-Muller: lanes (0, 1) and (2, 3) are two pairs, cosine first.
  const double radius = std::sqrt(-2 * std::log(UniformFrom(words[lane & ~1])));
  const double angle = 2 * std::numbers::pi * UniformFrom(words[lane | 1]);
  return initialiser.scale * radius * (lane % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace

// A parameter that this rank holds of the group of adjacent ones lies before this one.
bool Registry::BehindItsGroup(const Parameter& parameter) const {
  bool adjacent = parameter.adjacent;
  for (auto before = parameters_.rbegin(); adjacent && before != parameters_.rend(); ++before) {
    if (before->Held()) return true;
    adjacent = before->adjacent;
  }
  return false;
}

ParameterId Registry::Add(Parameter parameter) {
  if (parameter.end == kWhole) parameter.end = ElementCount(parameter.shape);
  if (parameter.begin < 0 || parameter.end < parameter.begin ||
      parameter.end > ElementCount(parameter.shape) || parameter.copy < 0 ||
      parameter.copy >= parameter.copies) {
    throw RunError("registry: " + parameter.name + " has no such elements or no such copy",
                   "This is a bug in Trireme.");
  }
  if (parameter.Held() && !BehindItsGroup(parameter)) {
    size_ = (size_ + kAlignment - 1) / kAlignment * kAlignment;
  }
  parameter.offset = size_;
  size_ += parameter.LocalSize();
  parameters_.push_back(std::move(parameter));
  return static_cast<ParameterId>(parameters_.size()) - 1;
}

void Registry::Allocate(Dtype dtype, bool gradients) {
  dtype_ = dtype;
  const auto bytes = size_ * static_cast<std::int64_t>(SizeOf(dtype));
  values_ = device::AllocateZeroed(bytes);
  if (gradients) gradients_ = device::AllocateZeroed(bytes);
}

void Registry::Initialise(std::uint32_t seed) {
  DispatchDtype(dtype_, [&](auto zero) {
    using T = decltype(zero);
    for (const Parameter& parameter : parameters_) {
      const std::uint64_t hash = XXH64(parameter.name.data(), parameter.name.size(), 0);
      T* values = static_cast<T*>(values_.get()) + parameter.offset;
#pragma omp parallel for schedule(static)
      for (std::int64_t i = parameter.begin; i < parameter.end; ++i) {
        // Rounded through fp32, so that an fp64 verification starts from the fp32 run's weights.
        values[i - parameter.begin] =
            static_cast<float>(InitialValue(parameter.initialiser, seed, hash, i));
      }
    }
  });
}

Matrix Registry::View(void* storage, ParameterId id, int count) const {
  const Parameter& first = parameters_.at(static_cast<std::size_t>(id));
  const bool vector = first.shape.size() < 2;
  const std::int64_t columns =
      vector ? 1 : ElementCount({first.shape.begin() + 1, first.shape.end()});
  std::int64_t elements = 0, offset = first.offset;
  for (int i = 0; i < count; ++i) {
    const Parameter& part = parameters_.at(static_cast<std::size_t>(id + i));
    if (i > 0 && !part.adjacent) throw RunError("registry: " + part.name + " is not adjacent");
    if (part.begin % columns != 0 || part.end % columns != 0) {
      throw RunError("registry: " + part.name + " is not held in whole rows");
    }
    if (elements == 0) offset = part.offset;
    elements += part.LocalSize();
  }
  Matrix view{nullptr, dtype_, elements / columns, columns, columns};
  if (vector) view = {nullptr, dtype_, elements > 0 ? 1 : 0, elements, elements};
  if (storage != nullptr && elements > 0) view.data = ElementAt(storage, dtype_, offset);
  return view;
}

void Registry::ZeroGradients() {
  std::memset(gradients_.get(), 0, static_cast<std::size_t>(size_) * SizeOf(dtype_));
}

std::vector<StateBlock> Registry::Blocks(void* storage, Dtype dtype, const std::string& prefix,
                                         int replica, int replicas) const {
  std::vector<StateBlock> blocks;
  blocks.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) {
    void* data = parameter.Held() ? ElementAt(storage, dtype, parameter.offset) : nullptr;
    blocks.push_back({prefix + parameter.name, parameter.shape, dtype, parameter.begin,
                      parameter.end, data, replica * parameter.copies + parameter.copy,
                      replicas * parameter.copies});
  }
  return blocks;
}

}  // namespace trireme::tensor
