// The choice of the task that the deck asks for; tokenize and train.
#include "trireme/driver/tasks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/tokenize.hpp"
#include "trireme/driver/training_loop.hpp"
#include "trireme/job/hang_bound.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/training/training_step.hpp"
#include "trireme/verify/verify.hpp"

namespace trireme::driver {

namespace {

// Whether the process was started by an MPI launcher that ends its ranks soon after Ctrl-C.
bool LauncherIsImpatient() {
  std::ifstream file(fmt::format("/proc/{}/comm", getppid()));
  std::string name;
  std::getline(file, name);
  return name == "mpirun" || name == "mpiexec" || name == "orterun" || name == "orted" ||
         name == "prterun" || name == "prted";
}

// Answer to the first signal, at once: the step under way may take minutes.
void SayStop(int signal) {
  const bool gentle = signal == SIGUSR1;
  std::string text =
      fmt::format("trireme: SIG{}: the run stops at the end of a step and writes a checkpoint{}\n",
                  sigabbrev_np(signal), gentle ? "" : "; a second one ends it at once");
  if (!gentle && LauncherIsImpatient()) {
    text +=
        "  mpirun kills its ranks soon, maybe before: send SIGUSR1 to mpirun instead, or start it "
        "with --mca odls_base_sigkill_timeout 600\n";
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
}

ExitCode RunChosen(job::Job& job) {
  using job::Task;
  const Task task = job.options.job.task;
  if (task == Task::kTokenize) return RunTokenize(job);
  if (task == Task::kEvaluate) return RunEvaluate(job);
  if (task == Task::kGenerate) return RunGenerate(job);
  if (task == Task::kVerify) return verify::RunVerify(job);
  return RunTraining(job);
}

}  // namespace

ExitCode RunTask(job::Job& job) {
  using job::Task;
  job.World().Together([&] {
    const int ranks = job.options.comm.ranks;
    if (ranks == 0 || ranks == job.World().Size()) return;
    throw job.deck.Complain("grid.ranks", fmt::format("{} ranks run", job.World().Size()),
                            "It names ranks to plan for, with -v: leave it out here.");
  });
  const Task task = job.options.job.task;
  if (task != Task::kTrain || job.line->validate_only) {
    job.signals->Release();
  } else {
    job.signals->Watch(job.World().IsRoot() ? SayStop : std::function<void(int)>());
  }
  return job::FromNewestValid(job, [&] { return RunChosen(job); });
}

ExitCode RunTokenize(const job::Job& job) {
  job.World().Together([&] {
    if (!job.World().IsRoot()) return;
    const std::string& path = job.options.data.file;
    const bool overwrite = job.options.tokenize.overwrite;
    if (!job.line->resume.empty()) {
      throw InputError("command line: -r has no meaning for job.task = tokenize",
                       "Leave it out, or choose another task.");
    }
    if (!job.options.data.mixture.empty()) {
      throw job.deck.Complain("data.mixture", "job.task = tokenize writes one file",
                              "Name it with data.file.");
    }
    data::CheckTokenFileTarget(path, overwrite);
    const data::TokenData data = data::Tokenize(job.options.tokenize, job.deck);
    if (job.line->validate_only) {
      fmt::print("valid: {} could be written; nothing was written\n", path);
      std::fflush(stdout);
      return;
    }
    data::WriteTokenFile(path, data, overwrite);
    fmt::print("{}: {}, {} types; {} / {} / {} tokens (train / valid / test)\n", path,
               data.tokenizer, monitor::WithThousands(std::ssize(data.vocabulary.words)),
               monitor::WithThousands(std::ssize(data.tokens[0])),
               monitor::WithThousands(std::ssize(data.tokens[1])),
               monitor::WithThousands(std::ssize(data.tokens[2])));
    if (data.entropy_rate) {
      fmt::print("entropy rate {:.6f} nats/token: no honest model does better\n",
                 *data.entropy_rate);
    }
    std::fflush(stdout);
  });
  return ExitCode::kDone;
}

ExitCode RunTraining(job::Job& job) {
  const comm::Communicator& world = job.World();
  job.runtime->Watch().Arm(comm::Phase::kSetUp, 0,
                           std::max(job::kSetUpBound, job.options.machine.hang_timeout));

  // 1. The plan: who computes what, and what that takes.
  const plan::TokenFacts facts = job::InspectTokens(job);
  plan::Plan plan;
  world.Together([&] { plan = plan::MakePlan(job::RequestOf(job, facts)); });

  // 2. The ranks' groups, and the memory that they need.
  comm::ProcessGrid grid(world, plan.grid, plan.sharing);
  machine::MemoryTerms memory;
  world.Together([&] { memory = plan::PlanMemory(plan, world.Rank()); });
  job::CheckMemory(job, memory, grid);
  world.Together([&] { plan::CheckTransfers(plan, world.Rank()); });
  if (plan.training.model.canonical.On()) training::CheckInstructionSets(world);
  job::UseGpu(job, grid);
  const std::function<void()> stop_if_asked = [&job] { job::StopIfAsked(job); };
  stop_if_asked();

  // 3. The data, in memory.
  const std::vector<data::TokenFile> files = job::OpenCorpus(job);
  const data::Corpus corpus{std::span(files)};

  // 4. The model with its initial weights, spread over the grid; the optimizer; a step.
  training::TrainingState state(grid, plan.training, job.stream, stop_if_asked);
  training::TrainingStep step(state, corpus);

  // 5. The loop.
  TrainingLoop loop(job, plan, corpus, state, step);
  if (job.line->validate_only) {
    loop.Validate();
    return ExitCode::kDone;
  }
  stop_if_asked();
  if (!loop.Initialize()) return ExitCode::kDone;
  loop.Execute();
  return loop.Finalize();
}

}  // namespace trireme::driver
