// One training step as a list of named tasks, on whatever grid of ranks it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/train/batch_loader.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

// Requests of one rank, combined (or) over all ranks by the agreement in the middle of a step.
struct Requests {
  bool signal = false;      // stop: a signal came
  bool walltime = false;    // stop: time is up
  bool checkpoint = false;  // write one after this step
  bool busy = false;        // an asynchronous checkpoint is under way
};

// Times of a step, seconds: from one agreement of the ranks to the next, so that the parts add up
// to the total.
struct StepTimes {
  double total = 0;
  double data = 0;
  double compute = 0;
  double exposed_communication = 0;  // waiting for transfers, but not for other stages
  double bubble = 0;                 // waiting for another pipeline stage's result
};

// Advice about a value that is not finite, and about a batch without a target.
inline constexpr const char* kFaultAdvice =
    "The weights were not changed. Lower optimizer.learning_rate or lengthen "
    "schedule.warmup_steps, and continue from the last checkpoint with -r.";
inline constexpr const char* kNoTargetAdvice =
    "The weights were not changed. The token file's /train/mask or, with data.document_mask, its "
    "documents leave no target in these windows: take a larger data.batch, or let such steps pass "
    "with run.max_bad_steps.";

// A value that is not finite, or a batch without targets, found before the weights changed; the
// same on every rank.
struct Fault {
  int rank = 0;      // of the grid's world, that found it; 0 for what all ranks found
  std::string what;  // "the gradient of blocks.1.ffn.down.weight (layer 2 of 2) is not finite"
  std::string more;  // of a loss, the first tensor: "; so is ..."; else empty
  bool no_target = false;  // none of the batch counts
  // "the loss is not finite on rank 3 (node07); so is the parameter head.weight". host: of the
  // rank, may be empty.
  std::string Text(const std::string& host = {}) const;
  const char* Advice() const { return no_target ? kNoTargetAdvice : kFaultAdvice; }
};

// Answer to a step with a fault: throw, or leave its update out.
enum class OnFault { kThrow, kSkip };

struct StepResult {
  double loss = 0;  // nats per token, over the global batch's counted targets
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  std::int64_t tokens = 0;   // of the global batch's windows: inputs with a target
  std::int64_t targets = 0;  // of these, targets that count: no mask leaves them out
  // With document masks, keys that the global batch's inputs see in a head of a layer; else 0.
  std::int64_t visible_keys = 0;
  StepTimes times;         // means over the ranks
  double own_compute = 0;  // seconds of this rank
  Requests requests;       // agreed: true if any rank asked
  // If it is there, the update was left out; loss and gradient_norm are not numbers.
  std::optional<Fault> fault;
};

class TrainingStep {
 public:
  // The state and the files of `tokens` must outlive the step.
  TrainingStep(TrainingState& state, const data::Corpus& tokens);
  // For a model that translates. Collective over the state's grid: AgreedError if data::PairBatches
  // refuses the pairs.
  TrainingStep(TrainingState& state, const data::PairFile& pairs);

  const StepLoader& Data() const { return *loader_; }
  // The order of windows, or that of pairs: only the one that this step was made for.
  const data::Sampler& Samples() const { return windows_->Samples(); }
  const data::PairBatches& Pairs() const { return pairs_->Order(); }
  const data::PairFile* FileOfPairs() const {  // null: windows
    return pairs_ == nullptr ? nullptr : &pairs_->File();
  }

  // Collective over the state's grid. Runs step number `step` (from 0): the weights move once.
  // If a loss or a gradient is not finite, all ranks either throw what World().Together throws,
  // naming the step, the rank and the tensor, or leave the update out: weights, moments and the
  // scales of fp8 stay as they are, and the next step takes nothing over. on_fault: the same on
  // all ranks.
  StepResult Run(std::int64_t step, const Requests& mine = {}, OnFault on_fault = OnFault::kThrow);
  // Calls look(targets) once, on all ranks, in the next step whose weights move, before they do:
  // the gradients are sums over the global batch's targets then. Its time is no part of the step.
  void BeforeNextUpdate(std::function<void(std::int64_t targets)> look) { look_ = std::move(look); }
  // Goes on at another place of the data: steps from origin.step on are counted from there. The
  // same on all ranks.
  void Move(const data::Origin& origin);

 private:
  void Begin();  // scales of fp8
  // The tasks, in order.
  void LoadBatch();         // tokens of this data rank's share
  void ComputeGradients();  // the pipeline's program; all-reduces start with the last micro-batch
  void SumGradients();      // over the data group, then within the replica
  void CountTargets();      // of the whole batch, where masks leave some out
  void MeasureGradient();   // sets its norm
  void AgreeOnStep(const Requests& mine);  // loss, requests, values that are not finite, times
  void LookAtGradients();                  // if somebody asked for it
  void UpdateWeights();                    // clipping and the optimizer
  // On a GPU, instead of ComputeGradients and SumGradients: queued, or launched as one graph; then
  // the host loads the next batch, if there is one, and waits.
  void GradientsOnGpu();
  void LoadNextBatch();
  void AwaitGradients();

  // Before the first step on a GPU: tries the matrix products out on this step's batch, drops the
  // gradients, and agrees with all ranks on the algorithm and scale of each product.
  void Rehearse();
  bool RecordsGraph() const;
  // Entries of the current batch in their place; the copy is queued.
  model::StagedBatches::Taken TakeBatch();
  void QueueOnGpu(model::StagedBatches::Taken batch);  // gradients and sums, kernel by kernel
  void RecordGraph(model::StagedBatches::Taken batch);

  device::Recorder* Trace() const { return Grid().Traffic().Trace(); }  // null: no timeline
  double Waited() const;  // seconds, for all transfers so far but those of the pipeline
  // Counts the time since `start`: these waits, and computation for the rest.
  void AddTimes(double start, double exposed, double bubble = 0);
  // A fault as one rank sees it. `order`: the lowest one is told.
  struct Finding {
    std::int64_t order = 0;
    std::string what, more = {};
  };
  Fault FindFault(bool finite_loss);  // collective
  Finding LookForFault(bool finite_loss);
  std::string Named(const std::string& parameter) const;  // with its layer
  void LeaveOutUpdate(OnFault on_fault);
  const comm::ProcessGrid& Grid() const { return state_.Grid(); }
  const device::Stream& Stream() const { return state_.Stream(); }
  model::ParallelModel& Net() { return state_.Net(); }
  const model::ParallelModel& Net() const { return state_.Net(); }

  TrainingState& state_;
  std::unique_ptr<StepLoader> loader_;
  BatchLoader* windows_ = nullptr;  // the loader, of windows
  PairLoader* pairs_ = nullptr;     // the loader, of pairs
  const bool masked_;               // how many targets count depends on the tokens

  std::int64_t step_ = 0;
  LoadedBatch now_, next_;   // batch of this step; on a GPU, of the next one
  StepTimes mine_;           // of this rank, since the last agreement
  double window_start_ = 0;  // of mine_.total, Seconds()
  StepResult result_;
  std::function<void(std::int64_t targets)> look_;  // at the next gradients; may be empty

  // On a GPU.
  device::Graph graph_;         // of a whole batch's gradients and sums
  bool graph_told_ = false;     // recorded while kernels were told apart
  comm::Ledger graph_traffic_;  // transfers of one launch
  bool warm_ = false;           // a whole batch has run kernel by kernel
  device::Event done_;          // the gradients are complete
  double gradients_start_ = 0, waited_before_ = 0, bubble_before_ = 0;
};

// run.products = auto: a file of this card and library version below XDG_CACHE_HOME, else below
// HOME/.cache; "" if neither is set. chosen: kernels::Libraries::Chosen().
std::string ChoicesFile(const std::string& chosen);

// Collective. World rank 0 reads the file and all ranks adopt its choices; no effect if the file is
// missing or of another card or library.
void TakeKeptChoices(const comm::Communicator& world, const std::string& file,
                     kernels::Libraries& libraries);
// Collective. All ranks adopt what each has chosen: for each product the choice of the lowest rank
// that has it. Ranks with the same products, as those of data replicas, send theirs once.
void AgreeOnChoices(const comm::Communicator& world, kernels::Libraries& libraries);
// World rank 0 writes the file anew, by way of a temporary one. A failure to write is a warning: a
// later run may then choose, and round, otherwise.
void KeepChoices(const comm::Communicator& world, const std::string& file,
                 const kernels::Libraries& libraries);

}  // namespace trireme::train
