// What a layout moves and keeps, from formulas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/train/training_plan.hpp"

namespace trireme::test {

// Contents of a rank's flat storage, from the sizes of the model and the layout alone: units,
// pieces, and a rank's own parts of them. Written down a second time, apart from the code that does
// it.

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

// Transfers of one training step on one rank, from the sizes of the model and the layout alone:
// written down a second time, apart from the code that does it.

struct Expected {
  std::int64_t calls = 0, payload = 0;  // bytes
};

// Without run.canonical.
class ExpectedTraffic {
 public:
  // blocks: how many this rank's stage holds; windows: of the step's batch.
  ExpectedTraffic(const train::TrainingOptions& setup, const comm::ProcessGrid& grid,
                  std::int64_t blocks, std::int64_t windows)
      : setup_(setup),
        o_(setup.model.options),
        grid_(grid),
        blocks_(blocks),
        storage_(setup, grid, blocks) {
    using comm::Group, comm::Transfer;
    bytes_ = setup.model.dtype == Dtype::kFloat64 ? 8 : 4;
    tensor_ = grid.Shape().tensor;
    stages_ = grid.Shape().pipeline;
    sharded_rows_ = grid.SequenceParallel() && tensor_ > 1;
    CountWindows(windows);
    AddTensor();
    AddRing();
    AddPipeline();
    AddDataSums();
    AddShards();
    AddNormsAndKeyValues();
    AddTiedTable();
    AddCopies();
    Add(Group::kShard, Transfer::kAllReduce, grid.Shard().Size(), 1, 8);
    Add(Group::kReplica, Transfer::kAllReduce, stages_ * tensor_, 1, 8);
    constexpr std::int64_t kAgreed = 11 * 8;  // faults, unread batches, four requests, five times
    constexpr std::int64_t kLoss = 71 * 8;    // an exact sum
    Add(Group::kWorld, Transfer::kAllReduce, grid.World().Size(), 1, kAgreed + kLoss);
    Add(Group::kWorld, Transfer::kBroadcast, grid.World().Size(), 1, 8);  // the norm
  }

  Expected At(comm::Group group, comm::Transfer transfer) const {
    const auto found = all_.find({group, transfer});
    return found == all_.end() ? Expected{} : found->second;
  }
  const ExpectedStorage& Storage() const { return storage_; }
  // Number of all-reduces that sum the gradients if nothing is sharded, and of those among them
  // that come last.
  std::int64_t Buckets() const { return Count(storage_.Pieces()); }
  std::int64_t LateBuckets() const { return storage_.LatePieces(); }
  std::int64_t MicroBatches() const { return Count(windows_); }  // empty ones among them

 private:
  template <typename List>
  static std::int64_t Count(const List& list) {
    return static_cast<std::int64_t>(list.size());
  }
  void Add(comm::Group group, comm::Transfer transfer, int size, std::int64_t calls,
           std::int64_t payload) {
    if (size == 1 || calls == 0) return;
    Expected& sum = all_[{group, transfer}];
    sum.calls += calls;
    sum.payload += payload;
  }
  static std::int64_t Share(std::int64_t total, std::int64_t which, std::int64_t parts) {
    return (which + 1) * total / parts - which * total / parts;
  }
  std::int64_t Slice(std::int64_t total) const {
    return Share(total, grid_.Coordinates().tensor, tensor_);
  }
  // Of a sequence, on a context rank.
  std::int64_t PositionsOn(int context) const {
    const int ranks = grid_.Shape().context;
    return PositionsOf(setup_.model.length, (context + ranks) % ranks, ranks).Count();
  }
  std::int64_t PositionsHere() const { return PositionsOn(grid_.Coordinates().context); }
  bool GathersAndScatters() const { return grid_.Shards() >= comm::Sharding::kGradients; }

  // Windows of each of this data rank's micro-batches: empty ones too, of an interleaved schedule
  // and where other ranks of the shard group have more.
  void CountWindows(std::int64_t windows) {
    const int ranks = grid_.Shape().data;
    const std::int64_t most =
        std::min(setup_.model.micro_batch, (setup_.samples.batch + ranks - 1) / ranks);
    std::int64_t left = Share(windows, grid_.Coordinates().data, ranks);
    for (; left > 0; left -= most) windows_.push_back(std::min(left, most));
    const std::int64_t largest = (windows + ranks - 1) / ranks;
    while (GathersAndScatters() && Count(windows_) * most < largest) windows_.push_back(0);
    const bool rounds = setup_.model.pipeline.kind == parallel::ScheduleKind::kInterleaved;
    while (rounds && Count(windows_) % stages_ != 0) windows_.push_back(0);
  }

  // The residual stream's exchanges, counted by what each sub-layer needs.
  void AddTensor() {
    using comm::Group, comm::Transfer;
    const bool first = grid_.FirstStage(), last = grid_.LastStage();
    const bool full = o_.recompute == model::Recompute::kFull;
    const bool post = o_.norm_position == model::NormPosition::kPost;
    // Sums: attention and ffn, forward and backward; the embedding's lookup; the head's gradient.
    // Full recomputation repeats the attention's and, behind which post-norm needs more, the ffn's.
    const std::int64_t again = !full ? 0 : post ? 2 : 1;
    const std::int64_t sums = blocks_ * (4 + again) + (first ? 1 : 0) + (last ? 1 : 0);
    // Gathers: inputs of both, forward; inputs and output gradients, backward; inputs once more
    // where recomputed; the embedding's gradient; the head's input.
    const std::int64_t gathers =
        blocks_ * (2 + 4 + (full ? 2 : 0)) + (first ? 1 : 0) + (last ? 1 : 0);
    for (const std::int64_t windows : windows_) {
      const std::int64_t tokens = windows * PositionsHere();
      if (tokens == 0) continue;
      const std::int64_t stream = tokens * o_.dim * bytes_;
      Add(Group::kTensor, sharded_rows_ ? Transfer::kReduceScatter : Transfer::kAllReduce, tensor_,
          sums, sums * stream);
      if (sharded_rows_)
        Add(Group::kTensor, Transfer::kAllGather, tensor_, gathers, gathers * stream);
      if (!last) continue;
      constexpr std::int64_t kTile = 512, kStatistics = 4 * 8;  // rows; bytes a row and rank
      Add(Group::kTensor, Transfer::kAllGather, tensor_, (tokens + kTile - 1) / kTile,
          tokens * kStatistics * tensor_);
    }
  }

  // Keys and values go round forward and backward (and forward once more where recomputed), their
  // gradients backward. A rank sends all blocks but the next rank's own, and receives all but its
  // own; of gradients it sends all but its own, and receives all but the previous rank's.
  void AddRing() {
    using comm::Group, comm::Transfer;
    const int ranks = grid_.Shape().context, here = grid_.Coordinates().context;
    const std::int64_t length = setup_.model.length;
    const std::int64_t heads = std::max<std::int64_t>(o_.kv_heads / tensor_, 1);
    const std::int64_t position = 2 * heads * o_.head_dim * bytes_;
    const std::int64_t rounds = o_.recompute == model::Recompute::kFull ? 3 : 2;
    for (const std::int64_t windows : windows_) {
      if (windows == 0) continue;
      const auto add = [&](Transfer transfer, int rank) {
        const std::int64_t positions =
            rounds * (length - PositionsOn(rank + 1)) + length - PositionsOn(rank);
        Add(Group::kContext, transfer, ranks, blocks_ * (rounds + 1) * (ranks - 1),
            blocks_ * windows * positions * position);
      };
      add(Transfer::kSend, here);
      add(Transfer::kReceive, here + ranks - 1);
    }
  }

  void AddPipeline() {
    using comm::Group, comm::Transfer;
    const int chunks = setup_.model.pipeline.kind == parallel::ScheduleKind::kInterleaved
                           ? setup_.model.pipeline.chunks
                           : 1;
    const int stage = grid_.Coordinates().pipeline;
    std::int64_t links = 0;  // to other virtual stages; each carries activations or gradients out
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int here = chunk * stages_ + stage;
      links += (here > 0 ? 1 : 0) + (here < chunks * stages_ - 1 ? 1 : 0);
    }
    for (const std::int64_t windows : windows_) {
      const std::int64_t tokens = windows * PositionsHere();
      const std::int64_t rows = sharded_rows_ ? Slice(tokens) : tokens;
      for (const Transfer transfer : {Transfer::kSend, Transfer::kReceive}) {
        Add(Group::kPipeline, transfer, stages_, links, links * rows * o_.dim * bytes_);
      }
    }
  }

  // Sums of this rank's own part over the ranks that own the same: once a step, whatever the number
  // of micro-batches.
  void AddDataSums() {
    std::int64_t calls = 0, elements = 0;
    for (const ExpectedPiece& piece : storage_.Pieces()) {
      const std::int64_t owned = storage_.Owned(piece.range).Size();
      calls += owned > 0 ? 1 : 0;
      elements += owned;
    }
    Add(comm::Group::kData, comm::Transfer::kAllReduce, grid_.SameShard().Size(), calls,
        elements * bytes_);
  }

  // Gradients to their owners and parameters to those who use them, by ZeRO's three stages.
  void AddShards() {
    using comm::Group, comm::Sharding, comm::Transfer;
    const int ranks = grid_.Shard().Size();
    const auto add = [&](Transfer transfer, std::int64_t calls, std::int64_t elements) {
      Add(Group::kShard, transfer, ranks, calls, elements * bytes_);
    };
    const std::int64_t all = storage_.Elements(), pieces = Count(storage_.Pieces());
    const std::int64_t scattered = GathersAndScatters() ? MicroBatches() : 1;
    add(Transfer::kReduceScatter, scattered * pieces, scattered * all);
    if (grid_.Shards() != Sharding::kParameters) return add(Transfer::kAllGather, pieces, all);
    std::int64_t uses = 0, elements = 0;
    for (const ExpectedUnit& unit : storage_.Units()) {
      uses += unit.uses;
      elements += unit.uses * unit.range.Size();
    }
    add(Transfer::kAllGather, MicroBatches() * uses, MicroBatches() * elements);
  }

  // Norms saw a shard of the rows each, norms of heads the rank's own heads, shared key/value heads
  // some of the queries each. One message a step; one a piece where pieces are scattered, before
  // they are.
  void AddNormsAndKeyValues() {
    using comm::Group, comm::Sharding, comm::Transfer;
    std::int64_t norms = 0, key_values = 0, of_norms = 0, of_key_values = 0;
    for (const ExpectedUnit& unit : storage_.Units()) {
      norms += (sharded_rows_ ? unit.norms : 0) + unit.head_norms;
      key_values += unit.key_values;
    }
    for (const ExpectedPiece& piece : storage_.Pieces()) {
      of_norms += (sharded_rows_ && piece.norms) || piece.head_norms ? 1 : 0;
      of_key_values += piece.key_values ? 1 : 0;
    }
    if (grid_.Shards() == Sharding::kNone) {
      of_norms = norms > 0 ? 1 : 0;
      of_key_values = key_values > 0 ? 1 : 0;
    }
    const std::int64_t times = GathersAndScatters() ? MicroBatches() : 1;
    Add(Group::kTensor, Transfer::kAllReduce, tensor_, times * of_norms, times * norms * bytes_);
    if (tensor_ > o_.kv_heads) {
      Add(Group::kKeyValue, Transfer::kAllReduce, tensor_ / static_cast<int>(o_.kv_heads),
          times * of_key_values, times * key_values * bytes_);
    }
  }

  // Traffic of the part of the tied table that this rank owns.
  void AddTiedTable() {
    if (!o_.tie_embeddings || stages_ == 1) return;
    for (const ExpectedUnit& unit : storage_.Units()) {
      if (unit.kind != UnitKind::kTable) continue;
      const Part owned = storage_.Owned(unit.range);
      // Without the gap behind the table.
      const std::int64_t end = std::min(owned.end, unit.range.begin + unit.table);
      const std::int64_t elements = std::max<std::int64_t>(0, end - owned.begin);
      Add(comm::Group::kEmbedding, comm::Transfer::kAllReduce, 2, elements > 0 ? 1 : 0,
          elements * bytes_);
    }
  }

  // One rank's bits for all copies of a gradient, where groups of three ranks or more made sums.
  void AddCopies() {
    using comm::Group;
    std::int64_t norms = 0, key_values = 0, complete = 0;
    for (const ExpectedUnit& unit : storage_.Units()) {
      (sharded_rows_ ? norms : complete) += unit.norms;
      norms += unit.head_norms;
      key_values += unit.key_values;
      complete += unit.whole;
    }
    const int heads = tensor_ > o_.kv_heads ? tensor_ / static_cast<int>(o_.kv_heads) : 1;
    if (tensor_ > 1) AddCopies(Group::kTensor, tensor_, complete, false);
    if (tensor_ > 1) AddCopies(Group::kTensor, tensor_, norms, true);
    if (heads > 1) AddCopies(Group::kKeyValue, heads, key_values, true);
  }
  void AddCopies(comm::Group group, int copies, std::int64_t elements, bool summed) {
    using comm::Group, comm::Sharding, comm::Transfer;
    const int data = grid_.SameShard().Size(), shard = grid_.Shard().Size();
    const std::int64_t calls = elements > 0 ? 1 : 0, bytes = elements * bytes_;
    if (grid_.Shards() == Sharding::kNone && summed) {
      return Add(Group::kData, Transfer::kBroadcast, data, copies > 2 ? calls : 0, bytes);
    }
    if (std::max(data, shard) <= 2) return;
    if (grid_.Shards() != Sharding::kNone) {
      Add(Group::kShard, Transfer::kAllReduce, shard, calls, bytes);
    }
    Add(group, Transfer::kBroadcast, copies, calls, bytes);
  }

  train::TrainingOptions setup_;
  model::Options o_;
  const comm::ProcessGrid& grid_;
  std::int64_t blocks_;
  ExpectedStorage storage_;
  std::int64_t bytes_ = 4;  // of an element
  int tensor_ = 1, stages_ = 1;
  bool sharded_rows_ = false;
  std::vector<std::int64_t> windows_;  // [micro-batches]
  std::map<std::pair<comm::Group, comm::Transfer>, Expected> all_;
};

}  // namespace trireme::test
