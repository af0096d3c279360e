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

Evaluation Evaluate(const comm::Communicator& data, model::Model& model,
                    const data::TokenFile& tokens, data::Split split) {
  const double start = MPI_Wtime();
  const std::int64_t length = model.Setup().length;
  const std::int64_t most = std::max<std::int64_t>(1, model.Setup().micro_batch);
  data::Sampler::Options options;
  options.tokens = tokens.Size(split);
  options.length = options.stride = length;
  options.batch = std::max<std::int64_t>(1, (options.tokens + length - 1) / length);  // all: a step
  options.shuffle = false;
  const data::Sampler sampler(options);
  const std::vector<data::Sample> share = sampler.Share(0, data.Rank(), data.Size());
  data::MicroBatch batch;
  double sum = 0;
  std::int64_t targets = 0;
  const std::span<const data::Sample> all(share);
  for (std::size_t begin = 0; begin < share.size(); begin += static_cast<std::size_t>(most)) {
    const std::size_t count = std::min(share.size() - begin, static_cast<std::size_t>(most));
    data::FillMicroBatch(tokens, split, all.subspan(begin, count), length, batch);
    sum += model.Loss(batch);
    targets += batch.valid;
  }
  Evaluation result;
  result.targets = data.Sum(targets);
  result.loss = data.Sum(sum) / static_cast<double>(result.targets);
  result.seconds = MPI_Wtime() - start;
  return result;
}

ExitCode RunEvaluate(Job& job) {
  const comm::ProcessGrid grid(job.World(), job.deck);
  const data::TokenFile tokens = OpenTokens(job);
  const DataShape shape = ReadDataShape(job.deck);
  std::string path;
  const auto model = LoadModel(job, tokens, shape, path);
  if (job.World().IsRoot()) {
    fmt::print("checkpoint  {}\nmodel       {}\n", path, Describe(model->Setup().options));
    std::fflush(stdout);
  }
  if (job.line->validate_only) return SayValid(job);
  for (const data::Split split : {data::Split::kValid, data::Split::kTest}) {
    const Evaluation result = Evaluate(grid.Data(), *model, tokens, split);
    if (!job.World().IsRoot()) continue;
    fmt::print("{:<10}  loss {:.6f} nats/token   perplexity {:.3f}   {} tokens   {:.1f} s\n",
               data::NameOf(split), result.loss, std::exp(result.loss),
               monitor::WithThousands(result.targets), result.seconds);
    std::fflush(stdout);
  }
  return ExitCode::kDone;
}

}  // namespace trireme::driver
