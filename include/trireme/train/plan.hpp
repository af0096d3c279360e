// The plan of a run: an immutable value, made once from the deck's options, the number of ranks and
// facts about tokens and machine, from which everything is constructed. Pure: no MPI, no files, no
// memory for tensors.
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
#include "trireme/train/batch_share.hpp"
#include "trireme/train/options.hpp"
#include "trireme/train/training_plan.hpp"

namespace trireme::device {
class WorkLog;
}

namespace trireme::train {

struct Plan;
struct EvaluationPlan;

// Needs and work of one rank of a plan in a training step.
struct RankPlan {
  comm::GridShape at;          // coordinates
  device::MemoryTerms memory;  // bytes
  comm::Ledger traffic;        // of the step: calls, payload and moved bytes per group
  // Floating-point operations of the stage's tasks in the step, [chunks][kinds of task].
  std::vector<std::array<double, parallel::kTaskKinds>> operations;
};

// Ranks whose memory is alike.
struct RankKind {
  int first = 0;               // world rank of one of them
  std::int64_t ranks = 0;      // how many there are
  device::MemoryTerms memory;  // bytes of each
};

// Memory of one rank. Agrees to the byte with what that rank allocates.
device::MemoryTerms PlanMemory(const Plan& plan, int rank);
device::MemoryTerms PlanMemory(const EvaluationPlan& plan, int rank);

// Pieces in which a rank's state is shared out: their lengths are those of every place of its shard
// group.
kernels::Ownership PlanPieces(const Plan& plan, int rank);

// Throws InputError, which names the deck's key, if a transfer of this rank would be longer than
// MPI can count: of activations, gradients or sharded state, in a step or an evaluation.
void CheckTransfers(const Plan& plan, int rank);
void CheckTransfers(const EvaluationPlan& plan, int rank);

// Memory, and transfers and operations of a step of a whole batch. Agrees to the byte with what the
// rank's ledger counts. Throws as CheckTransfers does.
RankPlan PlanRank(const Plan& plan, int rank);
// The same of a step of at most a batch; log: told of all work and transfers, or null.
RankPlan PlanRank(const Plan& plan, int rank, const StepShape& step, device::WorkLog* log);

// All kinds of ranks, the one that needs most memory first.
std::vector<RankKind> PlanKinds(const Plan& plan);

// Facts about a file of pairs.
struct PairFacts {
  std::int64_t source_vocabulary = 0;  // types of the source texts
  bool shared_vocabulary = true;       // source and target texts have one
  std::int64_t pairs = 0;              // of the training split
  std::int64_t steps = 0;              // of an epoch, with the deck's limits
  std::int64_t batch = 0;              // most pairs of a step
  data::PairBatchShape typical = {};   // a step as most are; 0 pairs: not known
};

// Facts about the tokens, from the token file or assumed.
struct TokenFacts {
  std::int64_t vocabulary = 0;             // types; of pairs, those of the target texts
  std::int64_t train = 0;                  // tokens of the training split, of all files
  std::int64_t bytes = 0;                  // of memory per rank, as staged
  std::string source;                      // "wikitext2.h5", or where assumed numbers come from
  std::vector<data::Source> sources = {};  // files of data.mixture; empty: one file
  std::vector<std::string> contents = {};  // source_sha256 of each file; empty: not known
  // "books.h5 has no /valid/documents": the first of the splits that are read without; empty: none.
  std::string undocumented = {};
  bool loss_mask = false;               // the training split has one, of any file
  std::int64_t read_ahead = 0;          // steps whose windows are read ahead; 0: all in memory
  std::int64_t staged = 0;              // bytes of the copies on a node (data.staging = node)
  std::optional<PairFacts> pairs = {};  // of a model that translates
};

// Facts about what computes.
struct MachineFacts {
  Dtype dtype = Dtype::kFloat32;  // of values and activations
  device::Stream stream;          // threads of a rank, its GPU, bf16 and fp8 products
  bool gpu_staged = false;        // transfers of GPUs pass through the host
};

// Facts of a rank of so many threads. gpu: its card, which must outlive them; null: the CPU. Types
// are those of device::ArithmeticOf.
MachineFacts FactsOf(device::Precision precision, const device::Gpu* gpu, int threads);

// Everything that a plan is made of. All must outlive the call only.
struct Request {
  const DeckOptions& options;
  const deck::Deck& deck;  // for messages: the line of each key
  int ranks = 1;
  TokenFacts tokens;
  MachineFacts machine;
  bool async_checkpoints = false;
  data::Origin origin = {};  // of the steps of a run that is continued (data::MoveOrigin)
  std::int64_t steps = 0;  // of a continued run by schedule.epochs, if it keeps them; 0: by epochs
};

struct Plan {
  comm::GridShape grid;       // sizes of the axes
  comm::GridOptions sharing;  // sequence parallelism, sharding
  TrainingPlan training;      // the run on this grid, and as asked for, whatever the ranks
  MachineFacts machine;
  TokenFacts tokens;

  std::int64_t StepsPerEpoch() const {
    return tokens.pairs ? tokens.pairs->steps
                        : data::Sampler(training.options.samples).StepsPerEpoch();
  }
  // A step as a run has them: a whole batch; of pairs the typical one, if it is known.
  StepShape TypicalStep() const;
};

// Sizes of the grid's axes, which need no tokens. Throws InputError as MakePlan does.
comm::GridShape PlanGrid(const DeckOptions& options, const deck::Deck& deck, int ranks);

// Decides the layout: grid, shares of the batch, micro-batches, stages' blocks, schedule. Throws
// InputError with the deck's line for everything that can be refused: a grid that does not fill the
// ranks, a model that it cannot share, micro-batches that the schedule cannot take, arithmetic that
// the device does not have.
Plan MakePlan(const Request& request);

// For warnings, a sentence each: what is allowed and hardly anybody wants, such as ranks without
// work, a warm-up longer than the run, tokens that are skipped.
std::vector<std::string> Oddities(const Plan& plan);

// A model that does not learn, in the deck's layout: the grid and the model's plan.
struct EvaluationPlan {
  comm::GridShape grid;
  comm::GridOptions sharing;
  model::ModelPlan model;
  MachineFacts machine;
  TokenFacts tokens;
};
// As MakePlan. micro_batch: sequences that a rank takes at once; 0: as the deck says. cache_slots:
// sequences that are written at once, whose keys and values are kept, but for context ranks.
EvaluationPlan MakeEvaluationPlan(const Request& request, std::int64_t micro_batch = 0,
                                  std::int64_t cache_slots = 0);
// Whether a second copy of the weights serves this plan (model.pack_weights): 2 to 32 sequences are
// written at once, on CPUs, neither canonical nor in bf16, with parameters that are not sharded.
bool CanPackWeights(const EvaluationPlan& plan);

// Layout in words: "pipeline 2 x data 2 x context 1 x tensor 1; 1f1b, 8 micro-batches".
std::string DescribeLayout(const comm::GridShape& grid, const comm::GridOptions& sharing,
                           const model::ModelPlan& model);

// "2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters".
std::string DescribeModel(const model::Options& options);

// "; document masks; loss mask": those that are on.
std::string DescribeMasks(bool document_mask, bool loss_mask);

// Text that -v prints with grid.ranks: layout, memory of the largest rank and of each stage,
// transfers per group and operations of a step.
std::string Describe(const Plan& plan);

}  // namespace trireme::train
