// The training loop, owned by the driver: steps, validations, checkpoints, reports.
#ifndef TRIREME_TASKS_TRAINING_LOOP_HPP_
#define TRIREME_TASKS_TRAINING_LOOP_HPP_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/app/batch_job.hpp"
#include "trireme/app/job.hpp"
#include "trireme/app/run_lock.hpp"
#include "trireme/base/json.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/report/tensorboard.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/replica_check.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// A trained model in the deck's layout, for the tasks that do not train: evaluate, generate.

class TrainedModel {
 public:
  // Collective. Plans, opens the token file and reads the weights of -r. micro_batch: sequences
  // that a rank takes at once; 0: as the deck says. cache_slots: sequences that are written at
  // once, for which keys and values are kept where that is built. packing: of the weights.
  // AgreedError (exit code 2) without -r, and if packing is asked for where there is none.
  explicit TrainedModel(const app::Job& job, std::int64_t micro_batch = 0,
                        std::int64_t cache_slots = 0, PackWeights packing = PackWeights::kNo);

  // Of a model that translates: the target texts.
  const data::TokenFile& Tokens() const {
    return pairs_ ? pairs_->Of(data::Side::kTarget) : *tokens_;
  }
  // Of a model that translates; else null.
  const data::PairFile* Pairs() const { return pairs_ ? &*pairs_ : nullptr; }
  const std::string& Checkpoint() const { return checkpoint_; }  // folder of the weights
  model::ParallelModel& Net() { return *model_; }

 private:
  std::string checkpoint_;
  const train::EvaluationPlan plan_;
  comm::ProcessGrid grid_;
  // One of the two is there after construction.
  std::optional<data::TokenFile> tokens_;
  std::optional<data::PairFile> pairs_;
  std::unique_ptr<model::ParallelModel> model_;
};

class Checkpoints;
class EnergyUse;
class LocalCheckpoints;
class Safeguards;
class StepPrediction;
class Timeline;

class TrainingLoop {
 public:
  // All arguments must outlive the loop, and the files of `corpus`. validation: of
  // app::ValidSplits. Of a model that translates, the corpus is the target texts.
  TrainingLoop(app::Job& job, const train::Plan& plan, const data::Corpus& corpus,
               std::span<const app::ValidSplit> validation, train::TrainingState& state,
               train::TrainingStep& training_step);

  ~TrainingLoop();
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  // Collective: run folder and its lock, state of the checkpoint to start from, monitor, banner.
  // roof_flops: the speed of products on a rank, FLOP/s. False when nothing is left to do.
  bool Initialize(double roof_flops);
  void Execute();  // collective: steps, validations and checkpoints up to the end or a stop
  const std::string& Folder() const { return folder_; }  // of the run
  ExitCode Finalize();  // collective: test perplexity and sample text of a whole run; summary
  // -v: everything is constructed; prints the banner with the memory plan, writes nothing.
  void Validate();

 private:
  train::Requests MyRequests();  // signals and clocks of this rank
  void Report(const train::StepResult& result);
  double FlopsPerToken(const train::StepResult& result) const;  // of a step as it was

  void FindFolder();
  void FindStep();
  // Collective. Whether the run has its last step and record already; says so.
  bool HasEnded() const;
  void TakeBest(const app::RunRecord& record);  // the best loss so far, of the set that decides
  void LockFolder();
  void HoldLock(bool certain) const;
  void LoadState();  // collective
  void ReadState();  // collective
  void Resume(const std::string& checkpoint);
  void SetDamagedAside();
  void CountStart();
  void CheckCopyMemory(const checkpoint::State& state) const;  // collective
  void MakeCheckpoints();                                      // collective
  void MakeLocal();                                            // collective
  void ResumeLocal();                                          // collective
  std::string DescribeStart() const;
  // Whether the run folder gets a checkpoint beside a local one.
  enum class Drain { kNone, kRegular, kIrregular };
  Drain WriteLocal(bool best, bool stop_only);  // collective
  bool CompleteRunFolder();                     // collective
  void MakeTimeline();                          // collective
  void SayStart();
  void SayChanges();
  void SayOtherBatches(const nlohmann::json& run);
  void SayEvent(const std::string& event, const std::string& text);
  std::string DescribeCanonical() const;
  void CheckCanonical() const;
  void ResumeProducts();
  void PrintSample();
  report::BannerFacts Banner() const;  // collective
  void PlanMemory(report::BannerFacts& facts) const;
  bool MeetsGpus() const;
  std::string DescribeLinks() const;
  std::vector<report::TrafficRow> GatherTraffic() const;   // collective
  report::Gathers MeanGathers() const;                     // collective
  train::StepResult RunStep();                             // collective
  void Watch(comm::Phase phase, std::int64_t step) const;  // a bound for what follows
  void WatchFolder() const;
  void FindSlowest(report::Record& record);  // collective
  void AttachTensorBoard(const report::BannerFacts& banner);
  void AskForHistograms();  // of the gradients of the step that begins
  void AddHistograms();     // collective: of the weights after the step, and those gradients
  std::vector<report::NamedHistogram> HistogramsOf(const checkpoint::State& state,
                                                   const char* prefix, double divisor) const;
  void ValidateIfDue();
  void CheckpointIfDue();
  void WriteCheckpoint(bool best, bool stop_only);
  void WriteRunFolder(bool best, bool stop_only);
  void AnswerFault(const train::Fault& fault);
  bool AnswerSpike(double loss);  // collective; true: the run has gone back
  std::string FindCheckpoint(std::int64_t step) const;
  void SettleCheckpoints();                                      // collective
  void NoteCheckpoint();                                         // collective
  std::string CheckpointToGoBackTo();                            // collective
  void GoBack(const std::string& checkpoint);                    // collective
  app::RunRecord LoadCheckpoint(const std::string& checkpoint);  // collective
  // Sets all that goes with the state of a checkpoint of this run. origin: of the steps from there.
  void ReturnTo(const app::RunRecord& record, const data::Origin& origin);
  bool ReplicasDiffer(bool whole);  // collective; true: the run is back at a checkpoint
  void AnswerCorruption(const std::vector<train::Corruption>& found);  // collective
  std::vector<std::string> CheckpointsToRestore() const;               // collective
  bool RestoreCheckpoint(const std::string& checkpoint);               // collective
  std::string ReplicaSummary() const;
  void AccountForCheckpoints();
  nlohmann::json RunJson() const;
  // Files of the training as run.json and the reports name them; empty: one file that was never
  // part of a mixture.
  std::vector<data::MixtureFile> Mixture() const;
  std::string DescribeData() const;
  std::string DescribePairs() const;
  // Names of a mixture's files and the valid targets seen of each; empty without a mixture.
  std::vector<std::pair<std::string, std::int64_t>> TokensOfSources() const;
  std::string SourceSummary() const;
  data::Origin OriginAfterGoingBack(const app::RunRecord& record,
                                    const std::vector<data::SourcePlace>& reached,
                                    std::int64_t next_sample) const;
  // Collective. Fills a record with the loss of a split; false if a signal ended it. seconds: what
  // it took is added.
  bool RecordEvaluation(const data::TokenFile& tokens, data::Split split, report::Record& record,
                        double& seconds);
  bool RecordValidation();
  bool RecordTest();
  std::int64_t ValidationTokens() const;  // of all sets
  const std::string& HostOf(int rank) const;
  void FindMemory(report::Record& record) const;                 // collective
  void FindRanks(report::Summary& summary) const;                // collective
  report::RunFacts Facts() const;                                // collective
  report::Summary SummarySoFar() const;                          // collective
  void ComparePrediction(bool ended, report::Summary& summary);  // collective
  double Epoch() const;
  bool ValidationIsNear() const;
  // From a checkpoint, with all that it holds; not with its weights alone.
  bool Resumes() const { return job_.start.record && !job_.start.weights_alone; }
  bool Finished() const { return step_ >= schedule_.Last(); }

  app::Job& job_;
  const data::Corpus corpus_;
  const std::span<const app::ValidSplit> validation_;
  const data::TokenFile& tokens_;  // the corpus' first: vocabulary and test split
  const train::Plan& plan_;
  train::TrainingState& state_;
  train::TrainingStep& training_step_;
  const comm::ProcessGrid& grid_;
  const data::PairFile* const pairs_;  // null: windows
  const train::StepLoader& order_;     // of the steps' batches
  const train::Schedule& schedule_;
  std::unique_ptr<app::RunLock> lock_;  // on rank 0
  std::unique_ptr<report::Monitor> monitor_;
  std::shared_ptr<report::EventLog> events_;  // on rank 0; null without TensorBoard
  // Of the step under way, on rank 0; empty on others, and if the step was not asked for them.
  std::vector<report::NamedHistogram> gradient_histograms_;
  std::unique_ptr<Checkpoints> checkpoints_;
  std::unique_ptr<LocalCheckpoints> local_;  // null: none
  bool run_folder_has_one_ = false;          // that knows of the local ones
  std::int64_t bytes_from_afar_ = 0;         // of the local checkpoint that the session began with
  std::unique_ptr<EnergyUse> energy_;
  std::unique_ptr<StepPrediction> prediction_;
  std::unique_ptr<Safeguards> safeguards_;
  std::unique_ptr<train::ReplicaCheck> replicas_;
  std::unique_ptr<Timeline> timeline_;
  app::Deadline deadline_;  // of the batch job; its answers count on rank 0

  std::string folder_;         // of the run
  std::string checkpoint_;     // to start from, or to take the weights from; empty: none
  bool continues_ = false;     // in the checkpoint's own run folder
  nlohmann::json vocabulary_;  // for run.json
  int starts_here_ = 1;        // in a row at this step; on rank 0
  std::int64_t step_ = 0;      // steps completed
  app::Decider decider_;       // on the best checkpoint
  double best_loss_ = std::numeric_limits<double>::infinity();       // validation, nats per token
  double kept_best_loss_ = std::numeric_limits<double>::infinity();  // of the target of `best`
  double best_under_way_loss_ = 0;  // of the last checkpoint that was begun as the best
  bool best_is_new_ = false;
  bool validation_due_ = false;    // of this step: a stop did not wait for it
  std::int64_t first_step_ = 0;    // where this session began
  std::int64_t compared_at_ = -1;  // step at which all replicas were compared last
  std::int64_t comparisons_ = 0;   // of replicas, in this session
  double comparison_seconds_ = 0;  // sum of these
  std::set<int> corrupted_;        // ranks whose copies have differed
  bool stop_ = false;              // agreed: a signal or a time limit
  std::string stop_reason_;        // on rank 0
  bool checkpoint_now_ = false;    // agreed: one is due by time
  double last_loss_ = 0;           // of the last step, nats per token
  double last_step_seconds_ = 0;
  double checkpoint_seconds_ = 0;  // since the last report
  double roof_flops_ = 0;          // per rank, measured at start
  // Gathers of sharded parameters on this rank in the steps of this session, and those complete
  // when needed.
  std::int64_t gathers_ = 0, gathers_ready_ = 0;
  // Computation of this rank since the last record, seconds and steps.
  double window_compute_ = 0;
  std::int64_t window_steps_ = 0;
  double own_compute_ = 0;  // of this rank in this session, seconds
  std::string started_;     // this session, ISO 8601
};

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_TRAINING_LOOP_HPP_
