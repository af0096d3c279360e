#include <cmath>

#include "initialisers.hpp"
#include "trireme/kernels/embedding.hpp"
#include "trireme/model/layers.hpp"

namespace trireme::model {

EmbeddingLayer::EmbeddingLayer(const Options& options, tensor::Registry& registry)
    : scale_(options.scale_embedding ? std::sqrt(static_cast<double>(options.dim)) : 1.0),
      dropout_(options.dropout) {
  weight_ = registry.Add(WeightOf(options, "embedding.token", options.vocabulary, options.dim));
  if (options.position == Position::kLearned) {
    positions_ =
        registry.Add(WeightOf(options, "embedding.position", options.max_positions, options.dim));
  }
}

kernels::Dropout EmbeddingLayer::MakeDropout(const Pass& pass) const {
  return pass.MakeDropout(dropout_, Purpose::kEmbeddingDropout, 0);
}

void EmbeddingLayer::Forward(const Pass& pass, const Matrix& positions, const Matrix& y) const {
  kernels::EmbeddingForward(pass.stream, pass.batch->inputs.data(), pass.Value(weight_),
                            positions_ == tensor::kNoParameter ? positions : pass.Value(positions_),
                            scale_, MakeDropout(pass), y);
}

void EmbeddingLayer::BackwardWeight(const Pass& pass, const Matrix& dy) const {
  kernels::EmbeddingBackward(pass.stream, pass.batch->inputs.data(), scale_, MakeDropout(pass), dy,
                             pass.Gradient(weight_), pass.Gradient(positions_));
}

}  // namespace trireme::model
