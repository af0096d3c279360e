// ParameterList: offsets of parameters and units in the flat range; and the ownership of all of it.
#include "trireme/kernels/parameter_list.hpp"

#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/kernels/ownership.hpp"

namespace trireme::kernels {

namespace {

// Elements: 128 bytes in fp32, so that products start aligned.
constexpr std::int64_t kAlignment = 32;

std::int64_t Aligned(std::int64_t size) { return CeilDivide(size, kAlignment) * kAlignment; }

}  // namespace

// Whether this rank holds an earlier one of the adjacent parameters that this one belongs to.
bool ParameterList::FollowsItsGroup(const Parameter& parameter) const {
  bool adjacent = parameter.adjacent;
  for (auto before = parameters_.rbegin(); adjacent && before != parameters_.rend(); ++before) {
    if (before->Held()) return true;
    adjacent = before->adjacent;
  }
  return false;
}

int ParameterList::BeginUnit(const std::string& name, bool block) {
  size_ = Aligned(size_);
  if (!units_.empty()) units_.back().range.end = size_;
  units_.push_back({name, {size_, size_}, block});
  return static_cast<int>(units_.size()) - 1;
}

ParameterId ParameterList::Add(Parameter parameter) {
  if (units_.empty()) BeginUnit("");
  if (parameter.end == kWhole) parameter.end = ElementCount(parameter.shape);
  if (parameter.begin < 0 || parameter.end < parameter.begin ||
      parameter.end > ElementCount(parameter.shape) || parameter.copy < 0 ||
      parameter.copy >= parameter.copies) {
    throw RunError("parameters: " + parameter.name + " has no such elements or no such copy",
                   "This is a bug in Trireme.");
  }
  if (parameter.Held() && !FollowsItsGroup(parameter)) size_ = Aligned(size_);
  parameter.offset = size_;
  if (!parameter.Held()) parameter.spare = 0;
  size_ += parameter.LocalSize() + parameter.spare;
  units_.back().range.end = size_;
  unit_of_.push_back(static_cast<int>(units_.size()) - 1);
  early_at_.push_back(early_size_);
  if (parameter.early) early_size_ += Aligned(parameter.LocalSize());
  parameters_.push_back(std::move(parameter));
  return static_cast<ParameterId>(parameters_.size()) - 1;
}

void ParameterList::AddSecondGradient(ParameterId id) {
  size_ = Aligned(size_);
  units_.back().range.end = size_;
  second_ = id;
  second_size_ = parameters_.at(static_cast<std::size_t>(id)).LocalSize();
}

Ownership OwnAll(std::int64_t size) {
  Ownership all;
  all.pieces = {{{0, size}, {0, size}}};
  all.values = all.gradients = all.moments = size;
  return all;
}

}  // namespace trireme::kernels
