// Token embedding with positions.
#pragma once

#include <cstdint>

#include "trireme/device/memory.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/model/options.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// The fixed table of positions: angles of rotary positions, or sinusoidal positions.

class PositionTable {
 public:
  // Allocates and fills the table.
  PositionTable(const ModelPlan& plan, const StagePlan& local, const device::Stream& stream);
  std::int64_t Bytes() const { return device::BytesOf(storage_); }  // 0: this rank needs no table

  // Empty() unless the model has this kind of positions and this rank needs them.
  const kernels::Matrix& Rotary() const { return rotary_; }          // [length, head_dim]
  const kernels::Matrix& Sinusoidal() const { return sinusoidal_; }  // [length, dim]

 private:
  void Fill(const kernels::Matrix& table) const;

  device::Stream stream_;
  bool rope_;
  RopeAngles angles_;  // for rotary positions
  Dtype sums_, type_;  // types of the computation, of the stored table
  std::int64_t length_, columns_ = 0;
  device::Buffer storage_;
  kernels::Matrix rotary_, sinusoidal_;
};

// y = dropout(word dropout(scale * row of the token) + row of the position), scale = sqrt(dim)
// or 1. Word dropout drops a word's row for the whole window (Gal and Ghahramani 2016). A tensor
// rank holds a slice of the vocabulary.
class EmbeddingLayer {
 public:
  // Registers the parameters. The first stage holds learned positions and the token table; a tied
  // token table is also on the last stage.
  EmbeddingLayer(const ParameterPlace& tables, bool first_stage, bool last_stage, bool one_stage);
  // For the source texts of an encoder-decoder: shares the token table of `target` or has its own;
  // learned positions are its own. Held by the first stage.
  EmbeddingLayer(const ParameterPlace& tables, bool first_stage, const EmbeddingLayer& target);
  // positions: the fixed table [length, dim], or Empty() if positions are learned or rotary. full:
  // [tokens, dim], scratch if the stream is sharded, else y. y: [rows, dim].
  void Forward(const Pass& pass, const Matrix& positions, const Matrix& full,
               const Matrix& y) const;
  // Weight gradients only. dy: [rows, dim]; dropout is applied in place. full: scratch [tokens,
  // dim] if the stream is sharded, else dy.
  void BackwardWeight(const Pass& pass, const Matrix& dy, const Matrix& full) const;
  ParameterId Weight() const { return weight_; }
  ParameterId Positions() const { return positions_; }  // kNoParameter unless learned

 private:
  kernels::Dropout MakeDropout(const Pass& pass, std::int64_t first_row) const;
  // Word dropout in place, of vectors or their gradients. x: [tokens, dim].
  void DropWords(const Pass& pass, const Matrix& x) const;
  double scale_;
  double dropout_, word_dropout_;
  std::uint32_t site_ = 0;                         // number for dropout
  std::int32_t first_;                             // first token of this rank's slice
  ParameterId weight_;                             // [vocabulary, dim]
  ParameterId positions_ = kernels::kNoParameter;  // [max_positions, dim]
};

}  // namespace trireme::model
