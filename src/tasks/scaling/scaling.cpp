// job.task = scaling: measures all points in rounds and writes the results after each round.
#include "trireme/tasks/scaling.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include "root.hpp"
#include "rows.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/training_state.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

namespace {

// `error` as an InputError that names scaling.ranks and the number of ranks.
Error OnRanks(int ranks, const deck::Deck& deck, const Error& error) {
  const std::string where = deck.Where("scaling.ranks");
  return InputError(
      fmt::format("{}scaling.ranks: on {}: {}", where == "default" ? "" : where + ": ",
                  report::Counted(ranks, "rank"), error.what()),
      "Name in scaling.ranks only numbers of ranks that the deck's layout fits.");
}

std::vector<int> CountsOf(const app::Request& request, const comm::Communicator& world,
                          const ScalingOptions& options) {
  if (options.ranks.empty()) {
    const comm::Options& grid = request.comm;
    const std::int64_t unit = std::int64_t{grid.tensor} * grid.context * grid.pipeline;
    return DefaultCounts(static_cast<int>(std::clamp<std::int64_t>(unit, 1, world.Size())),
                         world.Size());
  }
  if (options.ranks.back() <= world.Size()) return options.ranks;
  throw request.deck.Complain(
      "scaling.ranks",
      fmt::format("{} are more than the job's {}", options.ranks.back(), world.Size()),
      fmt::format("Start the job with {} ranks, or name fewer.", options.ranks.back()));
}

Size SizeOf(const app::Request& request, const ScalingOptions& options, ScalingKind kind, int ranks,
            int base) {
  const std::int64_t batch = request.data.batch;
  const Size size{ranks, BatchOf(kind, batch, ranks, base)};
  if (size.batch > 0) return size;
  throw request.deck.Complain(
      options.base_ranks > 0 ? "scaling.base_ranks" : "scaling.ranks",
      fmt::format("data.batch = {} for {} makes no whole number of windows for {}", batch,
                  report::Counted(base, "rank"), report::Counted(ranks, "rank")),
      "Choose a data.batch that the ranks divide.");
}

// Throws unless the steps have whole batches and repeat no window (for pairs: lie within one
// epoch); otherwise their times would differ.
void CheckSteps(const app::Request& request, const ScalingOptions& options, const Size& size,
                const train::Plan& plan) {
  const std::int64_t wanted = options.warmup_steps + options.steps;
  if (plan.tokens.pairs) {
    if (wanted <= plan.StepsPerEpoch()) return;
    throw request.deck.Complain(
        "scaling.steps",
        fmt::format("{} and {} before them take more than an epoch on {}, of {}",
                    report::Counted(options.steps, "step"), options.warmup_steps,
                    report::Counted(size.ranks, "rank"),
                    report::Counted(plan.StepsPerEpoch(), "step")),
        "Lower scaling.steps, scaling.warmup_steps or data.batch_tokens, or take more pairs.");
  }
  const data::Sampler sampler(plan.training.options.samples);
  const std::int64_t whole = sampler.Windows() / size.batch;
  if (wanted <= whole) return;
  throw request.deck.Complain(
      "scaling.steps",
      fmt::format("{} and {} before them take more than an epoch on {}: {} make {} whole "
                  "batches of {}",
                  report::Counted(options.steps, "step"), options.warmup_steps,
                  report::Counted(size.ranks, "rank"), report::Counted(sampler.Windows(), "window"),
                  report::WithThousands(whole), report::WithThousands(size.batch)),
      "Lower scaling.steps, scaling.warmup_steps or data.batch, or take more text.");
}

// Data options of a point. The limit on tokens per step grows in proportion to the batch.
data::Options DataOf(const app::Request& request, const Size& size) {
  data::Options data = request.data;
  data.batch_tokens = data.batch_tokens * size.batch / data.batch;
  data.batch = size.batch;
  return data;
}

train::Plan PlanOf(const app::Request& request, const app::Device& device,
                   const train::TokenFacts& tokens, const Size& size) {
  app::DeckOptions options = request;
  options.data = DataOf(request, size);
  options.schedule.batch_ramp = 0;  // all steps are alike
  try {
    return train::MakePlan({.options = options,
                            .deck = request.deck,
                            .ranks = size.ranks,
                            .tokens = tokens,
                            .machine = app::FactsOf(device)});
  } catch (const Error& error) {
    throw OnRanks(size.ranks, request.deck, error);
  }
}

// Adds the lines of all kinds; lines with equal ranks and batch share a point.
void AddLines(const app::Request& request, Study& study, std::vector<Size>& sizes) {
  const int base = study.options.base_ranks > 0 ? study.options.base_ranks : study.counts.front();
  std::vector<std::pair<ScalingKind, Size>> wanted;
  for (const ScalingKind kind : study.options.kinds) {
    for (const int ranks : study.counts) {
      wanted.emplace_back(kind, SizeOf(request, study.options, kind, ranks, base));
    }
  }
  for (const auto& [kind, size] : wanted) {
    if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
  }
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const Size& a, const Size& b) { return a.ranks < b.ranks; });
  for (const auto& [kind, size] : wanted) {
    const auto place = std::find(sizes.begin(), sizes.end(), size) - sizes.begin();
    study.lines.push_back({kind, static_cast<std::size_t>(place)});
  }
}

// Makes the step that trains a state on the study's texts.
using MakeStep = std::function<train::TrainingStep(train::TrainingState&)>;

class Measurement {
 public:
  Measurement(const app::Job& job, const comm::Communicator& group, const train::Plan& plan,
              app::Deadline& deadline)
      : job_(job), group_(group), deadline_(deadline), grid_(group, plan.grid, plan.sharing) {}

  // Collective over `group`; the plan is for its ranks. Trains from initial weights. nullopt if a
  // signal or the end of the job's time stopped it. PartError if a step cannot be computed.
  std::optional<Round> Run(const train::Plan& plan, const MakeStep& make_step,
                           const ScalingOptions& options) {
    app::ArmSetUp(*job_.ranks.runtime, job_.request.machine.hang_timeout);
    device::MemoryTerms memory;
    group_.Together([&] { memory = train::PlanMemory(plan, group_.Rank()); });
    app::UseGpu(job_.request, job_.device, memory, grid_);
    train::TrainingState state(grid_, plan.training, job_.device.stream);
    train::TrainingStep step = make_step(state);
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
    const std::vector<int>& cores = job_.device.placement.numbers;
    if (!cores.empty()) device::PinThreads(cores);
    job_.ranks.Watch().Arm(
        comm::Phase::kStep, number + 1,
        app::HangBound(comm::Phase::kStep, job_.request.machine.hang_timeout, deadline_));
    train::Requests mine;
    mine.signal = job_.ranks.signals->Received();
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
    round_.split.Add(
        {.compute = result.times.compute, .data = result.times.data, .bubble = result.times.bubble},
        1);
    exposed_ += result.times.exposed_communication;
    compute_.push_back(result.own_compute);
    comm::Ledger now = at_agreement_;
    now.Subtract(before);
    for (std::size_t group = 0; group < waited_.size(); ++group) {
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

  const app::Job& job_;
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

// Collective. Checks that every point has the memory, and transfers that MPI can count.
void CheckPoints(const app::Job& job, const Study& study) {
  const comm::Communicator& world = job.ranks.World();
  for (const Point& point : study.points) {
    const bool member = world.Rank() < point.size.ranks;
    device::MemoryTerms memory;
    world.Together([&] {
      if (member) memory = train::PlanMemory(point.plan, world.Rank());
    });
    const auto grid = comm::ProcessGrid::Planned(point.plan.grid, point.plan.sharing,
                                                 std::min(world.Rank(), point.size.ranks - 1));
    app::CheckMemory(job.request, job.ranks, job.device, memory, grid);
    world.Together([&] {
      if (member) train::CheckTransfers(point.plan, world.Rank());
    });
  }
  if (study.points.front().plan.training.model.canonical.On()) {
    train::CheckInstructionSets(world);
  }
}

// Measures all points in each round, and writes the results.
class Runner {
 public:
  Runner(const app::Job& job, Study& study, const MakeStep& make_step)
      : job_(job),
        study_(study),
        make_step_(make_step),
        deadline_(app::ReadBatchJob().end_unix_seconds, UnixSeconds(), Seconds()) {
    deadline_.ExpectCheckpoint(0);  // a study writes no checkpoints
    const comm::Communicator& world = job.ranks.World();
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
      if (job_.ranks.World().IsRoot()) {
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
    const comm::Communicator& world = job_.ranks.World();
    std::optional<Round> round;
    std::optional<PartError> failure;
    if (world.Rank() < point.size.ranks) {
      const comm::Communicator& group = groups_.at(point.size.ranks);
      try {
        round = Measurement(job_, group, point.plan, deadline_)
                    .Run(point.plan, make_step_, study_.options);
      } catch (const PartError& error) {
        // If only some of the ranks threw, the others would wait for them for ever.
        if (error.Ranks() != group.Size()) throw;
        failure = error;
      }
    }
    job_.ranks.Watch().Disarm();
    world.QuietBarrier();
    app::ArmSetUp(*job_.ranks.runtime, job_.request.machine.hang_timeout);
    world.Together([&] {
      if (failure) throw *failure;
    });
    const bool member = world.Rank() < point.size.ranks;
    const bool stopped = (member && !round) || job_.ranks.signals->Received();
    if (round) point.rounds.push_back(std::move(*round));
    return world.Max(std::int64_t{stopped}) == 0;
  }

  // Collective. Writes the table of all results so far.
  void Write() const {
    AtRoot(job_.ranks.World(), [&] {
      const std::string text = Csv(RowsOf(study_), study_);
      if (!text.empty()) report::WriteWhole(Path(), text);
    });
  }

  void Report() const {
    if (!job_.ranks.World().IsRoot()) return;
    const std::vector<Row> rows = RowsOf(study_);
    if (rows.empty()) return;
    fmt::print("{}\n", Tables(rows));
    const bool half = job_.device.stream.bf16 || job_.device.stream.fp8;
    for (const std::string& fault : CompareLosses(rows, half ? kSameLossHalf : kSameLoss)) {
      fmt::print("warning: {}\n", fault);
    }
    Say("table   {}\nfigure  python3 vis/scaling.py {}", Path(), job_.request.job.output);
  }

  ExitCode Stop() {
    Write();
    Report();
    if (job_.ranks.World().IsRoot()) {
      Say("stopped: what was measured so far is written; a new study begins from its start");
    }
    return ExitCode::kStopped;
  }

  std::string Path() const { return (fs::path(job_.request.job.output) / kTable).string(); }

  const app::Job& job_;
  Study& study_;
  const MakeStep& make_step_;
  app::Deadline deadline_;
  std::map<int, comm::Communicator> groups_;  // by number n: the first n ranks, or the other ranks
};

}  // namespace

std::vector<int> DefaultCounts(int unit, int world) {
  std::vector<int> counts;
  for (std::int64_t ranks = unit; ranks < world; ranks *= 2) {
    counts.push_back(static_cast<int>(ranks));
  }
  counts.push_back(world);
  return counts;
}

std::int64_t BatchOf(ScalingKind kind, std::int64_t batch, int ranks, int base) {
  if (kind == ScalingKind::kStrong) return batch;
  return batch * ranks % base == 0 ? batch * ranks / base : 0;
}

Study PlanStudy(const app::Job& job, const ScalingOptions& options) {
  const app::Request& request = job.request;
  const app::Ranks& ranks = job.ranks;
  Study study{.options = options, .counts = {}, .points = {}, .lines = {}};
  std::vector<Size> sizes;
  ranks.World().Together([&] {
    study.counts = CountsOf(request, ranks.World(), options);
    for (const int count : study.counts) {
      try {
        train::PlanGrid(request, request.deck, count);
      } catch (const Error& error) {
        throw OnRanks(count, request.deck, error);
      }
    }
    AddLines(request, study, sizes);
    if (!ranks.World().IsRoot()) return;
    study.machine = predict::DescribeRun(request.plan.machine, app::FactsOf(job.device),
                                         SharedFolder(ProgramFile()));
  });
  std::vector<train::TokenFacts> tokens;
  for (const Size& size : sizes) {
    if (request.model.Translates()) {
      tokens.push_back(app::InspectPairs(request, ranks, DataOf(request, size)));
    } else {
      tokens.push_back(tokens.empty() ? app::InspectTokens(request, ranks, job.files)
                                      : tokens.front());
    }
  }
  ranks.World().Together([&] {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      study.points.push_back({.size = sizes[i],
                              .room = {},
                              .plan = PlanOf(request, job.device, tokens[i], sizes[i]),
                              .rounds = {}});
      CheckSteps(request, options, sizes[i], study.points.back().plan);
    }
  });
  for (Point& point : study.points) point.room = RoomOf(ranks, job.device, point.size.ranks);
  return study;
}

// RoomOf: a node's ranks exchange what they may use; totals are summed over nodes.
Room RoomOf(const app::Ranks& ranks, const app::Device& device, int count) {
  const comm::Communicator& world = ranks.World();
  const bool member = world.Rank() < count;
  const std::int64_t mine = member ? device.stream.threads : 0;
  std::string places;  // this rank's card or cores
  if (member && device.gpu != nullptr) {
    places = device.gpu->Context().address;
  } else if (member) {
    for (const device::HardwareThread& thread :
         device::DescribeThreads(ranks.signals->UsableCores())) {
      places += fmt::format("{} ", thread.core);
    }
  }
  std::set<std::string> of_node;
  for (const std::string& text : ranks.Node().Gather(places)) {
    std::istringstream words(text);
    for (std::string place; words >> place;) of_node.insert(place);
  }
  // Threads that need a core of their own; a rank on a GPU needs a card.
  const std::int64_t threads =
      ranks.Node().Sum(device.gpu == nullptr ? mine : std::int64_t{member});
  const std::int64_t cores = std::ssize(of_node);
  const bool counts = ranks.Node().IsRoot() && threads > 0;
  Room room;
  room.nodes = static_cast<int>(world.Sum(std::int64_t{counts}));
  room.threads = static_cast<int>(world.Max(mine));
  room.cores = static_cast<int>(world.Sum(counts ? cores : 0));
  room.oversubscribed = world.Max(std::int64_t{threads > cores}) > 0;
  return room;
}

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
  Study study = PlanStudy(job, options);
  CheckPoints(job, study);

  // 2. Load the tokens once for all points. Any rank may lead a replica in one of them.
  const comm::Communicator self = world.Split(world.Rank(), 0);
  const comm::ProcessGrid alone(self, comm::GridShape{});
  std::vector<data::TokenFile> files;
  std::optional<data::PairFile> pairs;
  if (request.model.Translates()) {
    pairs.emplace(app::OpenPairs(request, job.ranks));
  } else {
    files = app::OpenCorpus(request, job.ranks, job.files, alone);
  }
  const MakeStep make_step = [&](train::TrainingState& state) {
    if (pairs) return train::TrainingStep(state, *pairs);
    return train::TrainingStep(state, data::Corpus(std::span<const data::TokenFile>(files)));
  };
  if (world.IsRoot()) Say("{}", Head(request, job.device, study));
  if (request.line.validate_only) return app::SayValid(world);
  app::StopIfAsked(job.ranks);

  // 3. Run the rounds.
  AtRoot(world, [&] {
    report::MakeOutputFolder(request.job.output);
    report::WriteWhole(request.job.output + "/deck.in", request.deck.Resolved());
  });
  return Runner(job, study, make_step).Run();
}

}  // namespace trireme::tasks
