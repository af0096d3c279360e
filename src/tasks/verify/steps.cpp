// Verification: compares each step on the grid with one rank's; guesses why results differ.
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/tasks/verify.hpp"
#include "verifier.hpp"

namespace trireme::tasks {

namespace {

// Tolerances of rule 4 in doc/reference/numerics.md.
constexpr double kFp64 = 1e-11, kFp32 = 1e-5, kSameBits = 0;
// Summing in another order changes the last bits of fp32. Where such a sum is then rounded to bf16,
// it sometimes differs by a whole bf16 unit: 2^-8 to 2^-7 of the number.
constexpr double kBf16 = 1e-3;
// The same for fp8, whose units are up to 2^-3 and 2^-2 of a number; its scales also depend on the
// largest value in a rank's slice.
constexpr double kFp8 = 1e-2;

constexpr std::int64_t kSteps = 3;  // a full batch, a short batch, a batch of the next epoch
constexpr std::int64_t kStop = 1;   // the resumed run stops after this step, within an epoch

constexpr std::int64_t kWindowsAlone = 16;  // largest micro-batch of the run on one rank

// Returns task(); on failure says which of the two runs could not go on.
template <typename Task>
auto Guarded(const char* run, Task task) {
  try {
    return task();
  } catch (const AgreedError& error) {
    // Keep the list of ranks, but drop the hint: it is advice for a long training run.
    const std::string text = error.what();
    const std::size_t ranks = text.rfind("\n  (on ");
    throw AgreedError(
        ExitCode::kFailed,
        fmt::format("verify: {} cannot go on: {}{}", run, text.substr(0, text.find('\n')),
                    ranks == std::string::npos ? "" : text.substr(ranks)));
  }
}

using Keys = std::vector<const char*>;

// A question for the hint: ": does it pass with grid.tensor = 1, or with grid.pipeline = 1?"
std::string DoesItPass(const Keys& keys) {
  return keys.empty() ? "." : fmt::format(": does it pass with {}?", fmt::join(keys, ", or with "));
}

// Deck settings that switch off axes: those that act in the forward pass, those over which
// gradients are summed, or both kinds.
enum class Acts { kForward, kDataSum, kAny };
Keys Without(Acts acts, const comm::ProcessGrid& grid) {
  const comm::GridShape& shape = grid.Shape();
  const bool sharded = acts == Acts::kForward ? grid.Shards() == comm::Sharding::kParameters
                                              : grid.Shards() != comm::Sharding::kNone;
  Keys keys;
  if (acts != Acts::kForward && shape.data > 1) keys.push_back("grid.data = 1");
  if (acts == Acts::kForward && sharded) keys.push_back("grid.sharding = none");
  if (shape.context > 1) keys.push_back("grid.context = 1");
  if (acts != Acts::kForward && sharded) keys.push_back("grid.sharding = none");
  if (acts != Acts::kDataSum && shape.tensor > 1) keys.push_back("grid.tensor = 1");
  if (acts != Acts::kDataSum && shape.pipeline > 1) keys.push_back("grid.pipeline = 1");
  return keys;
}

// Collective. Whether ranks that hold the same part of a gradient differ by more than rounding.
// Ranks of one shard group hold different parts, so they are not compared with each other.
bool DataRanksDisagree(const comm::ProcessGrid& grid, const Differences& differences,
                       const std::vector<std::size_t>& wrong) {
  const comm::Communicator& same = grid.SameShard();
  double widest = 0;
  for (const std::size_t i : wrong) {
    const double most = same.Max(differences.mine[i]);
    const double least = -same.Max(-differences.mine[i]);
    if (std::isfinite(most)) widest = std::max(widest, most - least);
  }
  return grid.World().Max(widest) > kFp64;
}

std::string HintForLoss(const comm::ProcessGrid& grid, std::int64_t step) {
  if (step > 0) return "Step 1 agreed: suspect how this step's windows are shared out.";
  return "The weights are the initial ones: suspect the forward pass" +
         DoesItPass(Without(Acts::kForward, grid));
}

std::string HintForNorm(const comm::ProcessGrid& grid) {
  const bool sharded = grid.Shards() != comm::Sharding::kNone;
  return "Each gradient agreed: suspect elements that are counted twice or never in the norm" +
         DoesItPass(sharded ? Keys{"grid.sharding = none"} : Keys{});
}

std::string HintForUpdate(const comm::ProcessGrid& grid) {
  return grid.Shards() == comm::Sharding::kNone
             ? "The gradients agreed: suspect clipping or the optimizer."
             : "The gradients agreed: suspect what each owner updates, or how others get it: does "
               "it pass with grid.sharding = none?";
}

// Runs the two trainings in lockstep: each step on the grid and, on every rank, alone.
class Verifier {
 public:
  // `grid` must outlive it. folder: where the checkpoint is written.
  Verifier(const comm::ProcessGrid& grid, const train::TrainingOptions& small,
           const device::Stream& stream, const std::string& folder)
      : grid_(grid),
        world_(grid.World()),
        self_(world_.Split(world_.Rank(), 0)),
        alone_(self_, comm::GridShape{}),
        data_(world_, small),
        options_(small),
        stream_(stream),
        folder_(folder) {
    report_.tolerance = kFp64;
    options_.keep_gradients = true;
  }

  // Collective over the grid's world.
  Verification CompareAll(Dtype precision) {
    options_.model.dtype = Dtype::kFloat64;
    CompareSteps();
    CompareResume();
    options_.model.dtype = precision;
    if (precision != Dtype::kFloat64) CompareLosses();
    if (options_.model.canonical.On()) CompareCanonical();
    return std::move(report_);
  }

 private:
  // Compares all steps in fp64. Writes a checkpoint after step kStop.
  void CompareSteps() {
    const std::unique_ptr<Run> alone = MakeAlone();
    on_grid_ = std::make_unique<Run>(grid_, data_, options_, stream_);
    const kernels::Registry& registry = on_grid_->state.Net().Parameters();
    for (const kernels::Parameter& parameter : registry.Parameters()) {
      report_.tensors.push_back({parameter.name});
    }
    sums_ = GatherSums(grid_, registry);
    CompareTensors("before step 1", "initial weight",
                   Compare(grid_, on_grid_->state.ModelBlocks(), alone->state.ModelBlocks()),
                   &VerifiedTensor::weights, "Suspect how weights are drawn from coordinates.");
    for (std::int64_t step = 0; step < kSteps; ++step) {
      if (step == kStop) WriteCheckpoint();
      CompareStep(step, *alone);
    }
    Quantity("evaluation loss, fp64", EvaluationDifference(*on_grid_, *alone), kFp64,
             "the evaluation loss",
             "Training agreed: suspect how evaluation shares out its windows" +
                 DoesItPass(Without(Acts::kForward, grid_)));
  }

  // Resumes from the checkpoint, on the grid and on one rank, and compares with uninterrupted runs.
  void CompareResume() {
    const std::string checkpoint = checkpoint::Find(world_, folder_);
    ResumeOnGrid(checkpoint);
    ResumeAlone(checkpoint);
  }

  // Trains on the grid and on one rank in the deck's precision; compares each step's losses.
  void CompareLosses() {
    const bool bf16 = stream_.bf16 || options_.model.dtype == Dtype::kBfloat16;
    const bool fp8 = stream_.fp8;
    const char* const precision = fp8 ? "fp8" : bf16 ? "bf16" : NameOf(options_.model.dtype);
    const std::string hint =
        "In fp64 all agreed: suspect something that happens in this precision only.";
    const std::unique_ptr<Run> alone = MakeAlone();
    Run run(grid_, data_, options_, stream_);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      SwapScales();
      const double wanted = StepAlone(*alone, step).loss;
      SwapScales();
      const double got = StepOnGrid(run, step).loss;
      Quantity(fmt::format("loss, {}", precision), RelativeDifference(got, wanted),
               fp8    ? kFp8
               : bf16 ? kBf16
                      : kFp32,
               fmt::format("in {} the loss of step {}", precision, step + 1), hint);
    }
  }

  // For fp8: exchanges the scales in use with those kept in scales_. The grid's run and the run on
  // one rank use the same products, but each needs scales of its own.
  void SwapScales() {
    kernels::Libraries* const libraries = kernels::LibrariesOf(stream_);
    if (libraries == nullptr) return;
    std::vector<float> others = libraries->Scales();
    libraries->SetScales(stream_, scales_);
    scales_ = std::move(others);
  }

  // Compares all bits of the canonical arithmetic in the deck's precision.
  void CompareCanonical() {
    const std::string dtype = NameOf(options_.model.dtype);
    const auto blocks = [&](const char* what, const std::string& when, const auto& got,
                            const auto& wanted) {
      CompareBlocks(fmt::format("canonical {}, {}", what, dtype),
                    fmt::format("{} canonical {}: {{}}", when, what), HintForBits(false), got,
                    wanted);
    };
    const std::unique_ptr<Run> alone = MakeAlone(Arithmetic::kCanonical);
    Run run(grid_, data_, options_, stream_);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const std::string when = fmt::format("in step {}", step + 1);
      const train::StepResult wanted = StepAlone(*alone, step), got = StepOnGrid(run, step);
      Quantity("canonical loss, " + dtype, RelativeDifference(got.loss, wanted.loss), kSameBits,
               when + " the canonical loss", HintForBits(true));
      blocks("gradients", when, run.state.GradientBlocks(), alone->state.GradientBlocks());
      Quantity("canonical gradient norm, " + dtype,
               RelativeDifference(got.gradient_norm, wanted.gradient_norm), kSameBits,
               when + " the canonical gradient norm", HintForBits(false));
      blocks("weights", when, run.state.ModelBlocks(), alone->state.ModelBlocks());
      blocks("moments", when, run.state.OptimizerBlocks(), alone->state.OptimizerBlocks());
    }
    Quantity("canonical evaluation loss, " + dtype, EvaluationDifference(run, *alone), kSameBits,
             "the canonical evaluation loss", HintForBits(true));
  }

  void CompareStep(std::int64_t step, Run& alone) {
    const std::string when = fmt::format("in step {}", step + 1);
    const train::StepResult wanted = StepAlone(alone, step), got = StepOnGrid(*on_grid_, step);
    losses_.push_back(got.loss);
    Quantity("loss, fp64", RelativeDifference(got.loss, wanted.loss), kFp64, when + " the loss",
             HintForLoss(grid_, step));
    CompareTensors(when, "gradient",
                   Compare(grid_, on_grid_->state.GradientBlocks(), alone.state.GradientBlocks()),
                   &VerifiedTensor::gradient, "");
    Quantity("gradient norm, fp64", RelativeDifference(got.gradient_norm, wanted.gradient_norm),
             kFp64, when + " the gradient norm", HintForNorm(grid_));
    CompareTensors(when, "update",
                   Compare(grid_, on_grid_->state.ModelBlocks(), alone.state.ModelBlocks()),
                   &VerifiedTensor::weights, HintForUpdate(grid_));
  }

  double EvaluationDifference(Run& on_grid, Run& alone) const {
    double wanted = 0;
    ByItself([&] { wanted = data_.ValidationLoss(alone.state.Net()); });
    return RelativeDifference(data_.ValidationLoss(on_grid.state.Net()), wanted);
  }

  void WriteCheckpoint() {
    const train::StateOnHost model = on_grid_->state.ModelBlocks(),
                             moments = on_grid_->state.OptimizerBlocks();
    checkpoint::Writer writer(world_, {model.Blocks(), moments.Blocks()}, {});
    writer.Begin({.folder = folder_, .step = kStop, .run = {{"step", kStop}}});
    const checkpoint::Outcome outcome = writer.Finish();
    if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
  }

  void ResumeOnGrid(const std::string& checkpoint) {
    const std::string name = fmt::format("stop after step {}, resume", kStop);
    const std::string hint = "What a checkpoint holds, or how it is read, is not all of the state.";
    Run resumed(grid_, data_, options_, stream_);
    resumed.state.Load(checkpoint);
    for (std::int64_t step = kStop; step < kSteps; ++step) {
      const double loss = StepOnGrid(resumed, step).loss;
      Quantity(name, RelativeDifference(loss, losses_[static_cast<std::size_t>(step)]), kSameBits,
               fmt::format("after a stop and a resume the loss of step {}", step + 1), hint);
    }
    const std::string what = fmt::format("after a stop and a resume {{}} of step {}", kSteps);
    CompareBlocks(name, what, hint, resumed.state.ModelBlocks(), on_grid_->state.ModelBlocks());
    CompareBlocks(name, what, hint, resumed.state.OptimizerBlocks(),
                  on_grid_->state.OptimizerBlocks());
  }

  // Continues the layout's checkpoint on one rank; compares with the grid's uninterrupted run.
  void ResumeAlone(const std::string& checkpoint) {
    const std::string name = fmt::format("stop after step {}, resume on one rank", kStop);
    const std::string hint = "The checkpoint is not the whole state, or not in the model's order.";
    const std::unique_ptr<Run> resumed = MakeAlone();
    ByItself([&] { resumed->state.Load(checkpoint); });
    for (std::int64_t step = kStop; step < kSteps; ++step) {
      const double loss = StepAlone(*resumed, step).loss;
      Quantity(name, RelativeDifference(losses_[static_cast<std::size_t>(step)], loss), kFp64,
               fmt::format("resumed on one rank, the loss of step {}", step + 1), hint);
    }
    const Differences differences =
        Compare(grid_, on_grid_->state.ModelBlocks(), resumed->state.ModelBlocks());
    for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
      const std::string failure =
          fmt::format("resumed on one rank, {} of step {}", report_.tensors[i].name, kSteps);
      Quantity(name, differences.all[i], kFp64, failure, hint);
    }
  }

  // Runs `task` on every rank without communication; if it throws on one rank, all ranks throw.
  void ByItself(const std::function<void()>& task) const {
    Guarded("the run on one rank", [&] { world_.Together(task); });
  }

  train::StepResult StepOnGrid(Run& run, std::int64_t step) const {
    return Guarded("the run in the deck's layout", [&] { return run.step.Run(step); });
  }

  train::StepResult StepAlone(Run& run, std::int64_t step) const {
    train::StepResult result;
    ByItself([&] { result = run.step.Run(step); });
    return result;
  }

  std::unique_ptr<Run> MakeAlone(Arithmetic arithmetic = Arithmetic::kFast) const {
    device::Stream serial = stream_;
    serial.threads = 1;
    std::unique_ptr<Run> run;
    ByItself(
        [&] { run = std::make_unique<Run>(alone_, data_, Alone(options_, arithmetic), serial); });
    return run;
  }

  // Adds a quantity to the report. The first difference over its tolerance becomes the failure.
  void Quantity(const std::string& name, double difference, double tolerance,
                const std::string& what, const std::string& hint) {
    const auto found = std::find_if(report_.quantities.begin(), report_.quantities.end(),
                                    [&](const VerifiedQuantity& q) { return q.name == name; });
    if (found == report_.quantities.end()) {
      report_.quantities.push_back({name, difference, tolerance});
    } else {
      found->difference = std::max(found->difference, difference);
    }
    if (difference <= tolerance) return;
    const std::string wanted = tolerance == kSameBits ? "the same bits are wanted"
                                                      : fmt::format("tolerance {:.0e}", tolerance);
    Fail(fmt::format("{} differs by {:.1e} ({})", what, difference, wanted), hint);
  }

  // hint: used for weights; for gradients HintForGradients gives one.
  void CompareTensors(const std::string& when, const char* what, const Differences& differences,
                      double VerifiedTensor::*column, const std::string& hint) {
    std::size_t count = 0, first = 0;
    for (std::size_t i = differences.all.size(); i-- > 0;) {
      double& worst = report_.tensors[i].*column;
      worst = std::max(worst, differences.all[i]);
      if (differences.all[i] <= kFp64) continue;
      first = i;
      ++count;
    }
    if (count == 0 || !report_.Passed()) return;  // the same on all ranks
    const std::string where = WhereLargest(grid_, differences.mine[first]);
    std::string others;
    if (count > 1) {
      others = fmt::format(", and {} of the other {} too", count - 1, differences.all.size() - 1);
    }
    Fail(fmt::format("{} the {} of {} differs by {:.1e} (tolerance {:.0e}), most on {}{}", when,
                     what, report_.tensors[first].name, differences.all[first], kFp64, where,
                     others),
         column == &VerifiedTensor::gradient ? HintForGradients(differences) : hint);
  }

  // Compares all bits of some tensors. what: text of a failure, with {} for the tensor's name.
  void CompareBlocks(const std::string& name, const std::string& what, const std::string& hint,
                     const std::vector<kernels::StateBlock>& got,
                     const std::vector<kernels::StateBlock>& wanted) {
    const Differences differences = CompareBits(grid_, got, wanted);
    for (std::size_t i = 0; i < got.size(); ++i) {
      Quantity(name, differences.all[i], kSameBits, fmt::format(fmt::runtime(what), got[i].name),
               hint);
    }
  }

  void Fail(const std::string& failure, const std::string& hint) {
    if (!report_.failure.empty()) return;
    report_.failure = failure;
    report_.hint = hint;
  }

  // Collective. Names the sum over ranks whose omission would explain the wrong gradients.
  std::string HintForGradients(const Differences& differences) const {
    std::vector<std::size_t> wrong;
    std::size_t right = 0;
    for (std::size_t i = 0; i < differences.all.size(); ++i) {
      if (!(differences.all[i] <= kFp64)) {
        wrong.push_back(i);
      } else if (!differences.silent[i]) {
        ++right;
      }
    }
    const auto all_are = [&](kernels::GradientSum sum) {
      return std::all_of(wrong.begin(), wrong.end(),
                         [&](std::size_t i) { return sums_[i] == sum; });
    };
    if (DataRanksDisagree(grid_, differences, wrong)) {
      return "Data ranks hold different sums of one gradient, where an all-reduce gives all the "
             "same: suspect the transfers of the data group (MPI, network, memory) more than the "
             "layout" +
             DoesItPass(Without(Acts::kDataSum, grid_));
    }
    if (all_are(kernels::GradientSum::kTensor)) {
      return grid_.SequenceParallel()
                 ? "Only gradients that sequence parallelism sums over the tensor ranks, which see "
                   "different tokens, are wrong: does it pass with grid.sequence_parallel = no?"
                 : "Only norms of heads are wrong. The tensor ranks sum their gradients, each over "
                   "its own heads: does it pass with model.qk_norm = no?";
    }
    if (all_are(kernels::GradientSum::kTied)) {
      return "Only the tied embedding is wrong, whose gradient the first and the last stage sum: "
             "does it pass with model.tie_embeddings = no?";
    }
    if (all_are(kernels::GradientSum::kKeyValue)) {
      return "Only keys and values of heads that several tensor ranks share are wrong: does it "
             "pass with grid.tensor no larger than model.kv_heads?";
    }
    if (right == 0) {
      return "Every gradient is wrong: suspect what all share, the sum over the data ranks" +
             DoesItPass(Without(Acts::kDataSum, grid_));
    }
    return fmt::format(
        "{} of {} gradients are wrong; the last in the order of the forward pass is {}'s, so the "
        "mistake is near it in the backward pass{}",
        wrong.size(), differences.all.size(), report_.tensors[wrong.back()].name,
        DoesItPass(Without(Acts::kAny, grid_)));
  }

  std::string HintForBits(bool forward) const {
    Keys keys = Without(forward ? Acts::kForward : Acts::kAny, grid_);
    if (stream_.threads > 1) keys.push_back("run.threads = 1");
    return "Rounding depends on the layout, where run.canonical fixes every sum's tree and what is "
           "computed together" +
           DoesItPass(keys);
  }

  const comm::ProcessGrid& grid_;
  const comm::Communicator& world_;
  comm::Communicator self_;  // this rank alone
  comm::ProcessGrid alone_;
  MadeUpData data_;
  train::TrainingOptions options_;
  device::Stream stream_;
  std::string folder_;
  Verification report_;

  std::unique_ptr<Run> on_grid_;            // fp64 run on the grid, uninterrupted
  std::vector<double> losses_;              // losses of on_grid_, [kSteps]
  std::vector<float> scales_;               // fp8 scales of whichever run does not compute now
  std::vector<kernels::GradientSum> sums_;  // how each parameter's gradient is summed
};

constexpr std::int64_t kMostHeads = 16;
constexpr std::int64_t kHeadDim = 4;    // if the deck's head_dim is even; if it is odd, 5
constexpr std::int64_t kFewLayers = 3;  // most layers of one stage; three make layers reuse buffers
constexpr int kPrefetch = 1;
constexpr std::int64_t kLength = 10;  // tokens
constexpr std::int64_t kRowsATensorRank = 2;
constexpr std::int64_t kPositionsABlock = 2;  // in each of a context rank's two blocks
constexpr std::int64_t kFfn = 12;
constexpr std::int64_t kVocabulary = 48, kMostVocabulary = 512;
constexpr std::int64_t kStepsOfSchedule = 6;  // twice the steps run: the rate stays above zero

// These values make gradients far larger than rounding noise, except those whose true value is zero
// (of key biases, for example). An epsilon below the noise would let Adam make large updates of it.
constexpr double kDeviation = 0.2;
constexpr double kLearningRate = 1e-2;
constexpr double kClipNorm = 1e-2;  // below any gradient norm that occurs here
constexpr double kLeastEpsilon = 1e-6;
constexpr double kLeastBeta2 =
    0.9;  // with less, one small gradient makes an update of many times the learning rate

// Smallest number >= `least` with value's remainder modulo `modulus`; `value` if that is smaller.
std::int64_t Reduce(std::int64_t value, std::int64_t least, std::int64_t modulus) {
  return value <= least ? value : least + (value - least) % modulus;
}

// Number of slices that heads, features and vocabulary are cut into: the slices of canonical
// arithmetic (a multiple of the tensor ranks), or the tensor ranks.
std::int64_t Slices(const train::TrainingOptions& setup, const comm::GridShape& grid) {
  return std::max(setup.model.canonical.slices, grid.tensor);
}

// Reduces more than kMostHeads heads. Keeps whether slices share a key/value head, have one,
// several, or unequal numbers of them, and whether such a head serves one query head or several.
void ShrinkHeads(model::Options& o, std::int64_t slices) {
  if (o.heads > kMostHeads) {
    const std::int64_t grouped = o.heads / o.kv_heads;
    if (o.kv_heads >= slices) {
      const bool even = o.kv_heads % slices == 0;
      o.kv_heads = even ? slices * std::min<std::int64_t>(o.kv_heads / slices, 2)
                        : Reduce(o.kv_heads, slices, slices);
      o.heads = o.kv_heads * std::min<std::int64_t>(grouped, 2);
    } else {
      o.heads = slices * std::min<std::int64_t>(o.heads / slices, 2);
    }
  }
  o.head_dim = Reduce(o.head_dim, kHeadDim, 2);
}

void ShrinkWidths(model::Options& o, std::int64_t slices) {
  const std::int64_t beside = o.dim - o.heads * o.head_dim;
  ShrinkHeads(o, slices);
  // If the residual stream is narrower or wider than all heads together, keep it different.
  const std::int64_t heads = o.heads * o.head_dim;
  o.dim = beside == 0 ? heads : std::min(o.dim, heads + 1 + (o.dim - heads + 1) % 2);
  o.ffn = Reduce(o.ffn, std::max(kFfn, 2 * slices), slices);
}

// A vocabulary whose head costs as many blocks as the deck's does, so that stages are cut alike.
std::int64_t ShrunkVocabulary(const model::Options& deck, std::int64_t length,
                              const model::Options& small, std::int64_t small_length,
                              std::int64_t slices) {
  const model::PartCosts from = model::CostsPerToken(deck, length);
  const model::PartCosts to = model::CostsPerToken(small, small_length);
  const double a_token = to.head / static_cast<double>(small.vocabulary);
  const double alike =
      std::min(from.head / from.block * to.block / a_token, static_cast<double>(kMostVocabulary));
  const std::int64_t least = std::max(kVocabulary, 4 * slices);
  return Reduce(deck.vocabulary, std::max(static_cast<std::int64_t>(alike), least), slices);
}

// How a model's blocks are distributed over the pipeline stages.
class StagedBlocks {
 public:
  StagedBlocks(const model::Options& o, std::int64_t length, int virtual_stages)
      : encoders_(o.encoder_layers), blocks_(o.Blocks()) {
    const model::PartCosts costs = model::CostsPerToken(o, length);
    parts_ =
        parallel::BalanceStages(blocks_, virtual_stages, costs.block, costs.embedding, costs.head);
  }
  bool LastStageHasSome() const { return parts_.back().Size() > 0; }
  // Whether a stage holds the end of the encoder and the beginning of the decoder.
  bool StacksMeet() const {
    return std::ranges::any_of(
        parts_, [&](const Part& p) { return p.begin < encoders_ && encoders_ < p.end; });
  }
  double EncoderShare() const {
    return static_cast<double>(encoders_) / static_cast<double>(blocks_);
  }

 private:
  std::int64_t encoders_, blocks_;
  std::vector<Part> parts_;
};

// The small model with `blocks` blocks. An encoder-decoder gets stacks in about the deck's
// proportion; they meet within a stage if the deck's stacks do.
model::Options WithBlocks(model::Options small, std::int64_t blocks, const StagedBlocks& deck,
                          std::int64_t length, int virtual_stages) {
  if (!small.Translates()) {
    small.layers = blocks;
    return small;
  }
  model::Options best;
  double least = 3;  // larger than any difference that occurs
  for (std::int64_t encoders = 1; encoders < blocks; ++encoders) {
    small.encoder_layers = encoders;
    small.layers = blocks - encoders;
    const StagedBlocks staged(small, length, virtual_stages);
    const double other = std::abs(staged.EncoderShare() - deck.EncoderShare()) +
                         (staged.StacksMeet() == deck.StacksMeet() ? 0 : 1);
    if (other >= least) continue;
    least = other;
    best = small;
  }
  return best;
}

// Chooses few layers: each stage has a block and one has two; the remainder modulo stages is the
// deck's; and the last stage has blocks if it has some in the deck.
void ShrinkLayers(const model::Options& deck, std::int64_t length, model::Options& small,
                  std::int64_t small_length, int virtual_stages) {
  if (virtual_stages == 1) {
    small.layers = std::min(deck.layers, kFewLayers);
    small.encoder_layers = std::min(deck.encoder_layers, kFewLayers);
    return;
  }
  const std::int64_t blocks = deck.Blocks();
  const StagedBlocks wanted(deck, length, virtual_stages);
  const std::int64_t least = std::min<std::int64_t>(blocks, virtual_stages + 1);
  const std::int64_t first = Reduce(blocks, least, virtual_stages);
  constexpr int kTries = 3;
  const model::Options widths = small;
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t more = first + i * virtual_stages;
    if (more > blocks) break;
    const model::Options trial = WithBlocks(widths, more, wanted, small_length, virtual_stages);
    const bool alike = StagedBlocks(trial, small_length, virtual_stages).LastStageHasSome() ==
                       wanted.LastStageHasSome();
    if (alike || i == 0) small = trial;
    if (alike) return;
  }
}

// Windows per micro-batch: one if the deck has one; three if only three leave the deck's remainder
// of rows over tensor ranks; else two.
std::int64_t ShrunkMicroBatch(std::int64_t micro_batch, std::int64_t length,
                              std::int64_t small_length, std::int64_t tensor) {
  if (micro_batch == 1) return 1;
  const bool three = (3 * small_length - micro_batch * length) % tensor == 0 &&
                     (2 * small_length - micro_batch * length) % tensor != 0;
  return three ? std::min<std::int64_t>(3, micro_batch) : 2;
}

// Micro-batches per step: enough to keep all stages busy, with the deck's remainder modulo stages.
std::int64_t ShrunkCount(std::int64_t count, std::int64_t stages) {
  if (count <= 2 * stages) return count;
  return count % stages == 0 ? 2 * stages : stages + count % stages;
}

// A short length that leaves the deck's remainders when its rows are divided among slices and its
// positions among blocks, of which a context rank has two.
std::int64_t ShrunkLength(std::int64_t length, std::int64_t slices, std::int64_t context) {
  const std::int64_t blocks = context == 1 ? 1 : 2 * context;
  const std::int64_t least =
      std::max({kLength, kRowsATensorRank * slices, kPositionsABlock * blocks});
  return Reduce(length, least, blocks * slices);
}

// Shrinks a canonical batch, but keeps its pattern of leaves: the number of groups, short or
// empty ones at the end, a short leaf if any, and whether a micro-batch has several leaves.
void ShrinkCanonicalBatch(const train::TrainingOptions& deck, const comm::GridShape& grid,
                          train::TrainingOptions& small) {
  const parallel::Canonical& canonical = deck.model.canonical;
  const std::int64_t groups = canonical.data_groups, stages = grid.pipeline;
  const std::int64_t leaves = CeilDivide(deck.samples.batch, canonical.leaf);
  const std::int64_t each = train::LeavesOfGroup(deck.samples.batch, canonical);  // per group
  const std::int64_t missing = groups * each - leaves;  // leaves missing in all, fewer than groups
  const std::int64_t together =
      std::min(CeilDivide(deck.model.micro_batch, canonical.leaf), leaves);
  const auto count = [&](std::int64_t of_group, std::int64_t of_micro_batch) {
    const std::int64_t share = std::min(groups / grid.data * of_group, groups * of_group - missing);
    return CeilDivide(share, of_micro_batch);
  };
  const std::int64_t wanted = count(each, together);
  const auto alike = [&](std::int64_t of_group, std::int64_t of_micro_batch) {
    const std::int64_t got = count(of_group, of_micro_batch);
    return got % stages == wanted % stages && (got > 1) == (wanted > 1) &&
           got >= std::min(wanted, stages);
  };
  std::int64_t of_group = each, of_micro_batch = together;
  bool found = false;
  for (std::int64_t a = std::min<std::int64_t>(each, 2); a <= each && !found; ++a) {
    const std::int64_t most = std::min(together, a * groups);
    for (std::int64_t b = std::min<std::int64_t>(together, 2); b <= most && !found; ++b) {
      found = alike(a, b);
      if (found) std::tie(of_group, of_micro_batch) = std::tie(a, b);
    }
  }
  const std::int64_t leaf = std::min<std::int64_t>(canonical.leaf, 2);
  const std::int64_t missing_windows = leaf > 1 && deck.samples.batch % canonical.leaf != 0 ? 1 : 0;
  small.model.canonical.leaf = leaf;
  small.model.micro_batch = of_micro_batch * leaf;
  small.samples.batch = (groups * of_group - missing) * leaf - missing_windows;
}

void ShrinkBatch(const train::TrainingOptions& deck, const comm::GridShape& grid,
                 train::TrainingOptions& small) {
  if (deck.model.canonical.On()) return ShrinkCanonicalBatch(deck, grid, small);
  const std::int64_t share = CeilDivide(deck.samples.batch, grid.data);
  const std::int64_t micro = std::min(deck.model.micro_batch, share);
  const auto here = [&](std::int64_t length) {  // positions on this context rank
    return PositionsOf(length, 0, grid.context).Count();
  };
  const std::int64_t size =
      ShrunkMicroBatch(micro, here(deck.model.length), here(small.model.length), grid.tensor);
  const std::int64_t count = ShrunkCount(CeilDivide(share, micro), grid.pipeline);
  const std::int64_t missing = size > 1 && share % micro != 0 ? 1 : 0;  // 1: a short micro-batch
  const std::int64_t small_share = count * size - missing;
  const std::int64_t rest = deck.samples.batch % grid.data;
  small.model.micro_batch = size;
  small.samples.batch = rest == 0 ? grid.data * small_share : grid.data * (small_share - 1) + rest;
}

std::int64_t ShrunkStride(std::int64_t stride, std::int64_t length, std::int64_t small_length) {
  constexpr std::int64_t kGap = 3;  // tokens that lie between two windows
  if (stride == 0 || stride == length) return small_length;
  if (stride > length) return small_length + std::min(stride - length, kGap);
  return std::clamp<std::int64_t>(stride * small_length / length, 1,
                                  std::max<std::int64_t>(small_length - 1, 1));
}

// Limits batches by the number of pairs alone, so that an epoch has two steps.
void ShrinkPairs(std::int64_t slices, train::TrainingOptions& small) {
  model::Options& o = small.model.options;
  o.source_types = o.shared_vocabulary
                       ? o.vocabulary
                       : Reduce(o.source_types, std::max(kVocabulary, 4 * slices), slices);
  small.pairs = data::PairBatches::Options{.seed = small.model.seed,
                                           .source_tokens = 0,
                                           .target_tokens = 0,
                                           .pairs = small.samples.batch,
                                           .longest_source = small.model.length,
                                           .longest_target = small.model.length};
}

}  // namespace

train::TrainingOptions Alone(train::TrainingOptions setup, Arithmetic arithmetic) {
  setup.model.pipeline = {};
  setup.model.options.recompute = model::Recompute::kNone;
  if (arithmetic == Arithmetic::kFast) setup.model.canonical = {};
  if (setup.model.canonical.On()) {
    const std::int64_t leaf = setup.model.canonical.leaf;
    setup.model.micro_batch = setup.model.micro_batch == leaf ? 2 * leaf : leaf;
    return setup;
  }
  const std::int64_t most = std::min(setup.samples.batch, kWindowsAlone);
  setup.model.micro_batch = most == setup.model.micro_batch ? 1 : most;
  return setup;
}

Verification Verify(const comm::ProcessGrid& grid, const train::TrainingOptions& small,
                    const device::Stream& stream, Dtype precision, const std::string& folder) {
  return Verifier(grid, small, stream, folder).CompareAll(precision);
}

train::TrainingOptions Shrink(const train::TrainingOptions& deck, const comm::GridShape& grid) {
  train::TrainingOptions small = deck;
  small.samples.sources.clear();  // made-up tokens, no mixture of files
  small.samples.ramp = {};
  model::Options& o = small.model.options;
  const std::int64_t length = deck.model.length;
  const std::int64_t slices = Slices(deck, grid);
  const int virtual_stages = grid.pipeline * deck.model.pipeline.chunks;
  small.model.length = ShrunkLength(length, slices, grid.context);
  if (!deck.pairs)
    small.samples.stride = ShrunkStride(deck.samples.stride, length, small.model.length);
  // If the deck's position table has rows that no window reaches, keep one such row.
  o.max_positions = std::min(o.max_positions, small.model.length + 1);
  ShrinkWidths(o, slices);
  // The factors of muP stay, with the optimizer's groups, which have them already.
  const model::Options& from = deck.model.options;
  o.mup_base *= static_cast<double>(o.dim) / static_cast<double>(from.dim);
  o.mup_base_head_dim *= static_cast<double>(o.head_dim) / static_cast<double>(from.head_dim);
  o.vocabulary = ShrunkVocabulary(deck.model.options, length, o, small.model.length, slices);
  ShrinkLayers(deck.model.options, length, o, small.model.length, virtual_stages);
  o.init_deviation = kDeviation;
  ShrinkBatch(deck, grid, small);
  if (deck.pairs) ShrinkPairs(slices, small);

  small.optimizer.learning_rate = small.schedule.peak = kLearningRate;
  small.optimizer.epsilon = std::max(deck.optimizer.epsilon, kLeastEpsilon);
  small.optimizer.beta2 = std::max(deck.optimizer.beta2, kLeastBeta2);
  if (deck.optimizer.clip_norm > 0) small.optimizer.clip_norm = kClipNorm;
  small.schedule.steps = kStepsOfSchedule;
  small.schedule.stop_at = 0;
  small.schedule.walltime_minutes = 0;
  small.schedule.warmup_steps = std::min<std::int64_t>(deck.schedule.warmup_steps, 2);
  // Choose buckets small enough that even this model fills several.
  constexpr std::int64_t kBuckets = 4, kLeastBytes = 512;
  const std::int64_t bytes = model::ParameterCount(o) * static_cast<std::int64_t>(sizeof(double));
  small.model.bucket_bytes =
      std::max(bytes / (kBuckets * grid.tensor * grid.pipeline), kLeastBytes);
  small.model.prefetch = std::min(deck.model.prefetch, kPrefetch);
  return small;
}

}  // namespace trireme::tasks
