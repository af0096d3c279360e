// Which task the deck asks for, and the two shortest ones.
#include "trireme/driver/tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "trireme/data/tokenize.hpp"
#include "trireme/driver/training_loop.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/training/training_state.hpp"
#include "trireme/verify/verify.hpp"

namespace trireme::driver {

ExitCode RunTask(job::Job& job) {
  using job::Task;
  const Task task = job.options.job.task;
  if (task != Task::kTrain || job.line->validate_only) job.signals->Release();
  if (task == Task::kTokenize) return RunTokenize(job);
  if (task == Task::kEvaluate) return RunEvaluate(job);
  if (task == Task::kGenerate) return RunGenerate(job);
  if (task == Task::kVerify) return verify::RunVerify(job);
  return RunTraining(job);
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
  // 1. Who computes what.
  comm::ProcessGrid grid = job::MakeGrid(job);
  job::UseGpu(job, grid);

  // 2. The data, in memory.
  const data::TokenFile tokens = job::OpenTokens(job);

  // 3. The model with its initial weights, spread over the grid; the optimizer and its schedule.
  training::TrainingSetup setup;
  job.World().Together([&] {
    setup = training::ReadTraining(job, grid.Shape(), tokens.VocabularySize(),
                                   tokens.Size(data::Split::kTrain));
  });
  setup.node = &job.runtime->Node();
  training::TrainingState training(grid, tokens, setup);

  // 4. The loop.
  TrainingLoop trainer(job, tokens, setup, training);
  if (job.line->validate_only) {
    trainer.Validate();
    return ExitCode::kDone;
  }
  job.signals->Watch();
  if (!trainer.Initialize()) return ExitCode::kDone;
  const ExitCode code = trainer.Execute();
  trainer.Finalize();
  return code;
}

}  // namespace trireme::driver
