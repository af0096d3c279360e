// A pass of one entry through the layers: where to run, which parameters, whose memory, which
// samples; and the scratch that all layers share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/key_value_cache.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/ring_attention.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

// Called with ranges of rows of a product as they are complete (kernels/linear.hpp).
using RowsDone = FunctionRef<void(const Part& rows)>;

// Scratch shared by all layers; nothing in it outlives one call of a layer.
struct Workspace {
  kernels::Matrix attention;   // panels of scores, a pair per thread; blocks that go round a ring
  kernels::Matrix reduction;   // partial sums over blocks of rows
  kernels::Matrix tile;        // scratch of the vocabulary's loss (HeadLayer::AllocateTile)
  kernels::Matrix statistics;  // fp64 [slices, 4 kTileTokens]: softmax statistics of all slices
  kernels::Matrix losses;      // fp64 [1, kTileTokens]
  kernels::Matrix slices;      // canonical, [levels rows, dim]: partial sums over slices
  kernels::Matrix norm_parts;  // canonical, [slices, 2 dim]: norms' gradients by parts of the rows
};

// How long a matrix is needed. Each lifetime has its own arena in each phase of a pass, so that
// recomputation and the delayed weight gradients of zero-bubble schedules need no other code.
struct Lifetimes {
  device::Arena* weight = nullptr;    // up to the weight gradient
  device::Arena* input = nullptr;     // up to the input gradient
  device::Arena* cheap = nullptr;     // up to the weight gradient, but cheap to compute again
  device::Arena* backward = nullptr;  // from the input gradient to the weight gradient
  device::Arena* scratch = nullptr;   // up to the end of the block
};

// Source texts as a decoder's blocks read them, and the gradient that they add to.
struct SourceStream {
  std::int64_t length = 0;                    // S, padding included; 0: there are none
  const std::int32_t* key_lengths = nullptr;  // [sequences]: without padding
  kernels::Matrix memory;                     // [rows, dim]: the encoder's output on this rank
  kernels::Matrix dmemory;                    // likewise: its gradient so far
};

// State of one pass; copied freely. Pointers are null or outlive the pass.
struct Pass {
  device::Stream stream;
  const kernels::Registry* registry = nullptr;
  const parallel::TensorGroup* tensor = nullptr;
  const parallel::RingAttention* ring = nullptr;
  const std::function<void()>* progress = nullptr;  // chances for transfers; may be empty
  Lifetimes lives;
  Workspace workspace;
  const data::Entry* batch = nullptr;  // null while the memory plan is measured
  StagedBatches::Entry tokens;         // arrays of `batch`, in the stream's memory
  kernels::Matrix rope;                // rotary positions: [length, head_dim], or Empty()
  double* losses = nullptr;            // [tokens], nats, on the host; pinned for a GPU
  std::int64_t sequences = 0;          // B of this micro-batch
  std::int64_t length = 0;             // T, or what this context rank has of it
  Positions positions;                 // of the micro-batch
  CachedPass cached;                   // keys and values that are kept
  SourceStream source;                 // of a decoder that translates
  std::uint32_t seed = 0;
  bool training = false;     // dropout acts
  bool causal = true;        // false for an encoder: positions see those after them
  bool weights_too = false;  // backward: weight gradients follow each layer's input gradient

  bool Dry() const { return batch == nullptr; }  // allocations only
  std::int64_t Tokens() const { return sequences * length; }
  std::int64_t SourceTokens() const { return sequences * source.length; }
  void Progress() const {
    if (progress != nullptr && *progress) (*progress)();
  }
  // Rows of the residual stream on this rank: all tokens, or a shard of them. Dry: the most that
  // any micro-batch has.
  Part Rows() const { return Dry() ? Part{0, tensor->MostRows(Tokens())} : tensor->Rows(Tokens()); }
  // The same of the source texts.
  Part SourceRows() const {
    return Dry() ? Part{0, tensor->MostRows(SourceTokens())} : tensor->Rows(SourceTokens());
  }
  Dtype Type() const { return registry->Type(); }
  kernels::Matrix Allocate(device::Arena* arena, std::int64_t rows, std::int64_t columns) const {
    return kernels::Allocate(*arena, Type(), rows, columns);
  }
  // A matrix of sums or statistics, whose type is no narrower than fp32.
  kernels::Matrix AllocateSums(device::Arena* arena, std::int64_t rows,
                               std::int64_t columns) const {
    return kernels::Allocate(*arena, registry->SumType(), rows, columns);
  }
  // Room for the transpose of an operand of fp8 products, if the weight gradient that needs it
  // follows in the same pass of the block: nothing is kept from one pass to another.
  kernels::Fp8Transpose AllocateTranspose(std::int64_t rows, std::int64_t columns) const {
    if (!stream.fp8 || !weights_too || lives.backward == nullptr) return {};
    return {lives.backward->Allocate(rows * columns)};
  }
  kernels::Matrix Value(kernels::ParameterId id, int count = 1) const {
    return id == kernels::kNoParameter ? kernels::Matrix{} : registry->Value(id, count);
  }
  // Gradients of a bias of dy's whole width. alike: tensor ranks hold it whole.
  kernels::BiasGradients BiasGradients(kernels::ParameterId id, int count, bool alike) const {
    return {.parts = {{0, Gradient(id, count)}},
            .scratch = workspace.reduction,
            .alike = alike && tensor->Size() > 1};
  }
  // A product with this weight is thin in a pass that continues texts.
  void MakeThin(kernels::Linear& linear, kernels::ParameterId weight) const {
    linear.thin = cached.continues;
    if (cached.weights != nullptr) linear.panels = cached.weights->PanelsOf(weight);
  }
  kernels::Matrix Gradient(kernels::ParameterId id, int count = 1) const {
    return id == kernels::kNoParameter ? kernels::Matrix{} : registry->Gradient(id, count);
  }
  // The dropout of a matrix whose row 0 is row `first_row` of the micro-batch.
  kernels::Dropout MakeDropout(double probability, Purpose purpose, std::uint32_t layer,
                               std::uint32_t site = 0, std::int64_t first_row = 0,
                               std::int64_t first_feature = 0) const {
    return {training ? probability : 0.0,
            seed,
            purpose,
            layer,
            site,
            tokens.ordinals,
            length,
            first_row,
            first_feature,
            positions};
  }
};

// Gradients of canonical leaves (run.canonical): each goes to the level of its group, and groups
// meet in the fixed tree (parallel::LeafSums). Nothing happens unless the model is canonical.

class LeafGradients {
 public:
  // The gradients of a unit that a task adds to: all; the `early` ones or the others, if weight
  // gradients are a task of their own; those of a tied table by the head.
  enum class Phase { kWhole, kEarly, kLate, kHead };

  // registry: of the gradients; must outlive this.
  LeafGradients(kernels::Registry& registry, const device::Stream& stream, bool canonical)
      : registry_(registry), stream_(stream), canonical_(canonical) {}

  // The next gradients of this unit and phase are those of a leaf of `group`. Groups come in order.
  void Enter(int unit, Phase phase, std::int64_t group);
  // Completes the sums of a step. Second gradients stay apart until AddSecond.
  void Finish();
  // Adds the second gradient of a tied table to its first, after the sums over the data group.
  void AddSecond() const;

 private:
  struct Tracker {
    std::vector<Part> ranges;  // flat
    parallel::LeafSums sums;
  };
  std::vector<Part> RangesOf(int unit, Phase phase) const;
  void Merge(const std::vector<Part>& ranges, int from, int to) const;

  kernels::Registry& registry_;
  device::Stream stream_;
  bool canonical_;
  std::map<std::pair<int, Phase>, Tracker> trackers_;  // of (unit, phase), as they come
};

}  // namespace trireme::model
