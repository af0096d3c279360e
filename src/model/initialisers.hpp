// Initial values of a model's parameters, and the part of each that this rank holds.
#pragma once

#include <cmath>
#include <string>
#include <utility>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// A matrix of `rows` x `columns`; `residual`: its product is added to the residual stream.
// kXavier: uniform, half-width sqrt(6 / (rows + columns)) (Glorot and Bengio 2010). kGpt2: residual
// projections are scaled by 1 / sqrt(2 blocks) (Radford et al. 2019, section 2.3).
inline kernels::Initialiser MatrixInitialiser(const Options& options, std::int64_t rows,
                                              std::int64_t columns, bool residual) {
  if (options.init == Init::kXavier) {
    return {kernels::InitialiserKind::kUniform,
            std::sqrt(6.0 / static_cast<double>(rows + columns))};
  }
  const bool scaled = residual && options.init == Init::kGpt2;
  const double divisor = scaled ? std::sqrt(2.0 * static_cast<double>(options.Blocks())) : 1.0;
  return {kernels::InitialiserKind::kNormal, options.init_deviation / divisor};
}

inline kernels::Parameter WeightOf(const Options& options, const std::string& name,
                                   std::int64_t rows, std::int64_t columns, bool residual = false,
                                   bool adjacent = false) {
  kernels::Parameter parameter;
  parameter.name = name + ".weight";
  parameter.shape = {rows, columns};
  parameter.initialiser = MatrixInitialiser(options, rows, columns, residual);
  parameter.decay = true;
  parameter.adjacent = adjacent;
  return parameter;
}

inline kernels::Parameter VectorOf(const std::string& name, std::int64_t size, double value,
                                   bool adjacent = false) {
  kernels::Parameter parameter;
  parameter.name = name;
  parameter.shape = {size};
  parameter.initialiser = {kernels::InitialiserKind::kConstant, value};
  parameter.adjacent = adjacent;
  return parameter;
}

inline kernels::Parameter BiasOf(const std::string& name, std::int64_t size,
                                 bool adjacent = false) {
  return VectorOf(name + ".bias", size, 0, adjacent);
}

// Registers rows `part` of the parameter (elements of a vector); `copies` tensor ranks hold them.
inline kernels::ParameterId AddSlice(const ParameterPlace& place, kernels::Parameter parameter,
                                     Part part, int copies = 1,
                                     kernels::GradientSum sum = kernels::GradientSum::kNone) {
  const std::int64_t row = kernels::ElementCount(parameter.shape) / parameter.shape[0];
  parameter.begin = place.held ? part.begin * row : 0;
  parameter.end = place.held ? part.end * row : 0;
  if (place.held) {
    parameter.copies = copies;
    parameter.copy = place.tensor.Rank() % copies;
    parameter.sum = sum;
  }
  return place.parameters.Add(std::move(parameter));
}

// Registers a parameter that every tensor rank holds whole.
inline kernels::ParameterId AddWhole(const ParameterPlace& place, kernels::Parameter parameter,
                                     kernels::GradientSum sum = kernels::GradientSum::kNone) {
  const Part whole{0, parameter.shape[0]};
  return AddSlice(place, std::move(parameter), whole, place.tensor.Size(), sum);
}

// Sums over slices of the contracted dimension: heads, hidden features, vocabulary. One product in
// the fast mode; canonical slices apart, joined in the fixed tree (doc/numerics.md).

// Levels of scratch that SumSlices needs: log2 of the slices.
inline int SliceLevels(int slices) {
  int levels = 0;
  while ((1 << levels) < slices) ++levels;
  return levels;
}

// y = sum of this rank's slices [begin, begin + count); product(slice, out) overwrites `out` with
// one of them. y: [rows, dim], no more rows than the workspace's.
template <typename Product>
void SumSlices(const Pass& pass, const kernels::Matrix& y, const Product& product, int begin,
               int count, int level) {
  if (count == 1) return product(begin, y);
  const std::int64_t most = pass.workspace.slices.rows / SliceLevels(pass.tensor->Slices());
  const kernels::Matrix right = pass.workspace.slices.Rows(level * most, y.rows);
  SumSlices(pass, y, product, begin, count / 2, level + 1);
  SumSlices(pass, right, product, begin + count / 2, count / 2, level + 1);
  kernels::Add(pass.stream, right, y);
}
template <typename Product>
void SumSlices(const Pass& pass, const kernels::Matrix& y, const Product& product) {
  SumSlices(pass, y, product, 0, pass.tensor->Slices(), 0);
}

}  // namespace trireme::model
