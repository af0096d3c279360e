// One training step as a list of named tasks, on any grid of ranks.
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

// Requests of one rank. The agreement in each step combines them (logical or) over all ranks.
struct Requests {
  bool signal = false;      // stop, because a signal came
  bool walltime = false;    // stop, because time is up
  bool checkpoint = false;  // write a checkpoint after this step
  bool busy = false;        // an asynchronous checkpoint is being written
};

// Times of a step in seconds, from one agreement of the ranks to the next. The parts add up to the
// total, except for the arithmetic in sums of gradients over ranks.
struct StepTimes {
  double total = 0;
  double data = 0;
  double compute = 0;
  double exposed_communication = 0;  // waiting for transfers, except those in `bubble`
  double bubble = 0;                 // waiting for another pipeline stage's result
};

// Advice for a value that is not finite, and for a batch without targets.
inline constexpr const char* kFaultAdvice =
    "The weights were not changed. Lower optimizer.learning_rate or lengthen "
    "schedule.warmup_steps, and continue from the last checkpoint with -r.";
inline constexpr const char* kNoTargetAdvice =
    "The weights were not changed. The token file's /train/mask or, with data.document_mask, its "
    "documents leave no target in these windows: take a larger data.batch, or let such steps pass "
    "with run.max_bad_steps.";

// A value that is not finite, or a batch without targets, found before the weights changed. Every
// rank has the same Fault.
struct Fault {
  int rank = 0;      // world rank that found it; 0 if all ranks did
  std::string what;  // "the gradient of blocks.1.ffn.down.weight (layer 2 of 2) is not finite"
  std::string more;  // names a second tensor, "; nor is ..."; may be empty
  bool no_target = false;  // no target of the batch counts
  // "the loss is not finite on rank 3 (node07); nor is the parameter head.weight". host: name of
  // the rank's host; may be empty.
  std::string Text(const std::string& host = {}) const;
  const char* Advice() const { return no_target ? kNoTargetAdvice : kFaultAdvice; }
};

// What to do in a step with a fault: throw, or leave out its update.
enum class OnFault { kThrow, kSkip };

struct StepResult {
  double loss = 0;  // nats per token, mean over the global batch's targets that count
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  std::int64_t tokens = 0;   // input tokens of the global batch that have a target
  std::int64_t targets = 0;  // those whose target counts: no mask excludes it
  // With document masks: keys that the global batch's queries see in one head of one layer; else 0.
  std::int64_t visible_keys = 0;
  StepTimes times;         // means over the ranks
  double own_compute = 0;  // seconds of this rank
  Requests requests;       // true if any rank asked
  // If set, the update was left out, and loss and gradient_norm are NaN.
  std::optional<Fault> fault;
};

class TrainingStep {
 public:
  // `state` and the files of `tokens` must outlive this.
  TrainingStep(TrainingState& state, const data::Corpus& tokens);
  // For an encoder-decoder. Collective over the state's grid. Throws AgreedError if
  // data::PairBatches refuses the pairs.
  TrainingStep(TrainingState& state, const data::PairFile& pairs);

  const StepLoader& Data() const { return *loader_; }
  // The order of windows, or of pairs: call only the one for which this step was made.
  const data::Sampler& Samples() const { return windows_->Samples(); }
  const data::PairBatches& Pairs() const { return pairs_->Order(); }
  const data::PairFile* FileOfPairs() const {  // null if trained on windows
    return pairs_ == nullptr ? nullptr : &pairs_->File();
  }

  // Runs step `step` (from 0), which updates the weights once. Collective over the state's grid.
  // If a loss or a gradient is not finite, or no target counts, all ranks do what `on_fault` says:
  // kThrow throws an error that names the step, the rank and the tensor; kSkip leaves out the
  // update and changes no weights, moments or fp8 scales. `on_fault` is the same on all ranks.
  StepResult Run(std::int64_t step, const Requests& mine = {}, OnFault on_fault = OnFault::kThrow);
  // Calls look(targets) once, on all ranks, just before the next update of the weights: the
  // gradients are then sums over the global batch's targets. The step's times exclude it.
  void BeforeNextUpdate(std::function<void(std::int64_t targets)> look) { look_ = std::move(look); }
  // Continues at another place of the data: step origin.step begins at this origin, and later steps
  // follow. The origin is the same on all ranks.
  void Move(const data::Origin& origin);

 private:
  void Begin();  // sets the scales of fp8
  // The tasks of a step, in order.
  void LoadBatch();         // tokens of this data rank's share
  void ComputeGradients();  // the pipeline's program; all-reduces start with the last micro-batch
  void SumGradients();      // over the data group, then within the replica
  void CountTargets();      // of the whole batch, if there are masks
  void MeasureGradient();   // sets result_.gradient_norm
  void AgreeOnStep(const Requests& mine);  // loss, requests, values that are not finite, times
  void LookAtGradients();                  // calls look_, if it is set
  void UpdateWeights();                    // clipping and the optimizer
  // On a GPU, these replace ComputeGradients and SumGradients: the work is queued or launched as
  // one graph; then the host loads the next batch, if there is one, and waits.
  void GradientsOnGpu();
  void LoadNextBatch();
  void AwaitGradients();

  // Before the first step on a GPU: tries out matrix products on this step's batch, discards the
  // gradients, and agrees with all ranks on each product's algorithm and scale.
  void Rehearse();
  bool RecordsGraph() const;
  // Takes the current batch's entries; on a GPU, their copy is queued.
  model::StagedBatches::Taken TakeBatch();
  void QueueOnGpu(model::StagedBatches::Taken batch);  // gradients and sums, kernel by kernel
  void RecordGraph(model::StagedBatches::Taken batch);

  device::Recorder* Trace() const { return Grid().Traffic().Trace(); }  // null: no timeline
  double Waited() const;  // seconds, for all transfers so far except the pipeline's
  // Adds the time since `start` to mine_: these two waits, and the rest as computation.
  void AddTimes(double start, double exposed, double bubble = 0);
  // A fault as one rank sees it. The finding with the lowest `order` is reported.
  struct Finding {
    std::int64_t order = 0;
    std::string what, more = {};
  };
  Fault FindFault(bool finite_loss);  // collective
  Finding LookForFault(bool finite_loss);
  std::string Named(const std::string& parameter) const;  // adds its layer
  void LeaveOutUpdate(OnFault on_fault);
  const comm::ProcessGrid& Grid() const { return state_.Grid(); }
  const device::Stream& Stream() const { return state_.Stream(); }
  model::ParallelModel& Net() { return state_.Net(); }
  const model::ParallelModel& Net() const { return state_.Net(); }

  TrainingState& state_;
  std::unique_ptr<StepLoader> loader_;
  BatchLoader* windows_ = nullptr;  // loader_, if it loads windows
  PairLoader* pairs_ = nullptr;     // loader_, if it loads pairs
  const bool masked_;               // the number of targets that count depends on the tokens

  std::int64_t step_ = 0;
  LoadedBatch now_, next_;   // batches of this step and, on a GPU, of the next
  StepTimes mine_;           // times of this rank since the last agreement
  double window_start_ = 0;  // Seconds() up to which mine_.total has counted
  StepResult result_;
  std::function<void(std::int64_t targets)> look_;  // of BeforeNextUpdate; may be empty

  // Used on a GPU only.
  device::Graph graph_;         // gradients and sums of a whole batch
  bool graph_told_ = false;     // graph_ was recorded while kernels were traced
  comm::Ledger graph_traffic_;  // transfers of one launch of graph_
  bool warm_ = false;           // a whole batch has run kernel by kernel
  device::Event done_;          // the gradients are complete
  double gradients_start_ = 0, waited_before_ = 0, bubble_before_ = 0;
};

// The file of run.products = auto, for this GPU and library version, in XDG_CACHE_HOME or else
// HOME/.cache; "" if neither is set. chosen: kernels::Libraries::Chosen().
std::string ChoicesFile(const std::string& chosen);

// World rank 0 reads the file, and all ranks adopt its choices. Collective over `world`. No effect
// if the file is missing or belongs to another GPU or library.
void TakeKeptChoices(const comm::Communicator& world, const std::string& file,
                     kernels::Libraries& libraries);
// All ranks adopt, for each product, the choice of the lowest rank that has the product. Collective
// over `world`. Of ranks with the same products, such as data replicas, only the lowest sends.
void AgreeOnChoices(const comm::Communicator& world, kernels::Libraries& libraries);
// World rank 0 rewrites the file through a temporary one. If that fails it prints a warning: a
// later run may then choose other algorithms and round differently.
void KeepChoices(const comm::Communicator& world, const std::string& file,
                 const kernels::Libraries& libraries);

}  // namespace trireme::train
