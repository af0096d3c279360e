// Registry: storages, views of them, and the owned elements of each parameter.
#include "trireme/kernels/registry.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::kernels {

namespace {

std::int64_t Bytes(Dtype dtype, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(SizeOf(dtype));
}

}  // namespace

Registry::Registry(ParameterList list, Dtype dtype, Ownership ownership, bool gradients,
                   const device::Stream& stream)
    : list_(std::move(list)),
      dtype_(dtype),
      ownership_(std::move(ownership)),
      stream_(stream),
      value_base_(Units().size(), nullptr),
      gradient_base_(Units().size(), nullptr),
      gradient_level_(Units().size(), 0),
      early_(Units().size(), false) {
  const device::Kind where = stream_.Where();
  values_ = device::AllocateZeroed(Bytes(dtype_, ownership_.values), where);
  if (!gradients) return;
  const std::int64_t sums = ownership_.gradients * ownership_.gradient_levels;
  gradients_ = device::AllocateZeroed(Bytes(SumType(), sums), where);
  if (ownership_.gradients_sharded && list_.EarlySize() > 0) {
    early_gradients_ = device::AllocateZeroed(Bytes(SumType(), list_.EarlySize()), where);
  }
  if (SumType() != dtype_) {
    masters_ = device::AllocateZeroed(Bytes(SumType(), ownership_.moments), where);
  }
}

Registry::Registry(const ParameterList& list, Dtype dtype, bool gradients,
                   const device::Stream& stream)
    : Registry(list, dtype, OwnAll(list.Size()), gradients, stream) {}

std::int64_t Registry::ValueBytes() const {
  return device::BytesOf(values_) + device::BytesOf(masters_);
}

std::int64_t Registry::GradientBytes() const {
  return device::BytesOf(gradients_) + device::BytesOf(early_gradients_);
}

void* Registry::GradientLevel(int level) const {
  return ElementAt(gradients_.get(), SumType(), level * ownership_.gradients);
}

Owned Registry::OwnedOf(ParameterId id) const {
  const Parameter& parameter = Parameters().at(static_cast<std::size_t>(id));
  const Part flat{parameter.offset, parameter.offset + parameter.LocalSize()};
  Owned owned{{flat.begin, flat.begin}};
  for (const Piece& piece : ownership_.pieces) {
    const std::int64_t begin = std::max(flat.begin, piece.own.begin);
    const std::int64_t end = std::min(flat.end, piece.own.end);
    if (begin >= end) continue;
    if (owned.flat.Size() == 0) {
      const std::int64_t skipped = begin - piece.own.begin;
      owned = {
          {begin, end}, piece.value + skipped, piece.gradient + skipped, piece.moment + skipped};
    } else if (begin == owned.flat.end) {
      owned.flat.end = end;  // unsharded: a very large parameter in several pieces, side by side
    } else {
      throw RunError("registry: " + parameter.name + " is owned in several places");
    }
  }
  return owned;
}

std::pair<Matrix, std::int64_t> Registry::ViewOf(ParameterId id, int count, Dtype dtype) const {
  const Parameter& first = Parameters().at(static_cast<std::size_t>(id));
  const bool vector = first.shape.size() < 2;
  const std::int64_t columns = vector ? 1 : ElementCount(std::span(first.shape).subspan(1));
  std::int64_t elements = 0, offset = first.offset;
  for (int i = 0; i < count; ++i) {
    const Parameter& part = Parameters().at(static_cast<std::size_t>(id + i));
    if (i > 0 && !part.adjacent) throw RunError("registry: " + part.name + " is not adjacent");
    if (part.begin % columns != 0 || part.end % columns != 0) {
      throw RunError("registry: " + part.name + " is not held in whole rows");
    }
    if (elements == 0) offset = part.offset;
    elements += part.LocalSize();
  }
  Matrix view{nullptr, dtype, elements / columns, columns, columns};
  if (vector) view = {nullptr, dtype, elements > 0 ? 1 : 0, elements, elements};
  return {view, offset};
}

namespace {
void RequireMemory(const void* base, const std::string& what, const std::string& name) {
  if (base != nullptr) return;
  throw RunError("registry: the " + what + " of " + name + " are not there",
                 "This is a bug in Trireme.");
}
}  // namespace

Matrix Registry::Value(ParameterId id, int count) const {
  auto [view, offset] = ViewOf(id, count, dtype_);
  if (view.rows == 0 || (values_ == nullptr && !ownership_.values_sharded)) return view;
  if (!ownership_.values_sharded) {
    view.data = ElementAt(values_.get(), dtype_, offset);
    return view;
  }
  const auto unit = static_cast<std::size_t>(UnitOf(id));
  RequireMemory(value_base_[unit], "values", Units()[unit].name);
  view.data = ElementAt(value_base_[unit], dtype_, offset - Units()[unit].range.begin);
  return view;
}

Matrix Registry::Gradient(ParameterId id, int count) const {
  auto [view, offset] = ViewOf(id, count, SumType());
  if (view.rows == 0 || gradients_ == nullptr) return view;
  const auto unit = static_cast<std::size_t>(UnitOf(id));
  if (!ownership_.gradients_sharded) {
    view.data = ElementAt(GradientLevel(gradient_level_[unit]), SumType(), offset);
    return view;
  }
  const auto at = static_cast<std::size_t>(id);
  if (early_[unit] && Parameters()[at].early) {
    view.data = ElementAt(early_gradients_.get(), SumType(), list_.EarlyOffset(id));
    return view;
  }
  RequireMemory(gradient_base_[unit], "gradients", Units()[unit].name);
  view.data = ElementAt(gradient_base_[unit], SumType(), offset - Units()[unit].range.begin);
  return view;
}

Matrix Registry::SecondGradient(ParameterId id) const {
  if (id != SecondOf()) return Gradient(id);
  auto [view, offset] = ViewOf(id, 1, SumType());
  if (view.rows == 0 || gradients_ == nullptr) return view;
  const auto unit = static_cast<std::size_t>(UnitOf(id));
  view.data = ElementAt(GradientLevel(gradient_level_[unit]), SumType(), Size());
  return view;
}

void Registry::BindValues(int unit, void* base) {
  value_base_.at(static_cast<std::size_t>(unit)) = base;
}

void Registry::BindGradients(int unit, void* base) {
  gradient_base_.at(static_cast<std::size_t>(unit)) = base;
}

void Registry::BindGradientLevel(int unit, int level) {
  gradient_level_.at(static_cast<std::size_t>(unit)) = level;
}

void Registry::BindEarly(int unit, bool early) {
  early_.at(static_cast<std::size_t>(unit)) = early;
}

void Registry::TakeEarly(int unit,
                         FunctionRef<void(void* from, void* to, std::int64_t count)> take) const {
  if (early_gradients_ == nullptr) return;
  for (std::size_t id = 0; id < Parameters().size(); ++id) {
    const Parameter& parameter = Parameters()[id];
    if (list_.UnitOf(static_cast<ParameterId>(id)) != unit || !parameter.early || !parameter.Held())
      continue;
    take(ElementAt(early_gradients_.get(), SumType(),
                   list_.EarlyOffset(static_cast<ParameterId>(id))),
         Gradient(static_cast<ParameterId>(id)).data, parameter.LocalSize());
  }
}

void Registry::ZeroGradients() {
  if (std::exchange(gradients_cleared_, false)) return;
  DropGradients();
  gradients_cleared_ = false;
}

void Registry::DropGradients() {
  const auto clear = [this](const device::Buffer& storage, std::int64_t elements) {
    if (storage == nullptr) return;
    device::SetZero(stream_, storage.get(), Bytes(SumType(), elements));
  };
  clear(gradients_, ownership_.gradients);  // other levels are left zero by their readers
  clear(early_gradients_, list_.EarlySize());
  GradientsCleared();
}

}  // namespace trireme::kernels
