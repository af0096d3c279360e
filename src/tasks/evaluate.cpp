// job.task = evaluate: the losses of a trained model.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/trained_model.hpp"
#include "trireme/tasks/evaluator.hpp"
#include "trireme/tasks/pair_evaluator.hpp"

namespace trireme::tasks {

namespace {

void SayModel(const app::Job& job, TrainedModel& trained) {
  if (!job.World().IsRoot()) return;
  for (const std::string& passed_over : job.start.passed_over) {
    fmt::print("passed over {}\n", passed_over);
  }
  fmt::print("checkpoint  {}\nmodel       {}\n", trained.Checkpoint(),
             train::DescribeModel(trained.Net().Plan().options));
  std::fflush(stdout);
}

// Of a model that translates: as many texts at once as generate.batch says.
ExitCode EvaluatePairs(app::Job& job) {
  EvaluateOptions options;
  GenerateOptions search;
  job.World().Together([&] {
    options = ReadEvaluate(job.deck);
    search = ReadGenerate(job.deck);
    if (job.World().IsRoot()) CheckPairs(options, job.deck);
  });
  TrainedModel trained(job, 0, search.texts * search.beams, PackWeights::kAuto);
  SayModel(job, trained);
  if (job.line->validate_only) return app::SayValid(job);
  EvaluateTranslations(trained.Net(), *trained.Pairs(), options,
                                 {search.beams, search.length_penalty, search.tokens,
                                  [&job] { return job.signals->Received(); }},
                                 trained.Checkpoint());
  return ExitCode::kDone;
}

}  // namespace

ExitCode RunEvaluate(app::Job& job) {
  if (job.options.model.Translates()) return EvaluatePairs(job);
  EvaluateOptions options;
  job.World().Together([&] {
    options = ReadEvaluate(job.deck);
    if (!job.World().IsRoot()) return;
    CheckEvaluate(options, job.deck, job.options.data.sequence_length);
  });
  TrainedModel trained(job);
  SayModel(job, trained);
  const std::vector<app::ValidationSet> validation = app::OpenValidation(job, trained.Net().Grid());
  if (const std::string line = app::StagingLine(job); job.World().IsRoot() && !line.empty()) {
    fmt::print("{}\n", line);
  }
  std::vector<Set> sets;
  for (const app::ValidSplit& valid : app::ValidSplits(trained.Tokens(), validation)) {
    sets.push_back({valid.tokens, data::Split::kValid, valid.name});
  }
  sets.push_back({&trained.Tokens(), data::Split::kTest, ""});
  Evaluator evaluator(trained.Net(), trained.Tokens(), options, sets);
  if (job.line->validate_only) return app::SayValid(job);
  evaluator.Run(trained.Checkpoint());
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
