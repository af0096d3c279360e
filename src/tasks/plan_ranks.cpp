// Answers about ranks that do not run, without MPI: -v with grid.ranks, and the task plan.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "plan_task.hpp"
#include "trireme/base/version.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

// Pairs of a file that is not there: texts as long as the longest, in full batches.
train::PairFacts AssumedPairs(const app::DeckOptions& options) {
  const data::Options& data = options.data;
  const std::int64_t limit = data.batch_tokens, length = data.sequence_length;
  const std::int64_t pairs =
      limit == 0 ? data.batch : std::clamp<std::int64_t>(limit / length, 1, data.batch);
  const std::int64_t tokens = pairs * length;
  return {.source_vocabulary = options.plan.vocabulary,
          .shared_vocabulary = options.model.shared_vocabulary,
          .pairs = std::max(data.batch, options.plan.tokens / length),
          .steps = std::max<std::int64_t>(1, options.plan.tokens / tokens),
          .batch = data.batch,
          .typical = {.pairs = pairs,
                      .source_length = length,
                      .target_length = length,
                      .source_tokens = tokens,
                      .target_tokens = tokens}};
}

}  // namespace

train::TokenFacts FactsForPlan(const app::DeckOptions& options, const deck::Deck& deck) {
  const std::string& path = options.data.file;
  std::error_code ignored;
  // A file that exists but cannot be reached is for CountTokens to complain of.
  const bool mixture = !options.data.mixture.empty();
  if (mixture ||
      std::filesystem::status(path, ignored).type() != std::filesystem::file_type::not_found) {
    return app::FactsOf(options, deck, 0);
  }
  train::TokenFacts facts{
      .vocabulary = options.plan.vocabulary,
      .train = options.plan.tokens,
      .bytes = 0,
      .source = fmt::format("{} is not there: plan.vocabulary and plan.tokens", path)};
  if (options.model.Translates()) facts.pairs = AssumedPairs(options);
  return facts;
}

namespace {

// The device that the plan is for: this machine's GPU if there is one, or the CPU.
std::unique_ptr<device::Gpu> OpenGpu(const app::DeckOptions& options, const deck::Deck& deck) {
  const std::string why = device::WhyNoGpu();
  if (!device::MayTakeGpu(options.machine.device)) return nullptr;
  if (why.empty()) return std::make_unique<device::Gpu>(0);
  if (options.machine.device == device::Device::kAuto) return nullptr;
  throw deck.Complain("run.device", "a plan for GPUs asks a card for its size: " + why,
                      "Plan on a node with GPUs, or with run.device = cpu.");
}

void PrintPlan(const app::DeckOptions& options, const deck::Deck& deck) {
  if (options.job.task != app::Task::kTrain) {
    throw deck.Complain("grid.ranks", "plans a training run, but job.task is another",
                        "Leave grid.ranks out, or choose job.task = train.");
  }
  const std::unique_ptr<device::Gpu> gpu = OpenGpu(options, deck);
  const train::MachineFacts machine =
      train::FactsOf(options.machine.precision, gpu.get(),
                    std::max(1, device::RequestedThreads(options.machine.threads)));
  const train::Plan plan = train::MakePlan({.options = options,
                                          .deck = deck,
                                          .ranks = options.comm.ranks,
                                          .tokens = FactsForPlan(options, deck),
                                          .machine = machine,
                                          .async_checkpoints = options.checkpoint.async});
  fmt::print("Trireme {} ({})   plan for {} of {}   device {}   {}\n", Version(), Commit(),
             report::Counted(options.comm.ranks, "rank"),
             report::Counted(machine.stream.threads, "thread"),
             gpu ? gpu->Context().name : device::NameOf(machine.stream.Where()),
             device::NameOf(options.machine.precision));
  fmt::print("{}valid: planned for ranks that need not be there; nothing was written\n",
             train::Describe(plan));
  std::fflush(stdout);
}

}  // namespace

std::optional<ExitCode> AnswerWithPlan(const app::CommandLine& line, const deck::Schema& schema) {
  // The files of a job that runs are read by one rank alone (RunTask plans for a deck that says
  // so).
  const bool asked = std::ranges::find(line.overrides, "job.task=plan") != line.overrides.end();
  if (!line.validate_only && !asked) return std::nullopt;
  const app::Sources sources = app::ReadSources(schema, line);
  const deck::Deck deck = app::ParseDeck(schema, line, sources);
  const app::DeckOptions options = app::ReadAll(deck);
  const bool task = options.job.task == app::Task::kPlan;
  if (!task && (!line.validate_only || options.comm.ranks == 0)) return std::nullopt;
  app::PrintWarnings(sources.start);
  try {
    if (task) {
      PlanMachine(options, deck, line.validate_only);
    } else {
      PrintPlan(options, deck);
    }
    return ExitCode::kDone;
  } catch (const Error& error) {
    std::fprintf(stderr, "trireme: error: %s\n", error.what());
    return error.Code();
  }
}

}  // namespace trireme::tasks
