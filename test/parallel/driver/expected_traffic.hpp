// What one training step must transfer on one rank, from the sizes of the model and the layout
// alone: written down a second time, apart from the code that does it.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_EXPECTED_TRAFFIC_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_EXPECTED_TRAFFIC_HPP_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/driver/training.hpp"

namespace trireme::test {

struct Expected {
  std::int64_t calls = 0, payload = 0;  // bytes
};

class ExpectedTraffic {
 public:
  // blocks: how many this rank's stage holds; windows: of the step's batch.
  ExpectedTraffic(const driver::TrainingSetup& setup, const comm::ProcessGrid& grid,
                  std::int64_t blocks, std::int64_t windows)
      : setup_(setup), o_(setup.model.options), grid_(grid), blocks_(blocks) {
    bytes_ = setup.model.dtype == Dtype::kFloat64 ? 8 : 4;
    tensor_ = grid.Shape().tensor;
    stages_ = grid.Shape().pipeline;
    sharded_ = grid.SequenceParallel() && tensor_ > 1;
    CountTokens(windows);
    AddTensor();
    AddNorms();
    AddPipeline();
    AddGradients();
    AddShared();
    Add(comm::Group::kReplica, comm::Transfer::kAllReduce, stages_ * tensor_, 1, 8);
    constexpr std::int64_t kAgreed = 10 * 8;  // loss, three requests, faults, five times
    Add(comm::Group::kWorld, comm::Transfer::kAllReduce, grid.World().Size(), 1, kAgreed);
  }

  Expected At(comm::Group group, comm::Transfer transfer) const {
    const auto found = all_.find({group, transfer});
    return found == all_.end() ? Expected{} : found->second;
  }
  // Elements of the flat storage of gradients, gaps included, and how many all-reduces sum it.
  std::int64_t Elements() const { return elements_; }
  std::int64_t Buckets() const { return buckets_; }
  // Of these, those that hold some of the embedding's tables: final when all else is.
  std::int64_t LateBuckets() const { return late_; }
  std::int64_t MicroBatches() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
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

  // Tokens of each of this data rank's micro-batches, empty ones of an interleaved schedule too.
  void CountTokens(std::int64_t windows) {
    const int ranks = grid_.Shape().data;
    const std::int64_t most =
        std::min(setup_.model.micro_batch, (setup_.batch + ranks - 1) / ranks);
    std::int64_t left = Share(windows, grid_.Coordinates().data, ranks);
    for (; left > 0; left -= most) tokens_.push_back(std::min(left, most) * setup_.model.length);
    const bool rounds = setup_.pipeline.kind == parallel::ScheduleKind::kInterleaved;
    while (rounds && tokens_.size() % static_cast<std::size_t>(stages_) != 0) tokens_.push_back(0);
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
    for (const std::int64_t tokens : tokens_) {
      if (tokens == 0) continue;
      const std::int64_t stream = tokens * o_.dim * bytes_;
      Add(Group::kTensor, sharded_ ? Transfer::kReduceScatter : Transfer::kAllReduce, tensor_, sums,
          sums * stream);
      if (sharded_) Add(Group::kTensor, Transfer::kAllGather, tensor_, gathers, gathers * stream);
      if (!last) continue;
      constexpr std::int64_t kTile = 512, kStatistics = 4 * 8;  // rows; bytes a row and rank
      Add(Group::kTensor, Transfer::kAllGather, tensor_, (tokens + kTile - 1) / kTile,
          tokens * kStatistics * tensor_);
    }
  }

  std::int64_t NormElements() const {
    return o_.dim * (o_.bias && o_.norm == model::Norm::kLayerNorm ? 2 : 1);
  }

  // Norms saw a shard of the rows each.
  void AddNorms() {
    const bool final_norm = grid_.LastStage() && o_.norm_position == model::NormPosition::kPre;
    const std::int64_t norms = 2 * blocks_ + (final_norm ? 1 : 0);
    if (!sharded_ || norms == 0) return;
    Add(comm::Group::kTensor, comm::Transfer::kAllReduce, tensor_, 1,
        norms * NormElements() * bytes_);
  }

  void AddPipeline() {
    using comm::Group, comm::Transfer;
    const int chunks =
        setup_.pipeline.kind == parallel::ScheduleKind::kInterleaved ? setup_.pipeline.chunks : 1;
    const int stage = grid_.Coordinates().pipeline;
    std::int64_t links = 0;  // to other virtual stages; each carries activations or gradients out
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int here = chunk * stages_ + stage;
      links += (here > 0 ? 1 : 0) + (here < chunks * stages_ - 1 ? 1 : 0);
    }
    for (const std::int64_t tokens : tokens_) {
      const std::int64_t rows = sharded_ ? Slice(tokens) : tokens;
      for (const Transfer transfer : {Transfer::kSend, Transfer::kReceive}) {
        Add(Group::kPipeline, transfer, stages_, links, links * rows * o_.dim * bytes_);
      }
    }
  }

  // Elements of this rank's parameters in their order; true: starts on a boundary of its own.
  std::vector<std::pair<std::int64_t, bool>> Parameters(bool tables) const {
    std::vector<std::pair<std::int64_t, bool>> list;
    const bool first = grid_.FirstStage(), last = grid_.LastStage();
    const auto add = [&](std::int64_t elements, bool own = true) {
      if (elements > 0) list.emplace_back(elements, own);
    };
    const auto norm = [&] {
      add(o_.dim);
      if (NormElements() > o_.dim) add(o_.dim);
    };
    if (tables) {
      if (first || (last && o_.tie_embeddings)) add(Slice(o_.vocabulary) * o_.dim);
      if (first && o_.position == model::Position::kLearned) add(o_.max_positions * o_.dim);
      return list;
    }
    const std::int64_t queries = o_.heads / tensor_ * o_.head_dim;
    const std::int64_t keys = std::max<std::int64_t>(o_.kv_heads / tensor_, 1) * o_.head_dim;
    const std::int64_t ffn = Slice(o_.ffn);
    const bool gated = o_.activation == model::Activation::kSwiglu;
    for (std::int64_t block = 0; block < blocks_; ++block) {
      norm();
      for (const std::int64_t width : {o_.dim, o_.bias ? std::int64_t{1} : 0}) {
        add(queries * width);
        add(keys * width, false);
        add(keys * width, false);
      }
      add(queries * o_.dim);
      if (o_.bias) add(o_.dim);
      norm();
      for (const std::int64_t width : {o_.dim, o_.bias ? std::int64_t{1} : 0}) {
        add(ffn * width);
        if (gated) add(ffn * width, false);
      }
      add(ffn * o_.dim);
      if (o_.bias) add(o_.dim);
    }
    if (last && o_.norm_position == model::NormPosition::kPre) norm();
    if (last && !o_.tie_embeddings) add(Slice(o_.vocabulary) * o_.dim);
    return list;
  }

  // Every gradient once, whatever the number of micro-batches, in buckets cut from the end.
  void AddGradients() {
    constexpr std::int64_t kBoundary = 32;
    std::vector<std::int64_t> starts;
    std::int64_t tables_end = 0;
    for (const bool tables : {true, false}) {
      for (const auto& [size, own] : Parameters(tables)) {
        if (own) elements_ = (elements_ + kBoundary - 1) / kBoundary * kBoundary;
        starts.push_back(elements_);
        elements_ += size;
      }
      if (tables) tables_end = elements_;
    }
    std::int64_t end = elements_;
    for (std::size_t i = starts.size(); i-- > 0;) {
      if ((end - starts[i]) * bytes_ < setup_.bucket_bytes && i > 0) continue;
      ++buckets_;
      late_ += starts[i] < tables_end ? 1 : 0;
      end = starts[i];
    }
    Add(comm::Group::kData, comm::Transfer::kAllReduce, grid_.Shape().data, buckets_,
        elements_ * bytes_);
  }

  void AddShared() {
    using comm::Group, comm::Transfer;
    if (tensor_ > o_.kv_heads && blocks_ > 0) {
      const std::int64_t block = 2 * o_.head_dim * (o_.dim + (o_.bias ? 1 : 0));
      Add(Group::kKeyValue, Transfer::kAllReduce, tensor_ / static_cast<int>(o_.kv_heads), 1,
          blocks_ * block * bytes_);
    }
    if (o_.tie_embeddings && (grid_.FirstStage() || grid_.LastStage())) {
      Add(Group::kEmbedding, Transfer::kAllReduce, stages_ > 1 ? 2 : 1, 1,
          Slice(o_.vocabulary) * o_.dim * bytes_);
    }
  }

  driver::TrainingSetup setup_;
  model::Options o_;
  const comm::ProcessGrid& grid_;
  std::int64_t blocks_;
  std::int64_t bytes_ = 4;  // of an element
  int tensor_ = 1, stages_ = 1;
  bool sharded_ = false;
  std::vector<std::int64_t> tokens_;  // [micro-batches]
  std::int64_t elements_ = 0, buckets_ = 0, late_ = 0;
  std::map<std::pair<comm::Group, comm::Transfer>, Expected> all_;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_EXPECTED_TRAFFIC_HPP_
