// job.task = scaling: measures all points in rounds and writes the results after each round.
#include "trireme/tasks/scaling.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <span>

#include "root.hpp"
#include "rows.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/training_state.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// Measurement: runs steps on a part of the world and splits their times by cause.

namespace {

class Measurement {
 public:
  Measurement(const app::Request& request, const app::Ranks& ranks, const app::Device& device,
              const comm::Communicator& group, const train::Plan& plan, app::Deadline& deadline)
      : request_(request),
        ranks_(ranks),
        device_(device),
        group_(group),
        deadline_(deadline),
        grid_(group, plan.grid, plan.sharing) {}

  // Collective over `group`, for whose ranks the plan is. Trains from initial weights. nullopt if a
  // signal or the end of the job's time stopped it. PartError if a step cannot be computed.
  std::optional<Round> Run(const train::Plan& plan, const Texts& texts,
                           const ScalingOptions& options) {
    app::ArmSetUp(*ranks_.runtime, request_.machine.hang_timeout);
    device::MemoryTerms memory;
    group_.Together([&] { memory = train::PlanMemory(plan, group_.Rank()); });
    app::UseGpu(request_, device_, memory, grid_);
    train::TrainingState state(grid_, plan.training, device_.stream);
    train::TrainingStep step = texts.pairs != nullptr ? train::TrainingStep(state, *texts.pairs)
                                                      : train::TrainingStep(state, *texts.corpus);
    for (std::int64_t i = 0; i < options.warmup_steps + options.steps; ++i) {
      const comm::Ledger before = at_agreement_;
      const train::StepResult result = RunStep(step, i);
      if (result.requests.signal || result.requests.walltime) return std::nullopt;
      if (i >= options.warmup_steps) Count(result, before);
    }
    return Finish();
  }

 private:
  train::StepResult RunStep(train::TrainingStep& step, std::int64_t number) {
    if (!device_.placement.numbers.empty()) device::PinThreads(device_.placement.numbers);
    ranks_.Watch().Arm(
        comm::Phase::kStep, number + 1,
        app::HangBound(comm::Phase::kStep, request_.machine.hang_timeout, deadline_));
    train::Requests mine;
    mine.signal = ranks_.signals->Received();
    mine.walltime = group_.IsRoot() && deadline_.MustStop(Seconds() + last_, false);
    // Transfers are counted until the ranks agree on the update, where the step's time ends too.
    step.BeforeNextUpdate([this](std::int64_t) { at_agreement_ = grid_.Traffic(); });
    train::StepResult result = step.Run(number, mine);
    last_ = result.times.total;
    deadline_.Step(last_);
    return result;
  }

  void Count(const train::StepResult& result, const comm::Ledger& before) {
    round_.seconds.push_back(result.times.total);
    round_.tokens += static_cast<double>(result.tokens);
    round_.loss += result.loss;
    Split& split = round_.split;
    split.compute += result.times.compute;
    split.data += result.times.data;
    split.bubble += result.times.bubble;
    exposed_ += result.times.exposed_communication;
    compute_.push_back(result.own_compute);
    comm::Ledger now = at_agreement_;
    now.Subtract(before);
    for (std::size_t group = 0; group < split.waited.size(); ++group) {
      waited_[group] += now.SecondsWaited(static_cast<comm::Group>(group));
    }
  }

  // Turns sums into means over ranks and steps.
  Round Finish() {
    const auto steps = static_cast<double>(round_.seconds.size());
    const double ranks = group_.Size();
    Split& split = round_.split;
    split.compute /= steps;
    split.data /= steps;
    split.bubble /= steps;
    exposed_ /= steps;
    round_.tokens /= steps;
    round_.loss /= steps;
    group_.Sum(waited_);
    comm::GroupSeconds waited{};
    for (std::size_t i = 0; i < waited.size(); ++i) waited[i] = waited_[i] / (steps * ranks);
    split.waited = comm::ExposedByGroup(waited, split.bubble, exposed_);
    split.other = round_.Mean() - split.compute - split.data - split.bubble - exposed_;
    split.imbalance = std::min(Imbalance(ComputeOfAll(), grid_.Shape()), exposed_);
    return round_;
  }

  // Computation time in seconds of each rank in each step, [ranks, steps].
  std::vector<double> ComputeOfAll() const {
    std::vector<double> all(static_cast<std::size_t>(group_.Size()) * compute_.size());
    std::copy(compute_.begin(), compute_.end(),
              all.begin() + static_cast<std::ptrdiff_t>(group_.Rank()) * std::ssize(compute_));
    group_.Sum(all);
    return all;
  }

  const app::Request& request_;
  const app::Ranks& ranks_;
  const app::Device& device_;
  const comm::Communicator& group_;
  app::Deadline& deadline_;
  comm::ProcessGrid grid_;
  comm::Ledger at_agreement_;    // this rank's transfers until the agreement
  std::vector<double> compute_;  // [measured steps], this rank's computation in seconds
  std::vector<double> waited_ = std::vector<double>(comm::kGroups);  // seconds, sums over steps
  double exposed_ = 0;
  double last_ = 0;  // seconds of the last step
  Round round_;
};

}  // namespace

double Round::Mean() const { return MeanOf(seconds); }

double Imbalance(const std::vector<double>& compute, const comm::GridShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.Ranks());
  const auto stages = static_cast<std::size_t>(shape.pipeline);
  const std::size_t steps = compute.size() / ranks, of_stage = ranks / stages;
  double sum = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t stage = 0; stage < stages; ++stage) {
      // Ranks of one stage are numbered consecutively.
      double most = 0, all = 0;
      for (std::size_t rank = stage * of_stage; rank < (stage + 1) * of_stage; ++rank) {
        most = std::max(most, compute[rank * steps + step]);
        all += compute[rank * steps + step];
      }
      sum += most * static_cast<double>(of_stage) - all;
    }
  }
  return sum / static_cast<double>(ranks * steps);
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kTable = "scaling.csv";

// Checks that the study starts from initial weights, in a folder without another study's results.
void CheckStart(const app::Request& request, const comm::Communicator& world) {
  if (!request.line.resume.empty()) {
    throw InputError("command line: -r has no meaning for job.task = scaling",
                     "Leave it out: a study starts from initial weights.");
  }
  if (!request.checkpoint.start_from.empty()) {
    throw request.deck.Complain("checkpoint.start_from",
                                "a scaling study starts from initial weights",
                                "Leave it out: checkpoint.start_from=");
  }
  if (!world.IsRoot()) return;
  const std::string& folder = request.job.output;
  const auto refuse_one_with = [&](const char* name) {
    std::error_code ignored;
    if (!fs::exists(fs::path(folder) / name, ignored)) return;
    throw InputError(fmt::format("{}: holds a {} already", folder, name),
                     "Remove the folder, or choose another job.name or job.output.");
  };
  refuse_one_with(kTable);
  report::CheckRunFolder(folder, false);  // refuses a run's folder; below, any deck.in
  refuse_one_with("deck.in");
}

// Collective. Checks memory and transfers of every point.
void CheckPoints(const app::Request& request, const app::Ranks& ranks, const app::Device& device,
                 const Study& study) {
  const comm::Communicator& world = ranks.World();
  for (const Point& point : study.points) {
    const bool member = world.Rank() < point.size.ranks;
    device::MemoryTerms memory;
    world.Together([&] {
      if (member) memory = train::PlanMemory(point.plan, world.Rank());
    });
    const auto grid = comm::ProcessGrid::Planned(point.plan.grid, point.plan.sharing,
                                                 std::min(world.Rank(), point.size.ranks - 1));
    app::CheckMemory(request, ranks, device, memory, grid);
    world.Together([&] {
      if (member) train::CheckTransfers(point.plan, world.Rank());
    });
  }
  if (study.points.front().plan.training.model.canonical.On()) {
    train::CheckInstructionSets(world);
  }
}

// Runs the study through its points.
class Runner {
 public:
  Runner(const app::Request& request, const app::Ranks& ranks, const app::Device& device,
         Study& study, const Texts& texts)
      : request_(request),
        ranks_(ranks),
        device_(device),
        study_(study),
        texts_(texts),
        deadline_(app::ReadBatchJob().end_unix_seconds, UnixSeconds(), Seconds()) {
    deadline_.ExpectCheckpoint(0);  // a study writes no checkpoints
    const comm::Communicator& world = ranks.World();
    for (const int count : study.counts) {
      const bool member = world.Rank() < count;
      groups_.emplace(count, world.Split(member ? 0 : 1, world.Rank(), "scaling"));
    }
  }

  // Every second round runs the points in reverse order, so that a machine that becomes slower or
  // faster during a round favours none.
  ExitCode Run() {
    for (std::int64_t round = 0; round < study_.options.repeats; ++round) {
      const double start = Seconds();
      std::vector<std::size_t> order(study_.points.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      if (round % 2 == 1) std::reverse(order.begin(), order.end());
      for (const std::size_t point : order) {
        if (!Measure(study_.points[point])) return Stop();
      }
      if (ranks_.World().IsRoot()) {
        Say("round   {} of {}: {:.1f} s", round + 1, study_.options.repeats, Seconds() - start);
      }
      Write();
    }
    Report();
    return ExitCode::kDone;
  }

 private:
  // Measures a point; false if a stop was asked for. Ranks that have no part in it sleep meanwhile.
  bool Measure(Point& point) {
    const comm::Communicator& world = ranks_.World();
    std::optional<Round> round;
    std::optional<PartError> failure;
    if (world.Rank() < point.size.ranks) {
      const comm::Communicator& group = groups_.at(point.size.ranks);
      try {
        round = Measurement(request_, ranks_, device_, group, point.plan, deadline_)
                    .Run(point.plan, texts_, study_.options);
      } catch (const PartError& error) {
        // If only some of the ranks threw, the others would wait for them for ever.
        if (error.Ranks() != group.Size()) throw;
        failure = error;
      }
    }
    ranks_.Watch().Disarm();
    world.QuietBarrier();
    app::ArmSetUp(*ranks_.runtime, request_.machine.hang_timeout);
    world.Together([&] {
      if (failure) throw *failure;
    });
    const bool member = world.Rank() < point.size.ranks;
    const bool stopped = (member && !round) || ranks_.signals->Received();
    if (round) point.rounds.push_back(std::move(*round));
    return world.Max(std::int64_t{stopped}) == 0;
  }

  // Collective. Writes the table of all results so far.
  void Write() const {
    AtRoot(ranks_.World(), [&] {
      const std::string text = Csv(RowsOf(study_), study_);
      if (!text.empty()) report::WriteWhole(Path(), text);
    });
  }

  void Report() const {
    if (!ranks_.World().IsRoot()) return;
    const std::vector<Row> rows = RowsOf(study_);
    if (rows.empty()) return;
    fmt::print("{}\n", Tables(rows));
    const bool half = device_.stream.bf16 || device_.stream.fp8;
    for (const std::string& fault : CompareLosses(rows, half ? kSameLossHalf : kSameLoss)) {
      fmt::print("warning: {}\n", fault);
    }
    Say("table   {}\nfigure  python3 vis/scaling.py {}", Path(), request_.job.output);
  }

  ExitCode Stop() {
    Write();
    Report();
    if (ranks_.World().IsRoot()) {
      Say("stopped: what was measured so far is written; a new study begins from its start");
    }
    return ExitCode::kStopped;
  }

  std::string Path() const { return (fs::path(request_.job.output) / kTable).string(); }

  const app::Request& request_;
  const app::Ranks& ranks_;
  const app::Device& device_;
  Study& study_;
  const Texts& texts_;
  app::Deadline deadline_;
  std::map<int, comm::Communicator> groups_;  // by number of ranks: those or the others
};

// On world rank 0. Makes the study's folder, with the deck in it.
void MakeFolder(const app::Request& request) {
  const std::string& folder = request.job.output;
  report::MakeOutputFolder(folder);
  report::WriteWhole((fs::path(folder) / "deck.in").string(), request.deck.Resolved());
}

}  // namespace

ExitCode RunScaling(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  app::ArmSetUp(*job.ranks.runtime, request.machine.hang_timeout);

  // 1. Read the options and plan the points.
  ScalingOptions options;
  world.Together([&] {
    options = ReadScaling(request.deck);
    CheckStart(request, world);
  });
  Study study = PlanStudy(request, job.ranks, job.device, job.files, options);
  CheckPoints(request, job.ranks, job.device, study);

  // 2. Load the tokens once for all points. Any rank may lead a replica in one of them.
  const comm::Communicator self = world.Split(world.Rank(), 0);
  const comm::ProcessGrid alone(self, comm::GridShape{});
  std::vector<data::TokenFile> files;
  std::optional<data::Corpus> corpus;
  std::optional<data::PairFile> pairs;
  Texts texts;
  if (request.model.Translates()) {
    texts.pairs = &pairs.emplace(app::OpenPairs(request, job.ranks));
  } else {
    files = app::OpenCorpus(request, job.ranks, job.files, alone);
    texts.corpus = &corpus.emplace(std::span<const data::TokenFile>(files));
  }
  if (world.IsRoot()) Say("{}", Head(request, job.device, study));
  if (request.line.validate_only) return app::SayValid(world);
  app::StopIfAsked(job.ranks);

  // 3. Run the rounds.
  AtRoot(world, [&] { MakeFolder(request); });
  return Runner(request, job.ranks, job.device, study, texts).Run();
}

}  // namespace trireme::tasks
