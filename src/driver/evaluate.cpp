// Validation and test loss: every target of a split once, on any number of ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "trireme/data/batch.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::driver {

namespace {
// Micro-batches that a stage takes in one go: enough to keep a pipeline full, few enough for their
// tokens to stay small.
constexpr std::size_t kRoundsAStage = 8;
}  // namespace

Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split) {
  const double start = MPI_Wtime();
  const comm::Communicator& data = model.Grid().Data();
  const std::int64_t length = model.Setup().length;
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, model.Setup().micro_batch));
  data::Sampler::Options options;
  options.tokens = tokens.Size(split);
  options.length = options.stride = length;
  options.batch = std::max<std::int64_t>(1, CeilDivide(options.tokens, length));  // all: a step
  options.shuffle = false;
  const data::Sampler sampler(options);
  const std::vector<data::Sample> share = sampler.Share(0, data.Rank(), data.Size());
  const std::span<const data::Sample> all(share);
  std::vector<data::MicroBatch> round(kRoundsAStage *
                                      static_cast<std::size_t>(model.Grid().Shape().pipeline));
  double sum = 0;
  std::int64_t targets = 0;
  std::size_t begin = 0;
  while (begin < share.size()) {
    std::size_t filled = 0;
    for (; filled < round.size() && begin < share.size(); ++filled) {
      const std::size_t count = std::min(share.size() - begin, most);
      data::FillMicroBatch(tokens, split, all.subspan(begin, count), length, round[filled]);
      targets += round[filled].valid;
      begin += count;
    }
    sum += model.Loss({round.data(), filled});
  }
  Evaluation result;
  result.targets = data.Sum(targets);
  result.loss = model.Grid().World().Sum(sum) / static_cast<double>(result.targets);
  result.seconds = MPI_Wtime() - start;
  return result;
}

ExitCode RunEvaluate(Job& job) {
  const comm::ProcessGrid grid = MakeGrid(job);
  const data::TokenFile tokens = OpenTokens(job);
  std::string path;
  const auto model = LoadModel(job, grid, tokens, ReadDataShape(job.deck), path);
  if (job.World().IsRoot()) {
    fmt::print("checkpoint  {}\nmodel       {}\n", path, Describe(model->Setup().options));
    std::fflush(stdout);
  }
  if (job.line->validate_only) return SayValid(job);
  for (const data::Split split : {data::Split::kValid, data::Split::kTest}) {
    const Evaluation result = Evaluate(*model, tokens, split);
    if (!job.World().IsRoot()) continue;
    fmt::print("{:<10}  loss {:.6f} nats/token   perplexity {:.3f}   {} tokens   {:.1f} s\n",
               data::NameOf(split), result.loss, std::exp(result.loss),
               monitor::WithThousands(result.targets), result.seconds);
    std::fflush(stdout);
  }
  return ExitCode::kDone;
}

}  // namespace trireme::driver
