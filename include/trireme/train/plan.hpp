// The plan of a run: an immutable value, made once from the deck's options, the number of ranks,
// and facts about tokens and machine. Everything is constructed from it. Making and examining it
// needs no MPI, no files and no memory for tensors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory_terms.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/train/options.hpp"
#include "trireme/train/training_plan.hpp"

namespace trireme::device {
class WorkLog;
}

namespace trireme::train {

struct Plan;
struct EvaluationPlan;

// Memory, traffic and work of one rank in a training step.
struct RankPlan {
  comm::GridShape at;          // the rank's coordinates
  device::MemoryTerms memory;  // bytes
  comm::Ledger traffic;        // per step: calls, payload and moved bytes per group
  // Floating-point operations of the stage's tasks per step, [chunks][kinds of task].
  std::vector<std::array<double, parallel::kTaskKinds>> operations;
};

// Ranks that need the same memory.
struct RankKind {
  int first = 0;               // world rank of one of them
  std::int64_t ranks = 0;      // number of such ranks
  device::MemoryTerms memory;  // bytes of each
};

// Memory of one rank: exactly the bytes that it allocates.
device::MemoryTerms PlanMemory(const Plan& plan, int rank);
device::MemoryTerms PlanMemory(const EvaluationPlan& plan, int rank);

// Which elements this rank owns. All ranks of its shard group have the same list of pieces.
kernels::Ownership PlanPieces(const Plan& plan, int rank);

// Throws InputError, which names the deck's key, if a transfer of this rank (activations, gradients
// or sharded state, in a step or an evaluation) would exceed an MPI count.
void CheckTransfers(const Plan& plan, int rank);
void CheckTransfers(const EvaluationPlan& plan, int rank);

// Memory, and traffic and operations of a step with a whole batch. The traffic is exactly what the
// rank's ledger counts in such a step. Throws like CheckTransfers.
RankPlan PlanRank(const Plan& plan, int rank);
// The same for a step of the sizes in `step`, no larger than a whole batch. log: receives work and
// transfers; may be null.
RankPlan PlanRank(const Plan& plan, int rank, const StepShape& step, device::WorkLog* log);

// All kinds of ranks, the one that needs most memory first.
std::vector<RankKind> PlanKinds(const Plan& plan);

// Facts about a file of pairs.
struct PairFacts {
  std::int64_t source_vocabulary = 0;  // token types of the source texts
  bool shared_vocabulary = true;       // shared with the target texts
  std::int64_t pairs = 0;              // of the training split
  std::int64_t steps = 0;              // steps per epoch, with the deck's limits
  std::int64_t batch = 0;              // most pairs of a step
  data::PairBatchShape typical = {};   // of most steps; 0 pairs: unknown
};

// Facts about the tokens, read from the token file or assumed.
struct TokenFacts {
  std::int64_t vocabulary = 0;             // token types; for pairs, of the target texts
  std::int64_t train = 0;                  // tokens of the training split, over all files
  std::int64_t bytes = 0;                  // of tokens in memory per rank (data.staging)
  std::string source;                      // "wikitext2.h5", or the origin of assumed numbers
  std::vector<data::Source> sources = {};  // files of data.mixture; empty: one file
  std::vector<std::string> contents = {};  // source_sha256 of each file; empty: unknown
  // "books.h5 has no /valid/documents": the first split to be read that lacks them; empty: none.
  std::string undocumented = {};
  bool loss_mask = false;               // some file has one for the training split
  std::int64_t read_ahead = 0;          // steps read in advance; 0: all tokens are in memory
  std::int64_t staged = 0;              // bytes of copies per node (data.staging = node)
  std::optional<PairFacts> pairs = {};  // for encoder-decoders only
};

// Facts about the device that computes.
struct MachineFacts {
  Dtype dtype = Dtype::kFloat32;  // of values and activations
  device::Stream stream;          // a rank's GPU or threads; types of products
  bool gpu_staged = false;        // transfers between GPUs pass through the hosts
};

// Facts about a rank with this many threads. gpu: its GPU, which must outlive the facts; null: it
// computes on the CPU. Types come from device::ArithmeticOf.
MachineFacts FactsOf(device::Precision precision, const device::Gpu* gpu, int threads);

// Everything that a plan is made from. References need to live only as long as the call.
struct Request {
  const DeckOptions& options;
  const deck::Deck& deck;  // for error messages with the line of a key
  int ranks = 1;
  TokenFacts tokens;
  MachineFacts machine;
  bool async_checkpoints = false;
  data::Origin origin = {};  // of a continued run's samples (data::MoveOrigin)
  std::int64_t steps = 0;    // length that a continued run keeps; 0: the schedule decides
};

struct Plan {
  comm::GridShape grid;       // sizes of its axes
  comm::GridOptions sharing;  // sequence parallelism, sharding
  TrainingPlan training;      // the run as asked for, and completed for this grid
  MachineFacts machine;
  TokenFacts tokens;

  std::int64_t StepsPerEpoch() const {
    return tokens.pairs ? tokens.pairs->steps
                        : data::Sampler(training.options.samples).StepsPerEpoch();
  }
  // The size of a usual step: a whole batch; for pairs the typical one, if it is known.
  StepShape TypicalStep() const;
};

// The sizes of the grid's axes, for which no tokens are needed. Throws InputError like MakePlan.
comm::GridShape PlanGrid(const DeckOptions& options, const deck::Deck& deck, int ranks);

// Decides the layout: grid, shares of the batch, micro-batches, stages' blocks, schedule. Throws
// InputError with the deck's line if that is impossible: the grid does not fill the ranks or cannot
// divide the model, the schedule cannot take the micro-batches, or the device lacks the arithmetic.
Plan MakePlan(const Request& request);

// The parts of MakePlan that decide on run.canonical.

// batch: most windows of a step. Throws InputError with the deck's line if layout, model, precision
// or device rule out run.canonical.
parallel::Canonical MakeCanonical(const Request& request, const model::Options& model,
                                  const comm::GridShape& grid, std::int64_t batch);

// Throws InputError if data.micro_batch is given and not a multiple of the leaf.
void CheckLeaves(const Request& request, const parallel::Canonical& canonical);

// Warnings, one sentence each, about settings that are allowed but hardly ever intended: ranks
// without work, a warm-up longer than the run, tokens that are skipped.
std::vector<std::string> Oddities(const Plan& plan);

// The plan of a model that is not trained, in the deck's layout.
struct EvaluationPlan {
  comm::GridShape grid;
  comm::GridOptions sharing;
  model::ModelPlan model;
  MachineFacts machine;
  TokenFacts tokens;
};
// Like MakePlan. micro_batch: sequences that a rank computes at once; 0: as the deck says.
// cache_slots: sequences that are generated at once, whose keys and values are cached (not with
// several context ranks).
EvaluationPlan MakeEvaluationPlan(const Request& request, std::int64_t micro_batch = 0,
                                  std::int64_t cache_slots = 0);
// Whether a packed copy of the weights speeds this plan up (model.pack_weights): it must generate 2
// to 32 sequences at once on CPUs, neither canonical nor in bf16, with unsharded parameters.
bool CanPackWeights(const EvaluationPlan& plan);

// The layout in words: "pipeline 2 x data 2 x context 1 x tensor 1; 1f1b, 8 micro-batches".
std::string DescribeLayout(const comm::GridShape& grid, const comm::GridOptions& sharing,
                           const model::ModelPlan& model);

// "2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters".
std::string DescribeModel(const model::Options& options);

// "; document masks; loss mask", or only the one that is on; empty: neither.
std::string DescribeMasks(bool document_mask, bool loss_mask);

// The text that -v prints with grid.ranks: layout, memory of the largest rank and of each stage,
// and traffic per group and operations of a step.
std::string Describe(const Plan& plan);

}  // namespace trireme::train
