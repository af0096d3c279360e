// TrainingStep: the tasks of a step, faults, steps on a GPU, and files of chosen algorithms.
#include "trireme/train/training_step.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>

#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::train {

TrainingStep::TrainingStep(TrainingState& state, const data::Corpus& tokens)
    : state_(state),
      masked_(state.Plan().model.document_mask || tokens.HasMask(data::Split::kTrain)),
      done_(state.Stream()) {
  auto loader = std::make_unique<BatchLoader>(state, tokens);
  windows_ = loader.get();
  loader_ = std::move(loader);
  Begin();
}

TrainingStep::TrainingStep(TrainingState& state, const data::PairFile& pairs)
    : state_(state), masked_(false), done_(state.Stream()) {
  Grid().World().Together([&] {
    auto loader = std::make_unique<PairLoader>(state, pairs);
    pairs_ = loader.get();
    loader_ = std::move(loader);
  });
  Begin();
}

void TrainingStep::Begin() {
  if (kernels::Libraries* const libraries = kernels::LibrariesOf(Stream())) {
    libraries->SetScales(Stream(), {});
  }
}

StepResult TrainingStep::Run(std::int64_t step, const Requests& mine, OnFault on_fault) {
  if (Trace() != nullptr) Trace()->SetStep(step + 1);
  const device::Scope scope(
      Trace(), {.name = device::SliceName::kStep, .category = device::SliceCategory::kStep});
  window_start_ = Seconds();
  step_ = step;
  result_ = {};
  LoadBatch();
  if (Stream().OnGpu()) {
    Rehearse();
    GradientsOnGpu();
    LoadNextBatch();
    AwaitGradients();
  } else {
    ComputeGradients();
    SumGradients();
  }
  CountTargets();
  MeasureGradient();
  AgreeOnStep(mine);
  if (!result_.fault) {
    LookAtGradients();
    UpdateWeights();
  }
  if (result_.fault) LeaveOutUpdate(on_fault);
  mine_.total += Seconds() - window_start_;
  return result_;
}

void TrainingStep::Move(const data::Origin& origin) {
  if (windows_ != nullptr) windows_->Move(origin);  // the order of pairs is fixed
  next_.step = -1;                                  // discards what was loaded from the old place
}

double TrainingStep::Waited() const {
  double sum = 0;
  for (int group = 0; group < comm::kGroups; ++group) {
    const auto name = static_cast<comm::Group>(group);
    if (name != comm::Group::kPipeline) sum += Grid().Traffic().SecondsWaited(name);
  }
  return sum;
}

void TrainingStep::LoadBatch() {
  const device::ProfileRange range("load batch");
  const device::Scope scope(
      Trace(), {.name = device::SliceName::kLoadBatch, .category = device::SliceCategory::kData});
  const double start = Seconds();
  if (next_.step == step_) {
    std::swap(now_, next_);
  } else {
    loader_->Load(step_, now_);
  }
  result_.tokens = result_.targets = loader_->Targets(step_);
  mine_.data += Seconds() - start;
}

model::StagedBatches::Taken TrainingStep::TakeBatch() {
  if (!now_.staged) now_.staged = Net().Tasks().Batches().Stage(now_.Entries());
  model::StagedBatches::Staged staged = std::move(*now_.staged);
  now_.staged.reset();
  return Net().Tasks().Batches().Take(std::move(staged));
}

void TrainingStep::ComputeGradients() {
  const device::Scope scope(Trace(), {.name = device::SliceName::kGradients});
  const double start = Seconds(), waited = Waited();
  state_.QueueGradients(TakeBatch());
  double exposed = Waited() - waited, bubble = 0;
  if (now_.count > 0) {
    bubble = Net().Tasks().Stages().SecondsWaitedForInput();
    exposed += Net().Tasks().Stages().SecondsWaitedForOutput();
  }
  AddTimes(start, exposed, bubble);
}

void TrainingStep::AddTimes(double start, double exposed, double bubble) {
  mine_.bubble += bubble;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - start - exposed - bubble;
}

void TrainingStep::SumGradients() {
  // Only the waits are counted; the rest of the time is in no part of the step's times.
  const device::Scope scope(Trace(), {.name = device::SliceName::kSumGradients,
                                      .category = device::SliceCategory::kStep});
  const double waited = Waited();
  state_.QueueSums(step_);
  mine_.exposed_communication += Waited() - waited;
}

// The mean loss is a global sum divided by a global count. Without masks the count depends on the
// step alone.
void TrainingStep::CountTargets() {
  if (!masked_) return;
  const device::Scope scope(Trace(), {.name = device::SliceName::kCountTargets});
  const double start = Seconds(), waited = Waited();
  std::array<std::int64_t, TrainingState::kCounts> counts{};
  for (const data::Entry& entry : now_.Entries()) {
    counts[0] += entry.valid;
    counts[1] += entry.visible_keys;
  }
  state_.SumOfBatch(counts);
  result_.targets = counts[0];
  result_.visible_keys = counts[1];
  AddTimes(start, Waited() - waited);
}

// Comes before the agreement: a sum that is not finite on one rank is a fault for all ranks. On a
// GPU this is the first check of the gradients.
void TrainingStep::MeasureGradient() {
  const device::Scope scope(Trace(), {.name = device::SliceName::kGradientNorm});
  const double start = Seconds(), waited = Waited();
  // Without a target the gradient is zero; avoid 0 / 0.
  result_.gradient_norm = state_.GradientNorm(std::max<std::int64_t>(result_.targets, 1));
  AddTimes(start, Waited() - waited);
}

// One small all-reduce carries all that the ranks must agree on before the weights change, and the
// times since the last agreement.
void TrainingStep::AgreeOnStep(const Requests& mine) {
  const device::Scope scope(
      Trace(), {.name = device::SliceName::kAgreement, .category = device::SliceCategory::kWait});
  const double start = Seconds();
  mine_.total += start - window_start_;
  window_start_ = start;
  const ExactSum loss = now_.count == 0 ? ExactSum() : Net().Tasks().FinishLoss();
  const bool finite_loss = std::isfinite(loss.Value());
  const bool bad =
      !finite_loss || !state_.NotFinite().empty() || !std::isfinite(result_.gradient_norm);
  using State = TrainingState;
  std::array<double, State::kAgreed> sums{};
  sums[State::kBad] = bad ? 1 : 0;
  sums[State::kUnread] = now_.unread ? 1 : 0;
  sums[State::kSignal] = mine.signal ? 1 : 0;
  sums[State::kWalltime] = mine.walltime ? 1 : 0;
  sums[State::kCheckpoint] = mine.checkpoint ? 1 : 0;
  sums[State::kBusy] = mine.busy ? 1 : 0;
  sums[State::kTotal] = mine_.total;
  sums[State::kData] = mine_.data;
  sums[State::kCompute] = mine_.compute;
  sums[State::kExposed] = mine_.exposed_communication;
  sums[State::kBubble] = mine_.bubble;
  // The loss is summed exactly: layouts that compute the same terms get the same sum.
  const std::span<double> digits = std::span(sums).subspan(State::kLossDigits);
  std::ranges::copy((finite_loss ? loss : ExactSum()).Digits(), digits.begin());
  state_.Agree(sums);
  if (sums[State::kUnread] > 0) Grid().World().Together([&] { loader_->RequireRead(); });
  result_.loss = ExactSum::FromDigits(digits).Value() / static_cast<double>(result_.targets);
  result_.requests = {sums[State::kSignal] > 0, sums[State::kWalltime] > 0,
                      sums[State::kCheckpoint] > 0, sums[State::kBusy] > 0};
  const double ranks = Grid().World().Size();
  result_.times = {sums[State::kTotal] / ranks, sums[State::kData] / ranks,
                   sums[State::kCompute] / ranks, sums[State::kExposed] / ranks,
                   sums[State::kBubble] / ranks};
  result_.own_compute = mine_.compute;
  mine_ = {};
  if (sums[State::kBad] > 0) {
    result_.fault = FindFault(finite_loss);
  } else if (result_.targets == 0) {
    result_.fault = Fault{.what = "no target of this batch counts", .more = {}, .no_target = true};
  }
  mine_.exposed_communication += Seconds() - start;
}

void TrainingStep::LookAtGradients() {
  if (!look_) return;
  const double start = Seconds();
  std::exchange(look_, nullptr)(result_.targets);
  window_start_ += Seconds() - start;
}

void TrainingStep::UpdateWeights() {
  const device::ProfileRange range("update");
  const device::Scope scope(
      Trace(),
      {.name = device::SliceName::kUpdate, .phase = device::Phase::kUpdate, .queues = true});
  const double start = Seconds(), waited = Waited();
  result_.learning_rate = state_.Plan().options.schedule.Rate(step_ + 1);
  state_.Update(step_ + 1, result_.learning_rate, result_.gradient_norm, result_.targets);
  AddTimes(start, Waited() - waited);
}

namespace {

// Findings by priority of reporting, causes first: a parameter that is not finite spoils everything
// after it, a loss all gradients, and one rank's gradient the sums.
enum Order : std::int64_t { kParameter, kLoss, kGradient, kSummedGradient, kNorm, kNothing };

// While this object lives, the host calls grid.Await to wait for the matrix products that it times,
// as for a step's work: so a lost rank is noticed, and watchdogs know what the host waits for.
class GridWaits {
 public:
  GridWaits(kernels::Libraries& libraries, const comm::ProcessGrid& grid) : libraries_(libraries) {
    libraries_.WaitBy([&grid](const device::Event& event) { grid.Await(event); });
  }
  ~GridWaits() { libraries_.WaitBy({}); }
  GridWaits(const GridWaits&) = delete;
  GridWaits& operator=(const GridWaits&) = delete;

 private:
  kernels::Libraries& libraries_;
};

// A hash of GPU, library and list of products, without the choices made for them.
std::uint64_t NumberOfProducts(const std::string& chosen) {
  const nlohmann::json text = nlohmann::json::parse(chosen);
  std::string names = text.at("card").get<std::string>() + text.at("library").get<std::string>();
  for (const nlohmann::json& each : text.at("products")) {
    names += each.at("product").get<std::string>() + "\n";
  }
  return std::hash<std::string>{}(names);
}

}  // namespace

std::string Fault::Text(const std::string& host) const {
  if (no_target) return what;
  return fmt::format("{} on rank {}{}{}", what, rank, host.empty() ? "" : " (" + host + ")", more);
}

// Adds the layer to a parameter's name: "blocks.1.ffn.down.weight (layer 2 of 12)".
std::string TrainingStep::Named(const std::string& parameter) const {
  constexpr std::string_view kBlocks = "blocks.";
  if (!parameter.starts_with(kBlocks)) return parameter;
  std::int64_t block = 0;
  const char* const end = parameter.data() + parameter.size();
  if (std::from_chars(parameter.data() + kBlocks.size(), end, block).ec != std::errc()) {
    return parameter;
  }
  return fmt::format("{} (layer {} of {})", parameter, block + 1,
                     state_.Plan().model.options.Blocks());
}

TrainingStep::Finding TrainingStep::LookForFault(bool finite_loss) {
  const std::string gradient = state_.NotFinite();
  if (finite_loss && gradient.empty()) {
    if (std::isfinite(result_.gradient_norm)) return {.order = kNothing, .what = {}};
    const std::string summed = state_.FirstNotFinite();
    if (summed.empty()) return {.order = kNorm, .what = "the gradient's norm is not finite"};
    return {.order = kSummedGradient,
            .what = fmt::format("the gradient of {} is not finite, summed over the ranks,",
                                Named(summed))};
  }
  Finding mine{.order = kGradient, .what = "the loss is not finite"};
  if (finite_loss) mine.what = fmt::format("the gradient of {} is not finite", Named(gradient));
  const std::string parameter = state_.FirstParameterNotFinite();
  if (!parameter.empty()) {
    mine.order = kParameter;
    mine.more = fmt::format("; nor is the parameter {}", Named(parameter));
  } else if (!finite_loss) {
    mine.order = kLoss;
    const std::string tensor = gradient.empty() ? state_.FirstNotFinite() : gradient;
    if (!tensor.empty()) mine.more = fmt::format("; nor is the gradient of {}", Named(tensor));
  }
  return mine;
}

// Among findings of equal order, that of the lowest rank is reported.
Fault TrainingStep::FindFault(bool finite_loss) {
  const Finding mine = LookForFault(finite_loss);
  const comm::Communicator& world = Grid().World();
  const std::int64_t first = world.Min(mine.order * world.Size() + world.Rank());
  Fault fault{.rank = static_cast<int>(first % world.Size()), .what = {}, .more = {}};
  fault.what = world.Broadcast(mine.what, fault.rank);
  fault.more = world.Broadcast(mine.more, fault.rank);
  return fault;
}

void TrainingStep::LeaveOutUpdate(OnFault on_fault) {
  if (on_fault == OnFault::kThrow) {
    Grid().World().Together([&] {
      throw RunError(fmt::format("step {}: {}", step_ + 1, result_.fault->Text()),
                     result_.fault->Advice());
    });
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  result_.loss = result_.gradient_norm = kNone;
  result_.learning_rate = state_.Plan().options.schedule.Rate(step_ + 1);
  // Zeroes the gradients, as the update would have done: the next step must not add to this step's.
  // A recorded graph may rely on the update to do it.
  Net().Parameters().DropGradients();
}

// TrainingStep on a GPU: the host queues a step's work or launches it as one graph, then loads the
// next batch in the meantime.

void TrainingStep::QueueOnGpu(model::StagedBatches::Taken batch) {
  state_.QueueGradients(std::move(batch));
  state_.QueueSums(step_);
}

void TrainingStep::Rehearse() {
  kernels::Libraries* const libraries = kernels::LibrariesOf(Stream());
  if (libraries == nullptr || (libraries->Sealed() && libraries->Scaled())) return;
  const device::ProfileRange range("rehearsal");
  const comm::Communicator& world = Grid().World();
  const std::string& asked = state_.Plan().options.products_file;
  const std::string file = asked == "auto" ? ChoicesFile(libraries->Chosen()) : asked;
  if (!libraries->Sealed()) TakeKeptChoices(world, file, *libraries);
  const comm::Ledger before = Grid().Traffic();
  Net().Tasks().Stages().ReceiveLate(true);
  {
    // Timed products are queued after transfers, whose other rank may be lost.
    const GridWaits waits(*libraries, Grid());
    QueueOnGpu(Net().Tasks().Batches().Take(now_.Entries()));
  }
  done_.Record(Stream().gpu->queue);
  Grid().Await(done_);
  Grid().TakeExposed();
  if (!libraries->Sealed()) {
    // GPUs of different kinds each keep their own choices.
    AgreeOnChoices(world, *libraries);
    libraries->Seal();
    KeepChoices(world, file, *libraries);
  }
  state_.UpdateScales();
  Grid().Traffic() = before;
}

// Whether steps are recorded as a graph. Impossible with several stages, or with gathered values or
// scattered gradients: there the host makes decisions during the step. With dropout of weights,
// whose masks depend on the step, kernels get the step's number from the host.
bool TrainingStep::RecordsGraph() const {
  return state_.Plan().options.graphs && state_.Plan().model.options.weight_dropout == 0 &&
         Grid().Shape().pipeline == 1 && !Net().Units().ValuesSharded() &&
         !Net().Units().GradientsSharded() && Grid().Recordable();
}

void TrainingStep::GradientsOnGpu() {
  const device::ProfileRange range("gradients");
  const device::Scope scope(Trace(), {.name = device::SliceName::kGradients, .queues = true});
  gradients_start_ = Seconds();
  waited_before_ = Waited();
  bubble_before_ = Grid().Traffic().SecondsWaited(comm::Group::kPipeline);
  model::StagedBatches::Taken batch = TakeBatch();
  const bool whole = loader_->Whole(step_) && !now_.unread;
  Net().Tasks().Stages().ReceiveLate(!whole || !warm_);
  if (!whole || !warm_ || !RecordsGraph()) {
    QueueOnGpu(std::move(batch));
    warm_ = warm_ || whole;
    return;
  }
  // A graph cannot wait for gathers that were started outside of it.
  state_.FinishUpdate();
  // A graph that was recorded before kernels were traced is recorded again.
  const bool told = Trace() != nullptr && Trace()->TellsKernels();
  if (graph_.Recorded() && (!told || graph_told_)) {
    graph_.Launch(Stream());
    Net().Tasks().Replayed(std::move(batch));
    Grid().Traffic().Add(graph_traffic_);
    return;
  }
  RecordGraph(std::move(batch));
  graph_told_ = told;
  graph_.Launch(Stream());
}

void TrainingStep::RecordGraph(model::StagedBatches::Taken batch) {
  const comm::Ledger before = Grid().Traffic();
  Grid().Traffic().TraceInto(nullptr);  // events inside a graph give no times
  graph_ = {};
  graph_.Begin(Stream());
  try {
    QueueOnGpu(std::move(batch));
  } catch (...) {
    graph_.Abandon(Stream());
    throw;
  }
  graph_.End(Stream());
  graph_traffic_ = Grid().Traffic();
  graph_traffic_.Subtract(before);
  Grid().Traffic().TraceInto(before.Trace());
}

void TrainingStep::LoadNextBatch() {
  if (step_ + 1 >= state_.Plan().options.schedule.Last()) return;
  const device::ProfileRange range("load next batch");
  const device::Scope scope(
      Trace(), {.name = device::SliceName::kLoadBatch, .category = device::SliceCategory::kData});
  const double start = Seconds();
  loader_->Load(step_ + 1, next_);
  next_.staged = Net().Tasks().Batches().Stage(next_.Entries());
  const double seconds = Seconds() - start;
  mine_.data += seconds;
  gradients_start_ += seconds;  // of the GPU's work, only what the host waits for is counted
}

void TrainingStep::AwaitGradients() {
  const device::ProfileRange range("await gradients");
  const device::Scope scope(Trace(), {.name = device::SliceName::kAwaitGradients});
  done_.Record(Stream().gpu->queue);
  Grid().Await(done_);
  Grid().TakeExposed();
  if (Trace() != nullptr) Trace()->Settle();
  AddTimes(gradients_start_, Waited() - waited_before_,
           Grid().Traffic().SecondsWaited(comm::Group::kPipeline) - bubble_before_);
}

// Files of chosen algorithms for matrix products: reading, agreement among ranks, writing.

namespace fs = std::filesystem;

std::string ChoicesFile(const std::string& chosen) {
  const auto of = [](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  std::string folder = of("XDG_CACHE_HOME");
  if (folder.empty()) {
    folder = of("HOME");
    if (folder.empty()) return "";
    folder += "/.cache";
  }
  const nlohmann::json text = nlohmann::json::parse(chosen);
  std::string name =
      text.at("card").get<std::string>() + " " + text.at("library").get<std::string>();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return fmt::format("{}/trireme/products_{}.json", folder, name);
}

void TakeKeptChoices(const comm::Communicator& world, const std::string& file,
                     kernels::Libraries& libraries) {
  std::stringstream text;
  if (world.IsRoot() && !file.empty()) {
    std::ifstream in(file);
    if (in) text << in.rdbuf();
  }
  const std::string kept = world.Broadcast(text.str());
  if (!kept.empty()) libraries.Adopt({kept});
}

void AgreeOnChoices(const comm::Communicator& world, kernels::Libraries& libraries) {
  const std::string own = libraries.Chosen();
  const std::vector<std::uint64_t> numbers =
      comm::GatherAll(world, std::vector{NumberOfProducts(own)});
  const auto first =
      std::find(numbers.begin(), numbers.end(), numbers.at(static_cast<std::size_t>(world.Rank())));
  const bool mine = first - numbers.begin() == world.Rank();
  std::vector<std::string> texts = world.Gather(mine ? own : std::string());
  std::erase(texts, std::string());
  libraries.Adopt(texts);
}

void KeepChoices(const comm::Communicator& world, const std::string& file,
                 const kernels::Libraries& libraries) {
  if (!world.IsRoot() || file.empty()) return;
  std::error_code error;
  const fs::path folder = fs::path(file).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  // Jobs on other nodes may be writing the same file: the temporary name must be unique.
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string temporary = fmt::format("{}.{}.{}", file, host.data(), getpid());
  Replacement out(file, temporary);
  out.Write(libraries.Chosen());
  out.Write("\n");
  error = out.Place();
  if (!error) return;
  fmt::print(stderr,
             "warning: {}: the algorithms of the matrix products could not be kept ({}): another "
             "run may choose others, and round otherwise (run.products)\n",
             file, error.message());
}

}  // namespace trireme::train
