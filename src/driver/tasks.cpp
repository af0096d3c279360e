// Which task the deck asks for, and the two shortest ones.
#include "trireme/driver/tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "trireme/data/tokenize.hpp"
#include "trireme/driver/trainer.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::driver {

ExitCode RunTask(Job& job) {
  const std::string& task = job.deck.Text("job.task");
  if (task != "train" || job.line->validate_only) job.signals->Release();
  if (task == "tokenize") return RunTokenize(job);
  if (task == "evaluate") return RunEvaluate(job);
  if (task == "generate") return RunGenerate(job);
  return RunTraining(job);
}

ExitCode RunTokenize(const Job& job) {
  job.World().Together([&] {
    if (!job.World().IsRoot()) return;
    const std::string& path = job.deck.Text("data.file");
    const bool overwrite = job.deck.Switch("tokenize.overwrite");
    if (!job.line->resume.empty()) {
      throw InputError("command line: -r has no meaning for job.task = tokenize",
                       "Leave it out, or choose another task.");
    }
    data::CheckTokenFileTarget(path, overwrite);
    const data::TokenData data = data::Tokenize(job.deck);
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

ExitCode RunTraining(Job& job) {
  // 1. Who computes what.
  const comm::ProcessGrid grid(job.World(), job.deck);

  // 2. The data, in memory.
  const data::TokenFile tokens = OpenTokens(job);
  DataShape shape = ReadDataShape(job.deck);
  const std::int64_t ranks = grid.Data().Size();
  shape.micro_batch = std::min(shape.micro_batch, (shape.batch + ranks - 1) / ranks);

  // 3. The model, with its initial weights.
  const optimizer::Options optimizer_options = optimizer::ReadOptimizer(job.deck);
  const auto model = BuildModel(job, tokens, shape, true, optimizer_options.label_smoothing);

  // 4. The optimizer and its schedule.
  std::optional<optimizer::Optimizer> optimizer;
  job.World().Together(
      [&] { optimizer.emplace(optimizer_options, model->Parameters(), job.stream); });
  const data::Sampler sampler(
      {tokens.Size(data::Split::kTrain), shape.length, shape.stride, shape.batch, job.seed, true});
  const optimizer::Schedule schedule =
      optimizer::ReadSchedule(job.deck, optimizer_options.learning_rate, sampler.StepsPerEpoch());

  // 5. The loop.
  Trainer trainer(job, grid, tokens, shape, sampler, *model, *optimizer, schedule);
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
