// Contents of a rank's flat storage, from the sizes of the model and the layout alone: units,
// pieces, and a rank's own parts of them. Written down a second time, apart from the code that does
// it.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_EXPECTED_STORAGE_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_EXPECTED_STORAGE_HPP_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/train/training_plan.hpp"

namespace trireme::test {

enum class UnitKind { kTable, kPositions, kBlock, kHead };

struct ExpectedUnit {
  UnitKind kind;
  Part range;                   // flat
  std::int64_t norms = 0;       // elements of these
  std::int64_t head_norms = 0;  // elements of those of queries and keys
  std::int64_t whole = 0;       // elements of all else that every tensor rank holds
  std::int64_t key_values = 0;  // elements of these weights and biases
  std::int64_t table = 0;       // elements of the token table
  std::int64_t of_model = 0;    // elements on all tensor ranks, each once
  std::int64_t uses = 0;        // of its values in a training micro-batch
};

// Elements scattered, gathered or summed in one go.
struct ExpectedPiece {
  Part range;
  bool norms = false, head_norms = false, key_values = false;  // holds some
};

class ExpectedStorage {
 public:
  // blocks: how many this rank's stage holds.
  ExpectedStorage(const train::TrainingOptions& setup, const comm::ProcessGrid& grid,
                  std::int64_t blocks)
      : o_(setup.model.options), grid_(grid), tensor_(grid.Shape().tensor) {
    bytes_ = setup.model.dtype == Dtype::kFloat64 ? 8 : 4;
    const bool first = grid.FirstStage(), last = grid.LastStage(), one = first && last;
    if (first || (last && o_.tie_embeddings)) {
      Begin(UnitKind::kTable, one && o_.tie_embeddings ? 2 : 1);
      Add(Slice(o_.vocabulary) * o_.dim);
      units_.back().table = Slice(o_.vocabulary) * o_.dim;
      units_.back().of_model = o_.vocabulary * o_.dim;
      End();
    }
    if (first && o_.position == model::Position::kLearned) {
      Begin(UnitKind::kPositions, 1);
      Add(o_.max_positions * o_.dim);
      units_.back().of_model = units_.back().whole = o_.max_positions * o_.dim;
      End();
    }
    tables_end_ = size_;
    for (std::int64_t block = 0; block < blocks; ++block) AddBlock();
    if (last) AddHead();
    FinishPieces(setup.model.bucket_bytes);
  }

  std::int64_t Elements() const { return size_; }  // gaps included
  const std::vector<ExpectedUnit>& Units() const { return units_; }
  const std::vector<ExpectedPiece>& Pieces() const { return pieces_; }  // from the end
  // Of the pieces, those that hold some of the embedding's tables: final when all else is.
  std::int64_t LatePieces() const {
    return std::count_if(pieces_.begin(), pieces_.end(),
                         [&](const auto& piece) { return piece.range.begin < tables_end_; });
  }
  std::int64_t BlockElements() const {  // of the largest
    std::int64_t most = 0;
    for (const ExpectedUnit& unit : units_) {
      if (unit.kind == UnitKind::kBlock) most = std::max(most, unit.range.Size());
    }
    return most;
  }
  std::int64_t NormElements() const {  // of one norm
    return o_.dim * (o_.bias && o_.norm == model::Norm::kLayerNorm ? 2 : 1);
  }

  // Part of a piece that this rank owns: whole lines.
  Part Owned(const Part& piece) const {
    if (grid_.Shards() == comm::Sharding::kNone) return piece;
    const std::int64_t lines = (piece.Size() + kLine - 1) / kLine;
    const std::int64_t rank = grid_.Shard().Rank(), ranks = grid_.Shard().Size();
    const auto at = [&](std::int64_t i) {
      return piece.begin + std::min(piece.Size(), i * lines / ranks * kLine);
    };
    return {at(rank), at(rank + 1)};
  }

 private:
  static constexpr std::int64_t kLine = 32;  // elements

  std::int64_t Slice(std::int64_t total) const {
    const std::int64_t which = grid_.Coordinates().tensor;
    return (which + 1) * total / tensor_ - which * total / tensor_;
  }
  void Align() { size_ = (size_ + kLine - 1) / kLine * kLine; }
  void Begin(UnitKind kind, std::int64_t uses) {
    Align();
    if (!units_.empty()) units_.back().range.end = size_;
    units_.push_back({.kind = kind, .range = {size_, size_}, .uses = uses});
  }
  // own: starts on a boundary; else right behind its predecessor.
  void Add(std::int64_t elements, bool own = true) {
    if (own) Align();
    if (elements > 0) starts_.push_back(size_);
    size_ += elements;
  }
  // Another unit follows in the model, whoever holds it, but behind the head.
  void End() {
    if (units_.back().kind != UnitKind::kHead) Align();
    units_.back().range.end = size_;
  }
  void AddNorm() {
    Add(o_.dim);
    if (NormElements() > o_.dim) Add(o_.dim);
    units_.back().norms += NormElements();
  }

  void AddBlock() {
    const std::int64_t queries = o_.heads / tensor_ * o_.head_dim;
    const std::int64_t keys = std::max<std::int64_t>(o_.kv_heads / tensor_, 1) * o_.head_dim;
    const std::int64_t ffn = Slice(o_.ffn), gates = Gated() ? 2 : 1;
    Begin(UnitKind::kBlock, 2);
    AddNorm();
    units_.back().head_norms = o_.qk_norm ? 2 * o_.head_dim : 0;
    if (o_.qk_norm) Add(o_.head_dim);
    if (o_.qk_norm) Add(o_.head_dim);
    for (const std::int64_t width : {o_.dim, o_.qkv_bias ? std::int64_t{1} : 0}) {
      Add(queries * width);
      Add(keys * width, false);
      Add(keys * width, false);
      units_.back().key_values += 2 * keys * width;
    }
    Add(queries * o_.dim);
    if (o_.bias) Add(o_.dim);
    AddNorm();
    for (const std::int64_t width : {o_.dim, o_.bias ? std::int64_t{1} : 0}) {
      Add(ffn * width);
      if (Gated()) Add(ffn * width, false);
    }
    Add(ffn * o_.dim);
    if (o_.bias) Add(o_.dim);
    if (o_.bias) units_.back().whole = 2 * o_.dim;  // outputs of attention and ffn
    const std::int64_t bias = o_.bias ? 1 : 0, heads = o_.heads * o_.head_dim;
    units_.back().of_model =
        2 * NormElements() + units_.back().head_norms +
        (heads + 2 * o_.kv_heads * o_.head_dim) * (o_.dim + (o_.qkv_bias ? 1 : 0)) +
        (heads + bias) * o_.dim + gates * o_.ffn * (o_.dim + bias) + (o_.ffn + bias) * o_.dim;
    End();
  }
  void AddHead() {
    const bool norm = o_.norm_position == model::NormPosition::kPre;
    if (!norm && o_.tie_embeddings) return;  // no unit
    Begin(UnitKind::kHead, 1);
    if (norm) AddNorm();
    if (!o_.tie_embeddings) Add(Slice(o_.vocabulary) * o_.dim);
    units_.back().of_model =
        (norm ? NormElements() : 0) + (o_.tie_embeddings ? 0 : o_.vocabulary * o_.dim);
    End();
  }
  bool Gated() const { return o_.activation == model::Activation::kSwiglu; }

  void AddPiece(const Part& range) {
    ExpectedPiece piece{range};
    for (const ExpectedUnit& unit : units_) {
      if (unit.range.begin < range.begin || unit.range.end > range.end) continue;
      piece.norms |= unit.norms > 0;
      piece.head_norms |= unit.head_norms > 0;
      piece.key_values |= unit.key_values > 0;
    }
    pieces_.push_back(piece);
  }

  // Buckets of parameters; groups of units; or units.
  void FinishPieces(std::int64_t bucket_bytes) {
    std::int64_t end = size_, share = 0;
    if (grid_.Shards() == comm::Sharding::kNone) {
      for (std::size_t i = starts_.size(); i-- > 0;) {
        if ((end - starts_[i]) * bytes_ < bucket_bytes && i > 0) continue;
        AddPiece({starts_[i], end});
        end = starts_[i];
      }
      return;
    }
    const bool groups = grid_.Shards() == comm::Sharding::kOptimizer;
    const bool tied = o_.tie_embeddings && grid_.Shape().pipeline > 1;
    for (std::size_t i = units_.size(); i-- > 0;) {
      const ExpectedUnit& unit = units_[i];
      // The table that two stages share is a piece of its own.
      if (groups && tied && unit.kind == UnitKind::kTable && end > unit.range.end) {
        AddPiece({unit.range.end, end});
        end = unit.range.end;
      }
      share += unit.of_model / tensor_;
      const bool alone = tied && unit.kind == UnitKind::kTable;
      if (groups && !alone && i > 0 && share * bytes_ < bucket_bytes) continue;
      AddPiece({unit.range.begin, end});
      end = unit.range.begin;
      share = 0;
    }
  }

  model::Options o_;
  const comm::ProcessGrid& grid_;
  std::int64_t tensor_, bytes_ = 4;
  std::int64_t size_ = 0, tables_end_ = 0;
  std::vector<std::int64_t> starts_;  // of parameters
  std::vector<ExpectedUnit> units_;
  std::vector<ExpectedPiece> pieces_;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_EXPECTED_STORAGE_HPP_
