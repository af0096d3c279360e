// The plan of a model, as values: what is the same on all ranks (ModelPlan) and one rank's part of
// it (StagePlan). Models are constructed from both; neither changes afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/options.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

// The place of a layer's parameters, and the numbers of a block's linear layers.

using kernels::Matrix;
using kernels::ParameterId;

// List that a layer adds its parameters to, the cut among tensor ranks, and whether this rank's
// stage holds the layer (if not, its parameters are only listed).
struct ParameterPlace {
  const Options& options;
  kernels::ParameterList& parameters;
  const parallel::TensorGroup& tensor;
  bool held = true;
  device::Stream stream;  // runs the products
};

// The linear layers of a block, and their numbers in the model (kernels/linear.hpp).
enum class LinearSite : std::uint32_t { kQkv, kOutput, kUp, kDown };
inline constexpr int kSitesABlock = 4;
inline int SiteOf(std::uint32_t layer, LinearSite site) {
  return static_cast<int>(layer) * kSitesABlock + static_cast<int>(site);
}

// A model and how it is computed: the same on all ranks.
struct ModelPlan {
  Options options;
  Dtype dtype = Dtype::kFloat32;
  std::uint32_t seed = 1;
  std::int64_t length = 0;       // T: longest sequence
  std::int64_t micro_batch = 0;  // B: most sequences of an entry
  std::int64_t tokens = 0;       // of an entry, if less than B T; of pairs, of either text
  // Entries of the batches that make up one micro-batch of the schedule: more than one if each is a
  // canonical leaf.
  int leaves = 1;
  double label_smoothing = 0;
  // Sequences whose keys and values are kept while text is written; 0: none. Without context ranks,
  // with one leaf per micro-batch.
  std::int64_t cache_slots = 0;
  // A second copy of the weights for passes of a few rows (kernels::PackedWeights), of a model that
  // does not learn, on CPUs, whose values are not sharded.
  bool pack_weights = false;
  bool training = true;  // false: no gradients, and the memory of evaluation
  bool causal = true;    // false in tests only: predictions see their targets
  // Whether entries may have begins of documents: attention and positions then restart in each.
  bool document_mask = false;
  parallel::Canonical canonical;
  parallel::PipelineShape pipeline;     // micro_batches: the most of a step
  std::int64_t bucket_bytes = 4 << 20;  // of a transfer of gradients
  bool whole_parameters = false;        // sharding cuts between parameters only
  int prefetch = 1;                     // units gathered ahead of their use
  bool overlap = true;                  // transfers run while the backward pass computes
};

// One rank's part of a model, made by PlanStage; default-constructed, it belongs to no rank.
struct StagePlan {
  int stage = 0, stages = 1;           // place along the pipeline
  parallel::PipelineShape pipeline;    // micro_batches: as many as a step really runs
  std::vector<Part> chunks;            // [chunks]: blocks of each of the stage's chunks
  std::vector<parallel::Slots> slots;  // [chunks]: micro-batches whose activations are kept
  Positions positions;                 // of each sequence, held by this rank
  std::int64_t tokens = 0;             // most of an entry
  std::int64_t residual_rows = 0;      // most rows of an entry's residual streams on this rank
  // Most entries of a step or a round of an evaluation, and entries per round of an evaluation:
  // enough to keep a pipeline full, few enough to keep memory small.
  std::int64_t entries = 0, evaluation_entries = 0;
  std::int64_t groups = 1;  // canonical: groups of leaves that this rank adds up
  parallel::ShardSetup shard;

  bool First() const { return stage == 0; }                  // has the embedding
  bool Last() const { return stage == stages - 1; }          // has the head
  std::int64_t Length() const { return positions.Count(); }  // of a sequence on this rank
};

// The part of `rank` of a grid. Pure; no MPI, no memory. Throws RunError unless the pipeline's
// stages are the grid's, and the canonical groups a multiple of its data ranks.
StagePlan PlanStage(const ModelPlan& plan, const comm::GridShape& grid,
                    const comm::GridOptions& options, int rank);

// Bytes of a buffer of this size, as the allocator counts it.
std::int64_t BufferBytes(std::int64_t bytes);

// Check that a layout suits a model; names of layouts that do.

// Whether this many tensor ranks and stages (of `chunks` chunks) can share the model.
bool LayoutFits(const Options& options, int chunks, std::int64_t tensor, std::int64_t pipeline);

// Throws InputError with the deck's line if the grid or the pipeline does not suit the model:
// heads, hidden features and vocabulary against grid.tensor, layers against stages and chunks.
// Names the nearest layouts of these ranks that do.
void CheckLayout(const deck::Deck& deck, const Options& options, const comm::GridShape& grid,
                 const parallel::PipelineShape& pipeline);
// Throws InputError if a step's micro-batches do not suit the schedule. share: windows of a data
// rank in a step; micro_batch: sequences at once, a multiple of `unit`.
void CheckMicroBatches(const deck::Deck& deck, const parallel::PipelineShape& pipeline,
                       std::int64_t data_ranks, std::int64_t share, std::int64_t micro_batch,
                       std::int64_t unit = 1);

}  // namespace trireme::model
