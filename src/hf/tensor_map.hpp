// Names and shapes: tensors of a Hugging Face model, and the parameters that each is made of.
#ifndef TRIREME_SRC_HF_TENSOR_MAP_HPP_
#define TRIREME_SRC_HF_TENSOR_MAP_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/hf/config.hpp"
#include "trireme/model/options.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::hf {

// A parameter within a tensor: [rows, columns], or [rows].
struct MappedPart {
  std::string name;        // "blocks.0.attention.query.weight"
  kernels::Shape shape;     // of the parameter
  std::int64_t begin = 0;  // first row, among those of the tensor
};

struct MappedTensor {
  std::string name;         // "model.layers.0.self_attn.q_proj.weight"
  kernels::Shape shape;      // as stored
  bool transposed = false;  // stored as [columns, rows]
  bool copy = false;        // of parameters that another tensor holds: a tied head
  // Features of the residual stream, the last axis of its one parameter, are stored in Marian's
  // order: 0, 2, 4 ... (where sinusoidal positions have sines), then 1, 3, 5 ...
  bool halves = false;
  std::vector<MappedPart> parts = {};  // one below the other

  std::int64_t Rows() const { return transposed ? shape.back() : shape.front(); }
  std::int64_t Columns() const {  // of a row
    return shape.size() == 1 ? 1 : transposed ? shape.front() : shape.back();
  }
  std::int64_t Elements() const { return Rows() * Columns(); }
  bool Whole() const { return transposed || halves; }  // written at once, by one rank
};

// All tensors, in the order of the model's parameters; a tied head is the last one. Names as
// transformers writes them.
std::vector<MappedTensor> MapTensors(Family family, const model::Options& options);

// Prefix of all names but the head's that a file may leave out: "transformer."; empty: none.
std::string OptionalPrefix(Family family);

// True for a tensor that no weights are in: masks and tables of angles, which old versions wrote.
bool IsBuffer(Family family, const std::string& name);

}  // namespace trireme::hf

#endif  // TRIREME_SRC_HF_TENSOR_MAP_HPP_
