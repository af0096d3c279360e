// EmbeddingLayer: parameters, forward pass and weight gradient. PositionTable.
#include "trireme/model/embedding_layer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::model {

// PositionTable: computed once on the host in the type of sums; rounded if stored in 16 bits.

PositionTable::PositionTable(const ModelPlan& plan, const StagePlan& local,
                             const device::Stream& stream)
    : stream_(stream),
      rope_(plan.options.position == Position::kRope),
      sums_(SumTypeOf(plan.dtype)),
      type_(rope_ ? sums_ : plan.dtype),
      length_(plan.length) {
  if (rope_) {
    columns_ = plan.options.head_dim;
    angles_ = RopeAnglesOf(plan.options);
  }
  // The embedding's stage adds sinusoidal positions.
  if (plan.options.position == Position::kSinusoidal && local.First()) columns_ = plan.options.dim;
  if (columns_ == 0) return;
  storage_ = device::AllocateZeroed(length_ * columns_ * static_cast<std::int64_t>(SizeOf(type_)),
                                    stream_.Where());
  const kernels::Matrix table{storage_.get(), type_, length_, columns_, columns_};
  (rope_ ? rotary_ : sinusoidal_) = table;
  if (!stream_.Planned()) Fill(table);
}

void PositionTable::Fill(const kernels::Matrix& there) const {
  const std::int64_t bytes = there.Size() * static_cast<std::int64_t>(SizeOf(type_));
  kernels::Matrix table = there;
  const device::Buffer made =
      device::AllocateZeroed(table.Size() * static_cast<std::int64_t>(SizeOf(sums_)));
  table.data = made.get();
  table.dtype = sums_;
  if (rope_) {
    kernels::RopeTable(angles_.frequencies, angles_.magnitude, table);
  } else {
    kernels::SinusoidalPositions(table);
  }
  if (type_ == sums_) return device::CopyIn(stream_, made.get(), there.data, bytes);
  std::vector<std::uint16_t> rounded(static_cast<std::size_t>(table.Size()));
  std::transform(table.As<float>(), table.As<float>() + table.Size(), rounded.begin(),
                 RoundToBfloat16);
  device::CopyIn(stream_, rounded.data(), there.data, bytes);
}

EmbeddingLayer::EmbeddingLayer(const ParameterPlace& tables, bool first_stage, bool last_stage,
                               bool one_stage)
    : scale_(tables.options.scale_embedding ? std::sqrt(static_cast<double>(tables.options.dim))
                                            : 1.0),
      dropout_(tables.options.dropout),
      word_dropout_(tables.options.word_dropout) {
  const Options& o = tables.options;
  const Part slice = tables.tensor.Slice(o.vocabulary);
  first_ = static_cast<std::int32_t>(slice.begin);
  const bool shared = o.tie_embeddings && !one_stage && (first_stage || last_stage);
  kernels::Parameter table = WeightOf(o, "embedding.token", o.vocabulary, o.dim);
  const bool held = first_stage || shared;
  table.begin = held ? slice.begin * o.dim : 0;
  table.end = held ? slice.end * o.dim : 0;
  if (o.tie_embeddings) {
    table.spare = kernels::VocabularySpareRows(tables.stream, slice.Size()) * o.dim;
  }
  if (shared) {
    // The first and the last stage each hold a copy and compute a term of the gradient.
    table.copies = 2;
    table.copy = first_stage ? 0 : 1;
    table.sum = kernels::GradientSum::kTied;
  }
  tables.parameters.BeginUnit("embedding.token");
  weight_ = tables.parameters.Add(table);
  if (o.position == Position::kLearned) {
    ParameterPlace positions = tables;
    positions.held = first_stage;
    tables.parameters.BeginUnit("embedding.position");
    positions_ = AddWhole(positions, WeightOf(o, "embedding.position", o.max_positions, o.dim));
  }
}

EmbeddingLayer::EmbeddingLayer(const ParameterPlace& tables, bool first_stage,
                               const EmbeddingLayer& target)
    : EmbeddingLayer(target) {
  const Options& o = tables.options;
  ParameterPlace place = tables;
  place.held = first_stage;
  site_ = 1;
  if (o.SourceVocabulary() > 0) {
    const Part slice = tables.tensor.Slice(o.SourceVocabulary());
    first_ = static_cast<std::int32_t>(slice.begin);
    tables.parameters.BeginUnit("embedding.source");
    weight_ = AddSlice(place, WeightOf(o, "embedding.source", o.SourceVocabulary(), o.dim), slice);
  }
  if (o.position == Position::kLearned) {
    tables.parameters.BeginUnit("embedding.source_position");
    positions_ = AddWhole(place, WeightOf(o, "embedding.source_position", o.max_positions, o.dim));
  }
}

kernels::Dropout EmbeddingLayer::MakeDropout(const Pass& pass, std::int64_t first_row) const {
  return pass.MakeDropout(dropout_, Purpose::kEmbeddingDropout, 0, site_, first_row);
}

void EmbeddingLayer::DropWords(const Pass& pass, const Matrix& x) const {
  kernels::Dropout dropout = pass.MakeDropout(0, Purpose::kWordDropout, 0, site_);
  dropout.row_probability = pass.training ? word_dropout_ : 0;
  dropout.row_purpose = Purpose::kWordDropout;
  dropout.words = pass.tokens.inputs;
  if (dropout.Active()) kernels::DropoutForward(pass.stream, x, dropout, x);
}

void EmbeddingLayer::Forward(const Pass& pass, const Matrix& positions, const Matrix& full,
                             const Matrix& y) const {
  kernels::EmbeddingForward(pass.stream, pass.tokens.inputs, first_, pass.Value(weight_), scale_,
                            full);
  DropWords(pass, full);
  pass.tensor->Reduce(full, y);
  kernels::PositionForward(pass.stream,
                           positions_ == kernels::kNoParameter ? positions : pass.Value(positions_),
                           pass.tokens.begins, MakeDropout(pass, pass.Rows().begin), y);
}

void EmbeddingLayer::BackwardWeight(const Pass& pass, const Matrix& dy, const Matrix& full) const {
  const kernels::Dropout dropout = MakeDropout(pass, pass.Rows().begin);
  if (dropout.Active()) kernels::DropoutForward(pass.stream, dy, dropout, dy);
  pass.tensor->Gather(dy, full);
  if (positions_ != kernels::kNoParameter) {
    kernels::PositionBackward(pass.stream, pass.tokens.begins, MakeDropout(pass, 0), full,
                              pass.Gradient(positions_));
  }
  DropWords(pass, full);
  kernels::EmbeddingBackward(pass.stream, pass.tokens.inputs, first_, scale_, full,
                             pass.Gradient(weight_));
}

}  // namespace trireme::model
