// Token embedding with positions.
#ifndef TRIREME_MODEL_EMBEDDING_LAYER_HPP_
#define TRIREME_MODEL_EMBEDDING_LAYER_HPP_

#include <cstdint>

#include "trireme/model/parameter_place.hpp"
#include "trireme/model/pass.hpp"

namespace trireme::model {

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
  std::uint32_t site_ = 0;                        // of dropout
  std::int32_t first_;                            // first token of this rank's slice
  ParameterId weight_;                            // [vocabulary, dim]
  ParameterId positions_ = kernels::kNoParameter;  // [max_positions, dim]
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_EMBEDDING_LAYER_HPP_
