// Token embedding with positions.
#pragma once

#include <cstdint>

#include "trireme/device/memory.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/model/options.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// The fixed table of positions: the angles of rotary ones, or sinusoidal ones.

class PositionTable {
 public:
  // Takes the memory and fills it.
  PositionTable(const ModelPlan& plan, const StagePlan& local, const device::Stream& stream);
  std::int64_t Bytes() const { return device::BytesOf(storage_); }  // 0: this rank needs no table

  // Empty() unless the model has this kind of positions, and this rank needs them.
  const kernels::Matrix& Rotary() const { return rotary_; }          // [length, head_dim]
  const kernels::Matrix& Sinusoidal() const { return sinusoidal_; }  // [length, dim]

 private:
  void Fill(const kernels::Matrix& table) const;

  device::Stream stream_;
  bool rope_;
  RopeAngles angles_;  // of rotary positions
  Dtype sums_, type_;  // of the computation; of the table as it is kept
  std::int64_t length_, columns_ = 0;
  device::Buffer storage_;
  kernels::Matrix rotary_, sinusoidal_;
};

// The token's row of the table, times sqrt(dim) if the model says so, plus the position's, with
// dropout. A tensor rank holds a slice of the vocabulary.
class EmbeddingLayer {
 public:
  // Learned positions are held by the first stage; the token table by the first stage and, if it is
  // tied, by the last.
  EmbeddingLayer(const ParameterPlace& tables, bool first_stage, bool last_stage, bool one_stage);
  // Of the source texts of a model that translates: `target`'s table, or one of their own, and
  // learned positions of their own; held by the first stage.
  EmbeddingLayer(const ParameterPlace& tables, bool first_stage, const EmbeddingLayer& target);
  // positions: the fixed table [length, dim], or Empty() if positions are learned or rotary.
  // y: [rows, dim]. full: [tokens, dim], scratch if the stream is sharded, else y.
  void Forward(const Pass& pass, const Matrix& positions, const Matrix& full,
               const Matrix& y) const;
  // There is no input gradient. dy: [rows, dim], masked in place; full: as above, with dy for y.
  void BackwardWeight(const Pass& pass, const Matrix& dy, const Matrix& full) const;
  ParameterId Weight() const { return weight_; }
  ParameterId Positions() const { return positions_; }  // kNoParameter unless they are learned

 private:
  kernels::Dropout MakeDropout(const Pass& pass, std::int64_t first_row) const;
  double scale_;
  double dropout_;
  std::uint32_t site_ = 0;                         // of dropout
  std::int32_t first_;                             // first token of this rank's slice
  ParameterId weight_;                             // [vocabulary, dim]
  ParameterId positions_ = kernels::kNoParameter;  // [max_positions, dim]
};

}  // namespace trireme::model
