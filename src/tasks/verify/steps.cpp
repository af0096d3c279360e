// Verification, step by step: on the grid and alone; and which mistake a difference suggests.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/kernels/libraries.hpp"
#include "verifier.hpp"

namespace trireme::tasks {

namespace {

constexpr std::int64_t kWindowsAlone = 16;  // taken at once by one rank

// One rank and one thread, plain: nothing is sliced, staged, sharded or recomputed, and
// micro-batches are others.
train::TrainingOptions Alone(train::TrainingOptions setup, Arithmetic arithmetic) {
  setup.model.pipeline = {};
  setup.model.options.recompute = model::Recompute::kNone;
  if (arithmetic == Arithmetic::kFast) setup.model.canonical = {};
  if (setup.model.canonical.On()) {
    const std::int64_t leaf = setup.model.canonical.leaf;
    setup.model.micro_batch = setup.model.micro_batch == leaf ? 2 * leaf : leaf;
    return setup;
  }
  const std::int64_t most = std::min(setup.batch, kWindowsAlone);
  setup.model.micro_batch = most == setup.model.micro_batch ? 1 : most;
  return setup;
}

// Says which of the two runs could not go on. Advice for a long run does not fit here.
void Guarded(const char* run, const std::function<void()>& task) {
  try {
    task();
  } catch (const AgreedError& error) {
    // Without the advice, which is about training; with the list of ranks.
    const std::string text = error.what();
    const std::size_t ranks = text.rfind("\n  (on ");
    throw AgreedError(
        ExitCode::kFailed,
        fmt::format("verify: {} cannot go on: {}{}", run, text.substr(0, text.find('\n')),
                    ranks == std::string::npos ? "" : text.substr(ranks)));
  }
}

using Keys = std::vector<const char*>;

// ": does it pass with grid.tensor = 1, or with grid.pipeline = 1?"
std::string DoesItPass(const Keys& keys) {
  return keys.empty() ? "." : fmt::format(": does it pass with {}?", fmt::join(keys, ", or with "));
}

// Without the axes that act in a forward pass.
Keys WithoutForward(const comm::ProcessGrid& grid) {
  Keys keys;
  if (grid.Shards() == comm::Sharding::kParameters) keys.push_back("grid.sharding = none");
  if (grid.Shape().context > 1) keys.push_back("grid.context = 1");
  if (grid.Shape().tensor > 1) keys.push_back("grid.tensor = 1");
  if (grid.Shape().pipeline > 1) keys.push_back("grid.pipeline = 1");
  return keys;
}

// Without those over which gradients are summed.
Keys WithoutDataSum(const comm::ProcessGrid& grid) {
  Keys keys;
  if (grid.Shape().data > 1) keys.push_back("grid.data = 1");
  if (grid.Shape().context > 1) keys.push_back("grid.context = 1");
  if (grid.Shards() != comm::Sharding::kNone) keys.push_back("grid.sharding = none");
  return keys;
}

Keys WithoutAny(const comm::ProcessGrid& grid) {
  Keys keys = WithoutDataSum(grid);
  if (grid.Shape().tensor > 1) keys.push_back("grid.tensor = 1");
  if (grid.Shape().pipeline > 1) keys.push_back("grid.pipeline = 1");
  return keys;
}

// Collective. Whether ranks that hold the same part of a gradient differ by more than rounding. The
// ranks of a shard group hold other parts: these say nothing about each other.
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

}  // namespace

Verifier::Verifier(const comm::ProcessGrid& grid, const train::TrainingOptions& small,
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

Verification Verifier::CompareAll(Dtype precision) {
  options_.model.dtype = Dtype::kFloat64;
  CompareSteps();
  CompareResume();
  options_.model.dtype = precision;
  if (precision != Dtype::kFloat64) CompareLosses();
  if (options_.model.canonical.On()) CompareCanonical();
  return std::move(report_);
}

void Verifier::ByItself(const std::function<void()>& task) const {
  Guarded("the run on one rank", [&] { world_.Together(task); });
}

train::StepResult Verifier::StepOnGrid(Run& run, std::int64_t step) const {
  train::StepResult result;
  Guarded("the run in the deck's layout", [&] { result = run.step.Run(step); });
  return result;
}

train::StepResult Verifier::StepAlone(Run& run, std::int64_t step) const {
  train::StepResult result;
  ByItself([&] { result = run.step.Run(step); });
  return result;
}

std::unique_ptr<Run> Verifier::MakeAlone(Arithmetic arithmetic) const {
  device::Stream serial = stream_;
  serial.threads = 1;
  std::unique_ptr<Run> run;
  ByItself(
      [&] { run = std::make_unique<Run>(alone_, data_, Alone(options_, arithmetic), serial); });
  return run;
}

void Verifier::Fail(const std::string& failure, const std::string& hint) {
  if (!report_.failure.empty()) return;
  report_.failure = failure;
  report_.hint = hint;
}

void Verifier::Quantity(const std::string& name, double difference, double tolerance,
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

std::string Verifier::HintForLoss(std::int64_t step) const {
  if (step > 0) return "Step 1 agreed: suspect how this step's windows are shared out.";
  return "The weights are the initial ones: suspect the forward pass" +
         DoesItPass(WithoutForward(grid_));
}

std::string Verifier::HintForGradients(const Differences& differences) const {
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
    return std::all_of(wrong.begin(), wrong.end(), [&](std::size_t i) { return sums_[i] == sum; });
  };
  if (DataRanksDisagree(grid_, differences, wrong)) {
    return "Data ranks hold different sums of one gradient, where an all-reduce gives all the "
           "same: suspect the transfers of the data group (MPI, network, memory) more than the "
           "layout" +
           DoesItPass(WithoutDataSum(grid_));
  }
  if (all_are(kernels::GradientSum::kTensor) && !grid_.SequenceParallel()) {
    return "Wrong are only norms of heads, whose gradients the tensor ranks sum, each over heads "
           "of "
           "its own: does it pass with model.qk_norm = no?";
  }
  if (all_are(kernels::GradientSum::kTensor)) {
    return "Wrong are only gradients that sequence parallelism sums over the tensor ranks, each of "
           "which sees other tokens: does it pass with grid.sequence_parallel = no?";
  }
  if (all_are(kernels::GradientSum::kTied)) {
    return "Wrong is only the tied embedding, whose gradient the first and the last stage sum: "
           "does it pass with model.tie_embeddings = no?";
  }
  if (all_are(kernels::GradientSum::kKeyValue)) {
    return "Wrong are only keys and values of heads that several tensor ranks share: does it pass "
           "with grid.tensor no larger than model.kv_heads?";
  }
  if (right == 0) {
    return "Every gradient is wrong: suspect what all share, the sum over the data ranks" +
           DoesItPass(WithoutDataSum(grid_));
  }
  return fmt::format(
      "{} of {} gradients are wrong, the last in the order of the forward pass is {}'s: backward, "
      "the mistake starts near it{}",
      wrong.size(), differences.all.size(), report_.tensors[wrong.back()].name,
      DoesItPass(WithoutAny(grid_)));
}

std::string Verifier::HintForNorm() const {
  const bool sharded = grid_.Shards() != comm::Sharding::kNone;
  return "Each gradient agreed: suspect elements that are counted twice or never in the norm" +
         DoesItPass(sharded ? Keys{"grid.sharding = none"} : Keys{});
}

std::string Verifier::HintForUpdate() const {
  if (grid_.Shards() == comm::Sharding::kNone) {
    return "The gradients agreed: suspect clipping or the optimizer.";
  }
  return "The gradients agreed: suspect what each owner updates, or how others get it: does it "
         "pass "
         "with grid.sharding = none?";
}

std::string Verifier::HintForEvaluation() const {
  return "Training agreed: suspect how evaluation shares out its windows" +
         DoesItPass(WithoutForward(grid_));
}

std::string Verifier::HintForBits(bool forward) const {
  Keys keys = forward ? WithoutForward(grid_) : WithoutAny(grid_);
  if (stream_.threads > 1) keys.push_back("run.threads = 1");
  return "Rounding depends on the layout, where run.canonical fixes every sum's tree and what is "
         "computed together" +
         DoesItPass(keys);
}

void Verifier::CompareTensors(const std::string& when, const char* what,
                              const Differences& differences, double VerifiedTensor::*column,
                              const std::string& hint) {
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
  const std::string others =
      count > 1 ? fmt::format(", and {} of the other {} too", count - 1, differences.all.size() - 1)
                : "";
  Fail(fmt::format("{} the {} of {} differs by {:.1e} (tolerance {:.0e}), most on {}{}", when, what,
                   report_.tensors[first].name, differences.all[first], kFp64, where, others),
       column == &VerifiedTensor::gradient ? HintForGradients(differences) : hint);
}

void Verifier::CompareStep(std::int64_t step, Run& alone) {
  const std::string when = fmt::format("in step {}", step + 1);
  const train::StepResult wanted = StepAlone(alone, step), got = StepOnGrid(*on_grid_, step);
  losses_.push_back(got.loss);
  Quantity("loss, fp64", RelativeDifference(got.loss, wanted.loss), kFp64, when + " the loss",
           HintForLoss(step));
  CompareTensors(when, "gradient",
                 Compare(grid_, on_grid_->state.GradientBlocks(), alone.state.GradientBlocks()),
                 &VerifiedTensor::gradient, "");
  Quantity("gradient norm, fp64", RelativeDifference(got.gradient_norm, wanted.gradient_norm),
           kFp64, when + " the gradient norm", HintForNorm());
  CompareTensors(when, "update",
                 Compare(grid_, on_grid_->state.ModelBlocks(), alone.state.ModelBlocks()),
                 &VerifiedTensor::weights, HintForUpdate());
}

void Verifier::CompareSteps() {
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
  CompareEvaluation(*alone);
}

void Verifier::CompareEvaluation(Run& alone) {
  double wanted = 0;
  ByItself([&] { wanted = data_.ValidationLoss(alone.state.Net()); });
  const double got = data_.ValidationLoss(on_grid_->state.Net());
  Quantity("evaluation loss, fp64", RelativeDifference(got, wanted), kFp64, "the evaluation loss",
           HintForEvaluation());
}

// fp8: those of a rank by itself and of the grid take turns in the products that both use.
void Verifier::SwapScales() {
  const device::Stream& stream = stream_;
  kernels::Libraries* const libraries = kernels::LibrariesOf(stream);
  if (libraries == nullptr) return;
  std::vector<float> others = libraries->Scales();
  libraries->SetScales(stream, scales_);
  scales_ = std::move(others);
}

void Verifier::CompareLosses() {
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

Verification Verify(const comm::ProcessGrid& grid, const train::TrainingOptions& small,
                    const device::Stream& stream, Dtype precision, const std::string& folder) {
  return Verifier(grid, small, stream, folder).CompareAll(precision);
}

}  // namespace trireme::tasks
