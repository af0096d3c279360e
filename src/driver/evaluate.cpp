// job.task = evaluate: the losses of a trained model.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

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
  const std::vector<job::ValidationSet> validation = job::OpenValidation(job, trained.Net().Grid());
  const auto evaluate = [&](const data::TokenFile& tokens, data::Split split,
                            const std::string& name) {
    const training::Evaluation result = training::Evaluate(trained.Net(), tokens, split);
    if (!job.World().IsRoot()) return;
    fmt::print("{:<10}  loss {:.6f} nats/token   perplexity {:.3f}   {} tokens   {:.1f} s{}{}\n",
               data::NameOf(split), result.loss, std::exp(result.loss),
               monitor::WithThousands(result.targets), result.seconds, name.empty() ? "" : "   ",
               name);
    std::fflush(stdout);
  };
  if (validation.empty()) evaluate(trained.Tokens(), data::Split::kValid, "");
  for (const job::ValidationSet& set : validation) {
    evaluate(set.tokens, data::Split::kValid, set.name);
  }
  evaluate(trained.Tokens(), data::Split::kTest, "");
  return ExitCode::kDone;
}

}  // namespace trireme::driver
