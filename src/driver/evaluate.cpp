// job.task = evaluate: the losses of a trained model.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "trireme/driver/tasks.hpp"
#include "trireme/driver/trained_model.hpp"
#include "trireme/evaluate/evaluator.hpp"
#include "trireme/evaluate/pair_evaluator.hpp"

namespace trireme::driver {

namespace {

void SayModel(const job::Job& job, TrainedModel& trained) {
  if (!job.World().IsRoot()) return;
  for (const std::string& passed_over : job.start.passed_over) {
    fmt::print("passed over {}\n", passed_over);
  }
  fmt::print("checkpoint  {}\nmodel       {}\n", trained.Checkpoint(),
             plan::DescribeModel(trained.Net().Plan().options));
  std::fflush(stdout);
}

// Of a model that translates: as many texts at once as generate.batch says.
ExitCode EvaluatePairs(job::Job& job) {
  evaluate::Options options;
  GenerateOptions search;
  job.World().Together([&] {
    options = evaluate::Read(job.deck);
    search = ReadGenerate(job.deck);
    if (job.World().IsRoot()) evaluate::CheckPairs(options, job.deck);
  });
  TrainedModel trained(job, 0, search.texts * search.beams, PackWeights::kAuto);
  SayModel(job, trained);
  if (job.line->validate_only) return job::SayValid(job);
  evaluate::EvaluateTranslations(trained.Net(), *trained.Pairs(), options,
                                 {search.beams, search.length_penalty, search.tokens,
                                  [&job] { return job.signals->Received(); }},
                                 trained.Checkpoint());
  return ExitCode::kDone;
}

}  // namespace

ExitCode RunEvaluate(job::Job& job) {
  if (job.options.model.Translates()) return EvaluatePairs(job);
  evaluate::Options options;
  job.World().Together([&] {
    options = evaluate::Read(job.deck);
    if (!job.World().IsRoot()) return;
    evaluate::Check(options, job.deck, job.options.data.sequence_length);
  });
  TrainedModel trained(job);
  SayModel(job, trained);
  const std::vector<job::ValidationSet> validation = job::OpenValidation(job, trained.Net().Grid());
  if (const std::string line = job::StagingLine(job); job.World().IsRoot() && !line.empty()) {
    fmt::print("{}\n", line);
  }
  std::vector<evaluate::Set> sets;
  for (const job::ValidSplit& valid : job::ValidSplits(trained.Tokens(), validation)) {
    sets.push_back({valid.tokens, data::Split::kValid, valid.name});
  }
  sets.push_back({&trained.Tokens(), data::Split::kTest, ""});
  evaluate::Evaluator evaluator(trained.Net(), trained.Tokens(), options, sets);
  if (job.line->validate_only) return job::SayValid(job);
  evaluator.Run(trained.Checkpoint());
  return ExitCode::kDone;
}

}  // namespace trireme::driver
