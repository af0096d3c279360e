// What every layer needs to know about the pass it takes part in: where to run, which parameters,
// whose memory, which samples. And the scratch that all layers share.
#ifndef TRIREME_MODEL_PASS_HPP_
#define TRIREME_MODEL_PASS_HPP_

#include <cstdint>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/dropout.hpp"
#include "trireme/tensor/matrix.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::model {

// Scratch shared by all layers; nothing in it outlives one call of a layer.
struct Workspace {
  tensor::Matrix attention;  // panels of scores, one pair a thread
  tensor::Matrix reduction;  // partial sums over blocks of rows
  tensor::Matrix tile;       // [kTileTokens, vocabulary] logits, then their gradient
};

struct Pass {
  device::Stream stream;
  const tensor::Registry* registry = nullptr;
  device::Arena* arena = nullptr;
  Workspace workspace;
  const data::MicroBatch* batch = nullptr;  // null while the memory plan is measured
  std::int64_t sequences = 0;               // B of this micro-batch
  std::int64_t length = 0;                  // T
  std::uint32_t seed = 0;
  bool training = false;  // dropout acts
  bool causal = true;     // false in tests only: a model that sees its targets

  std::int64_t Tokens() const { return sequences * length; }
  Dtype Type() const { return registry->Type(); }
  tensor::Matrix Allocate(std::int64_t rows, std::int64_t columns) const {
    return tensor::Allocate(*arena, Type(), rows, columns);
  }
  tensor::Matrix Value(tensor::ParameterId id, int count = 1) const {
    return id == tensor::kNoParameter ? tensor::Matrix{} : registry->Value(id, count);
  }
  tensor::Matrix Gradient(tensor::ParameterId id, int count = 1) const {
    return id == tensor::kNoParameter ? tensor::Matrix{} : registry->Gradient(id, count);
  }
  kernels::Dropout MakeDropout(double probability, Purpose purpose, std::uint32_t layer,
                               std::uint32_t site = 0) const {
    return {training ? probability : 0.0,
            seed,
            purpose,
            layer,
            site,
            batch == nullptr ? nullptr : batch->ordinals.data(),
            length};
  }
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_PASS_HPP_
