// job.task = evaluate: the losses of a trained model.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "trireme/driver/tasks.hpp"
#include "trireme/driver/trained_model.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/training/evaluation.hpp"

namespace trireme::driver {

ExitCode RunEvaluate(job::Job& job) {
  TrainedModel trained(job);
  if (job.World().IsRoot()) {
    for (const std::string& passed_over : job.start.passed_over) {
      fmt::print("passed over {}\n", passed_over);
    }
    fmt::print("checkpoint  {}\nmodel       {}\n", trained.Checkpoint(),
               plan::DescribeModel(trained.Net().Plan().options));
    std::fflush(stdout);
  }
  if (job.line->validate_only) return job::SayValid(job);
  for (const data::Split split : {data::Split::kValid, data::Split::kTest}) {
    const training::Evaluation result = training::Evaluate(trained.Net(), trained.Tokens(), split);
    if (!job.World().IsRoot()) continue;
    fmt::print("{:<10}  loss {:.6f} nats/token   perplexity {:.3f}   {} tokens   {:.1f} s\n",
               data::NameOf(split), result.loss, std::exp(result.loss),
               monitor::WithThousands(result.targets), result.seconds);
    std::fflush(stdout);
  }
  return ExitCode::kDone;
}

}  // namespace trireme::driver
