// The plan of a model: what is the same on all ranks (ModelPlan) and one rank's part of it
// (StagePlan). Models are constructed from both; neither changes afterwards.
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

// Where a layer puts its parameters, and the numbers of a block's linear layers.

using kernels::Matrix;
using kernels::ParameterId;

// Where a layer registers its parameters. tensor: cuts them among tensor ranks. held: this rank's
// stage holds the layer; if not, its parameters are only listed.
struct ParameterPlace {
  const Options& options;
  kernels::ParameterList& parameters;
  const parallel::TensorGroup& tensor;
  bool held = true;
  device::Stream stream;  // where products run
};

// The linear layers of a block, and their numbers in the model (kernels/linear.hpp).
enum class LinearSite : std::uint32_t { kQkv, kOutput, kUp, kDown };
inline constexpr int kSitesABlock = 4;
inline int SiteOf(std::uint32_t layer, LinearSite site) {
  return static_cast<int>(layer) * kSitesABlock + static_cast<int>(site);
}

// A model and how it is computed; the same on all ranks.
struct ModelPlan {
  Options options;
  Dtype dtype = Dtype::kFloat32;
  std::uint32_t seed = 1;
  std::int64_t length = 0;       // T: longest sequence
  std::int64_t micro_batch = 0;  // B: most sequences per entry
  std::int64_t tokens = 0;       // most tokens of an entry (pairs: of each side); 0: B T
  // Entries per micro-batch of the schedule; more than one if each is a canonical leaf.
  int leaves = 1;
  double label_smoothing = 0;
  double z_loss = 0;  // LossTerms::z
  // Sequences with cached keys and values; 0: none. Needs a single context rank and leaves = 1.
  std::int64_t cache_slots = 0;
  // Keep a second copy of the weights for products with few rows (kernels::PackedWeights). Only on
  // CPUs, without training, if values are not sharded.
  bool pack_weights = false;
  bool training = true;  // false: no gradients; memory for evaluation only
  bool causal = true;    // false only in tests: positions see later ones
  // Entries may contain several documents; attention and positions restart in each.
  bool document_mask = false;
  parallel::Canonical canonical;
  parallel::PipelineShape pipeline;     // micro_batches: most per step
  std::int64_t bucket_bytes = 4 << 20;  // size of a bucket of gradients
  bool whole_parameters = false;        // shard only between parameters, never within one
  int prefetch = 1;                     // units gathered ahead of their use
  bool overlap = true;                  // false: await each transfer where it starts
};

// One rank's part of a model, made by PlanStage; default-constructed, it belongs to no rank.
struct StagePlan {
  int stage = 0, stages = 1;           // position in the pipeline
  parallel::PipelineShape pipeline;    // micro_batches: as run, with padding
  std::vector<Part> chunks;            // [chunks]: blocks of each of the stage's chunks
  std::vector<parallel::Slots> slots;  // [chunks]: slots for activations
  Positions positions;                 // positions of each sequence on this rank
  std::int64_t tokens = 0;             // most per entry
  std::int64_t residual_rows = 0;      // most rows of an entry's residual streams on this rank
  // Most entries of a step or of a round of an evaluation; entries per round of an evaluation
  // (enough to fill the pipeline, few enough to keep memory small).
  std::int64_t entries = 0, evaluation_entries = 0;
  std::int64_t groups = 1;  // canonical: groups of leaves that this rank adds up
  parallel::ShardSetup shard;

  bool First() const { return stage == 0; }                  // has the embedding
  bool Last() const { return stage == stages - 1; }          // has the head
  std::int64_t Length() const { return positions.Count(); }  // positions of a sequence on this rank
};

// The part of rank `rank`. A pure function without MPI. Throws RunError unless the plan's stages
// are the grid's and its canonical groups a multiple of the data ranks.
StagePlan PlanStage(const ModelPlan& plan, const comm::GridShape& grid,
                    const comm::GridOptions& options, int rank);

// The bytes that the allocator counts for a buffer of `bytes` bytes.
std::int64_t BufferBytes(std::int64_t bytes);

// Checks that a layout suits a model.

// Whether so many tensor ranks and stages (of `chunks` chunks each) can share the model.
bool LayoutFits(const Options& options, int chunks, std::int64_t tensor, std::int64_t pipeline);

// Throws InputError with the deck's line if the grid or the pipeline does not suit the model:
// heads, hidden features and vocabulary against grid.tensor, layers against stages and chunks. The
// message names the nearest layouts that do.
void CheckLayout(const deck::Deck& deck, const Options& options, const comm::GridShape& grid,
                 const parallel::PipelineShape& pipeline);
// Throws InputError if a step's micro-batches do not suit the schedule. share: windows per data
// rank and step. micro_batch: sequences, a multiple of `unit`.
void CheckMicroBatches(const deck::Deck& deck, const parallel::PipelineShape& pipeline,
                       std::int64_t data_ranks, std::int64_t share, std::int64_t micro_batch,
                       std::int64_t unit = 1);

}  // namespace trireme::model
