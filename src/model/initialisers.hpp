// How the weights of a model start.
#ifndef TRIREME_MODEL_INITIALISERS_HPP_
#define TRIREME_MODEL_INITIALISERS_HPP_

#include <cmath>

#include "trireme/model/options.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::model {

// A matrix of `rows` x `columns`; `residual`: its product is added to the residual stream.
// kXavier: uniform, half-width sqrt(6 / (rows + columns)) (Glorot and Bengio 2010). kGpt2: residual
// projections are scaled by 1 / sqrt(2 layers) (Radford et al. 2019, section 2.3).
inline tensor::Initialiser MatrixInitialiser(const Options& options, std::int64_t rows,
                                             std::int64_t columns, bool residual) {
  if (options.init == Init::kXavier) {
    return {tensor::InitialiserKind::kUniform,
            std::sqrt(6.0 / static_cast<double>(rows + columns))};
  }
  const bool scaled = residual && options.init == Init::kGpt2;
  const double divisor = scaled ? std::sqrt(2.0 * static_cast<double>(options.layers)) : 1.0;
  return {tensor::InitialiserKind::kNormal, options.init_deviation / divisor};
}

inline tensor::Parameter WeightOf(const Options& options, const std::string& name,
                                  std::int64_t rows, std::int64_t columns, bool residual = false,
                                  bool adjacent = false) {
  return {.name = name + ".weight",
          .shape = {rows, columns},
          .initialiser = MatrixInitialiser(options, rows, columns, residual),
          .decay = true,
          .adjacent = adjacent};
}

inline tensor::Parameter BiasOf(const std::string& name, std::int64_t size, bool adjacent = false) {
  return {.name = name + ".bias",
          .shape = {size},
          .initialiser = {tensor::InitialiserKind::kConstant, 0.0},
          .adjacent = adjacent};
}

}  // namespace trireme::model

#endif  // TRIREME_MODEL_INITIALISERS_HPP_
