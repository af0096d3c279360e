// job.task = scaling: rounds over all points, results after each of them.
#include "trireme/tasks/scaling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "losses.hpp"
#include "report.hpp"
#include "table.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/app/hang_bound.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::tasks {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTable = "scaling.csv";

// A study starts from initial weights, in a folder without another's results.
void CheckStart(const app::Job& job) {
  if (!job.line->resume.empty()) {
    throw InputError("command line: -r has no meaning for job.task = scaling",
                     "Leave it out: a study starts from initial weights.");
  }
  if (!job.options.checkpoint.start_from.empty()) {
    throw job.deck.Complain("checkpoint.start_from", "a scaling study starts from initial weights",
                            "Leave it out: checkpoint.start_from=");
  }
  if (!job.World().IsRoot()) return;
  const std::string& folder = job.options.job.output;
  const auto refuse_one_with = [&](const char* name) {
    std::error_code ignored;
    if (!fs::exists(fs::path(folder) / name, ignored)) return;
    throw InputError(fmt::format("{}: holds a {} already", folder, name),
                     "Remove the folder, or choose another job.output.");
  };
  refuse_one_with(kTable);
  report::CheckRunFolder(folder, false);  // which tells a deck of the user's from a run's
  refuse_one_with("deck.in");
}

// Collective. Memory and transfers of every point.
void CheckPoints(const app::Job& job, const Study& study) {
  const comm::Communicator& world = job.World();
  for (const Point& point : study.points) {
    const bool member = world.Rank() < point.size.ranks;
    device::MemoryTerms memory;
    world.Together([&] {
      if (member) memory = train::PlanMemory(point.plan, world.Rank());
    });
    const auto grid = comm::ProcessGrid::Planned(point.plan.grid, point.plan.sharing,
                                                 std::min(world.Rank(), point.size.ranks - 1));
    app::CheckMemory(job, memory, grid);
    world.Together([&] {
      if (member) train::CheckTransfers(point.plan, world.Rank());
    });
  }
  if (study.points.front().plan.training.model.canonical.On()) {
    train::CheckInstructionSets(world);
  }
}

// The study's run through its points.
class Runner {
 public:
  Runner(app::Job& job, Study& study, const Texts& texts)
      : job_(job),
        study_(study),
        texts_(texts),
        deadline_(app::ReadBatchJob().end_unix_seconds, UnixSeconds(), Seconds()) {
    deadline_.ExpectCheckpoint(0);  // there is none
    for (const int ranks : study.counts) {
      const bool member = job.World().Rank() < ranks;
      groups_.emplace(ranks, job.World().Split(member ? 0 : 1, job.World().Rank(), "scaling"));
    }
  }

  // Every second round goes from the last point to the first: a machine that becomes slower or
  // faster meanwhile favours none.
  ExitCode Run() {
    for (std::int64_t round = 0; round < study_.options.repeats; ++round) {
      const double start = Seconds();
      std::vector<std::size_t> order(study_.points.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      if (round % 2 == 1) std::reverse(order.begin(), order.end());
      for (const std::size_t point : order) {
        if (!Measure(study_.points[point])) return Stop();
      }
      Say(fmt::format("round   {} of {}: {:.1f} s", round + 1, study_.options.repeats,
                      Seconds() - start));
      Write();
    }
    return Finish();
  }

 private:
  // False: a stop was asked for. Ranks that have no part sleep meanwhile.
  bool Measure(Point& point) {
    const comm::Communicator& world = job_.World();
    std::optional<Round> round;
    std::optional<PartError> failure;
    if (world.Rank() < point.size.ranks) {
      const comm::Communicator& group = groups_.at(point.size.ranks);
      try {
        round = MeasureRound(job_, group, point.plan, texts_, study_.options, deadline_);
      } catch (const PartError& error) {
        // Of fewer ranks than take part, others would wait for them for ever.
        if (error.Ranks() != group.Size()) throw;
        failure = error;
      }
    }
    job_.runtime->Watch().Disarm();
    world.QuietBarrier();
    app::ArmSetUp(*job_.runtime, job_.options.machine.hang_timeout);
    world.Together([&] {
      if (failure) throw *failure;
    });
    const bool member = world.Rank() < point.size.ranks;
    const bool stopped = (member && !round) || job_.signals->Received();
    if (round) point.rounds.push_back(std::move(*round));
    return world.Max(std::int64_t{stopped}) == 0;
  }

  void Say(const std::string& text) const {
    if (!job_.World().IsRoot()) return;
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }

  // Collective. The table of what there is.
  void Write() const {
    job_.World().Together([&] {
      if (!job_.World().IsRoot()) return;
      const std::string text = Csv(RowsOf(study_), study_);
      if (!text.empty()) report::WriteWhole(Path(), text);
    });
  }

  void Report() const {
    if (!job_.World().IsRoot()) return;
    const std::vector<Row> rows = RowsOf(study_);
    if (rows.empty()) return;
    fmt::print("{}\n", Tables(rows));
    const bool half = job_.stream.bf16 || job_.stream.fp8;
    for (const std::string& fault : CompareLosses(rows, half ? kSameLossHalf : kSameLoss)) {
      fmt::print("warning: {}\n", fault);
    }
    Say(fmt::format("table   {}\nfigure  python3 vis/scaling.py {}", Path(),
                    job_.options.job.output));
  }

  ExitCode Finish() {
    Report();
    return ExitCode::kDone;
  }

  ExitCode Stop() {
    Write();
    Report();
    Say("stopped: what was measured so far is written; a new study begins from its start");
    return ExitCode::kStopped;
  }

  std::string Path() const { return (fs::path(job_.options.job.output) / kTable).string(); }

  app::Job& job_;
  Study& study_;
  const Texts& texts_;
  app::Deadline deadline_;
  std::map<int, comm::Communicator> groups_;  // by ranks: this rank's side of the world
};

// World rank 0.
void MakeFolder(const app::Job& job) {
  const std::string& folder = job.options.job.output;
  report::MakeOutputFolder(folder);
  report::WriteWhole((fs::path(folder) / "deck.in").string(), job.deck.Resolved());
}

}  // namespace

ExitCode RunScaling(app::Job& job) {
  const comm::Communicator& world = job.World();
  app::ArmSetUp(*job.runtime, job.options.machine.hang_timeout);

  // 1. What is compared with what.
  ScalingOptions options;
  world.Together([&] {
    options = ReadScaling(job.deck);
    CheckStart(job);
  });
  Study study = PlanStudy(job, options);
  CheckPoints(job, study);

  // 2. The tokens, once for all points. Any rank may lead a replica in one of them.
  const comm::Communicator self = world.Split(world.Rank(), 0);
  const comm::ProcessGrid alone(self, comm::GridShape{});
  std::vector<data::TokenFile> files;
  std::optional<data::Corpus> corpus;
  std::optional<data::PairFile> pairs;
  Texts texts;
  if (job.options.model.Translates()) {
    texts.pairs = &pairs.emplace(app::OpenPairs(job));
  } else {
    files = app::OpenCorpus(job, alone);
    texts.corpus = &corpus.emplace(std::span<const data::TokenFile>(files));
  }
  if (world.IsRoot()) {
    fmt::print("{}\n", Head(job, study));
    std::fflush(stdout);
  }
  if (job.line->validate_only) return app::SayValid(job);
  app::StopIfAsked(job);

  // 3. The rounds.
  world.Together([&] {
    if (world.IsRoot()) MakeFolder(job);
  });
  return Runner(job, study, texts).Run();
}

}  // namespace trireme::tasks
