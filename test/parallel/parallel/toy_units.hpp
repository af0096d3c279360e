// A toy model of units for tests of sharding: what is registered, what every element's value is,
// and what each rank finds for its gradient.
#ifndef TRIREME_TEST_PARALLEL_TOY_UNITS_HPP_
#define TRIREME_TEST_PARALLEL_TOY_UNITS_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/kernels/registry.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

inline kernels::ParameterId AddToy(kernels::ParameterList& list, const std::string& name,
                                   const kernels::Shape& shape, bool early = false,
                                   bool here = true) {
  kernels::Parameter parameter;
  parameter.name = name;
  parameter.shape = shape;
  parameter.early = early;
  if (!here) parameter.end = 0;
  return list.Add(parameter);
}

// embedding.token, blocks.0 ... of different sizes, one held elsewhere among them, head. Sizes are
// odd, so that lines, shards and units end in different places.
inline void AddToyUnits(kernels::ParameterList& list, int blocks = 3) {
  list.BeginUnit("embedding.token");
  AddToy(list, "embedding.token.weight", {53, 7});
  for (int i = 0; i < blocks; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    list.BeginUnit(name, true);
    AddToy(list, name + ".norm", {7}, true);
    AddToy(list, name + ".weight", {19 + 4 * i, 7});
    AddToy(list, name + ".bias", {3});
  }
  list.BeginUnit("blocks.elsewhere", true);
  AddToy(list, "blocks.elsewhere.weight", {5, 7}, false, false);
  list.BeginUnit("head");
  AddToy(list, "head.norm", {7}, true);
  AddToy(list, "head.bias", {29});
}

inline double ToyValue(std::int64_t flat) { return 1 + static_cast<double>(flat % 1013) / 8; }

// Small integers: their sums are exact in any order.
inline double ToyGradient(int rank, int micro_batch, std::int64_t flat) {
  return static_cast<double>(flat % 97 + 1) * (rank + 1) * (micro_batch + 2);
}
inline double ToyGradientSum(int ranks, int micro_batches, std::int64_t flat) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < micro_batches; ++i) sum += ToyGradient(rank, i, flat);
  }
  return sum;
}

// Owned values become ToyValue, all other stored ones something else.
inline void FillOwned(kernels::Registry& registry) {
  auto* values = static_cast<double*>(registry.Values());
  for (std::int64_t i = 0; i < registry.Owns().values; ++i) values[i] = -1;
  for (const kernels::Piece& piece : registry.Owns().pieces) {
    if (piece.range.begin >= registry.Size()) continue;
    for (std::int64_t i = piece.own.begin; i < piece.own.end; ++i) {
      values[piece.value + i - piece.own.begin] = ToyValue(i);
    }
  }
}

// Elements of the unit's parameters that are not ToyValue.
inline int WrongValues(const kernels::Registry& registry, int unit) {
  int wrong = 0;
  for (std::size_t i = 0; i < registry.Parameters().size(); ++i) {
    const auto id = static_cast<kernels::ParameterId>(i);
    const kernels::Parameter& parameter = registry.Parameters()[i];
    if (registry.UnitOf(id) != unit || !parameter.Held()) continue;
    const auto* values = registry.Value(id).As<double>();
    for (std::int64_t j = 0; j < parameter.LocalSize(); ++j) {
      if (values[j] != ToyValue(parameter.offset + j)) ++wrong;
    }
  }
  return wrong;
}

// Adds what a rank found to the unit's gradients, to those that are early (or not) alone.
inline void AddGradients(kernels::Registry& registry, int unit, int rank, int micro_batch,
                         bool early) {
  for (std::size_t i = 0; i < registry.Parameters().size(); ++i) {
    const auto id = static_cast<kernels::ParameterId>(i);
    const kernels::Parameter& parameter = registry.Parameters()[i];
    if (registry.UnitOf(id) != unit || !parameter.Held() || parameter.early != early) continue;
    auto* gradients = registry.Gradient(id).As<double>();
    for (std::int64_t j = 0; j < parameter.LocalSize(); ++j) {
      gradients[j] += ToyGradient(rank, micro_batch, parameter.offset + j);
    }
  }
}

// Owned gradients that are not the sum over so many ranks and micro-batches.
inline int WrongGradients(const kernels::Registry& registry, int ranks, int micro_batches) {
  int wrong = 0;
  const auto* gradients = static_cast<const double*>(registry.Gradients());
  for (std::size_t i = 0; i < registry.Parameters().size(); ++i) {
    const kernels::Owned owned = registry.OwnedOf(static_cast<kernels::ParameterId>(i));
    for (std::int64_t j = 0; j < owned.flat.Size(); ++j) {
      const double wanted = ToyGradientSum(ranks, micro_batches, owned.flat.begin + j);
      if (gradients[owned.gradient + j] != wanted) ++wrong;
    }
  }
  return wrong;
}

inline std::vector<int> HeldUnits(const kernels::Registry& registry) {
  std::vector<int> units;
  for (std::size_t i = 0; i < registry.Units().size(); ++i) {
    if (registry.Units()[i].range.Size() > 0) units.push_back(static_cast<int>(i));
  }
  return units;
}

}  // namespace trireme::parallel

#endif  // TRIREME_TEST_PARALLEL_TOY_UNITS_HPP_
