// job.task = plan: searches layouts, prints them, and says what they mean for an allocation.
#include <fmt/ranges.h>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "root.hpp"
#include "trireme/app/job.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/predict/search.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::tasks {

namespace {

using predict::Candidate, predict::Prediction;

// Assumed pairs when the file does not exist: all texts of the greatest length, in full batches.
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

// Facts of the deck's token file; if it does not exist, those that [plan] assumes.
train::TokenFacts FactsForPlan(const app::DeckOptions& options, const deck::Deck& deck) {
  const std::string& path = options.data.file;
  std::error_code ignored;
  // If a file exists but cannot be reached, app::FactsOf reports it.
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

// Number of ranks to plan for.
int RanksOf(const app::DeckOptions& options, const deck::Deck& deck,
            const predict::Machine& machine) {
  const std::int64_t nodes = options.plan.nodes;
  const std::int64_t ranks = nodes * machine.ranks_per_node;
  if (nodes > 0 && options.comm.ranks > 0 && options.comm.ranks != ranks) {
    throw deck.Complain(
        "plan.nodes",
        fmt::format("{} of {} with {}, but grid.ranks = {}", report::Counted(nodes, "node"),
                    machine.title, report::Counted(ranks, "rank"), options.comm.ranks),
        "State one of them.");
  }
  if (machine.nodes > 0 && nodes > machine.nodes) {
    throw deck.Complain("plan.nodes", fmt::format("{} has {} nodes", machine.title, machine.nodes),
                        "Plan for fewer nodes.");
  }
  if (nodes > 0 && ranks > comm::kMostRanks) {
    throw deck.Complain("plan.nodes", fmt::format("more than {} ranks", comm::kMostRanks));
  }
  if (nodes > 0) return static_cast<int>(ranks);
  return options.comm.ranks > 0 ? options.comm.ranks : machine.ranks_per_node;
}

train::MachineFacts FactsOf(const app::DeckOptions& options, const deck::Deck& deck,
                            const predict::Machine& machine, const device::Gpu* gpu) {
  const train::MachineFacts facts = train::FactsOf(options.machine.precision, gpu, machine.threads);
  if (machine.Of(facts.dtype, facts.stream.fp8).peak <= 0) {
    throw deck.Complain("run.precision",
                        fmt::format("{} states no speed of such products", machine.title),
                        "Choose another precision, or state the speed in the description.");
  }
  return facts;
}

std::string Percent(double part, double whole) {
  return fmt::format("{:.0f}%", whole > 0 ? 100 * part / whole : 0);
}

std::string ScheduleText(const predict::Layout& layout) {
  if (layout.pipeline == 1) return "-";
  std::string text = parallel::NameOf(layout.schedule);
  if (layout.chunks > 1) text += fmt::format(" x{}", layout.chunks);
  return text;
}

std::string ShardingText(const predict::Layout& layout) {
  std::string text = comm::NameOf(layout.sharding);
  if (layout.shard_group > 0 && layout.shard_group < layout.data * layout.context) {
    text += fmt::format("/{}", layout.shard_group);
  }
  return text;
}

void PrintTable(const std::vector<Candidate>& rows) {
  fmt::print(
      "{:>4} {:>6} {:>6} {:>7} {:>8}  {:<14} {:<14} {:>5} {:<9} {:>9} {:>9} {:>11} {:>6} {:>8} "
      "{:>8} {:>7}\n",
      "", "tensor", "data", "context", "pipeline", "schedule", "sharding", "micro", "recompute",
      "memory", "step", "tokens/s", "of peak", "compute", "exposed", "bubble");
  int number = 0;
  for (const Candidate& row : rows) {
    const Prediction& p = row.prediction;
    const predict::Layout& at = row.layout;
    fmt::print(
        "{:>4} {:>6} {:>6} {:>7} {:>8}  {:<14} {:<14} {:>5} {:<9} {:>9} {:>7.3g} s {:>11} {:>6} "
        "{:>8} {:>8} {:>7}{}\n",
        row.own ? "deck" : fmt::format("{}", ++number), at.tensor, at.data, at.context, at.pipeline,
        ScheduleText(at), ShardingText(at), at.micro_batch, model::NameOf(at.recompute),
        report::AsBytes(row.memory.Total()), p.step,
        report::WithThousands(static_cast<std::int64_t>(p.tokens_per_second)),
        fmt::format("{:.1f}%", 100 * p.utilisation), Percent(p.compute, p.step),
        Percent(p.Exposed(), p.step), Percent(p.bubble, p.step), row.fits ? "" : "  does not fit");
  }
}

std::string KeysText(const predict::Layout& layout) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : predict::KeysOf(layout)) keys.push_back(key + "=" + value);
  return fmt::format("{}", fmt::join(keys, " "));
}

// Groups whose transfers are waited for, longest first: "shard 4%, tensor 2%".
std::string ExposedText(const Prediction& p) {
  std::vector<std::pair<double, int>> groups;
  for (int i = 0; i < comm::kGroups; ++i) {
    const double seconds = p.exposed[static_cast<std::size_t>(i)];
    if (seconds > 0.005 * p.step) groups.emplace_back(seconds, i);
  }
  std::ranges::sort(groups, std::greater<>());
  std::vector<std::string> texts;
  for (const auto& [seconds, group] : groups) {
    const char* const name = comm::NameOf(static_cast<comm::Group>(group));
    texts.push_back(fmt::format("{} {}", name, Percent(seconds, p.step)));
  }
  return texts.empty() ? "under 1%" : fmt::format("{}", fmt::join(texts, ", "));
}

void PrintLine(const char* word, const std::string& text) { fmt::print("{:<8}{}\n", word, text); }

// Prints changes that would make the layout faster, the largest loss first.
void PrintAdvice(const Candidate& row, const train::Request& request) {
  const Prediction& p = row.prediction;
  const auto group = [&p](comm::Group name) { return p.exposed[static_cast<std::size_t>(name)]; };
  const double sharded = group(comm::Group::kShard), summed = group(comm::Group::kData);
  const double tensor = group(comm::Group::kTensor);
  const std::int64_t batch = request.options.data.batch;
  std::vector<std::pair<double, std::string>> advice;
  const auto add = [&](bool holds, double seconds, const std::string& text) {
    if (holds) advice.emplace_back(seconds, text);
  };
  add(p.bubble > 0.03 * p.step, p.bubble,
      fmt::format(
          "the pipeline's bubble: more micro-batches (data.batch above {}), fewer stages, or "
          "pipeline.schedule = interleaved or zero_bubble",
          batch));
  add(sharded > 0.03 * p.step, sharded,
      "transfers of sharded state: a larger data.micro_batch, grid.prefetch = 2, grid.shard_group "
      "= the ranks of a node, or more tensor ranks and fewer replicas");
  add(summed > 0.03 * p.step, summed,
      fmt::format("sums of gradients: a data.batch above {} transfers as many bytes per step",
                  batch));
  add(tensor > 0.03 * p.step, tensor,
      "sums over the tensor ranks: fewer of them, and more stages or sharded parameters instead");
  add(row.layout.recompute == model::Recompute::kFull, p.compute / 4,
      "full recomputation, a quarter of the computation: more memory per rank (more tensor ranks, "
      "stages or shards) allows model.recompute = selective");
  add(p.passes > 0.2 * p.compute, p.passes,
      fmt::format("passes over memory, {} of the computation: norms, activations and the optimizer",
                  Percent(p.passes, p.compute)));
  if (advice.empty()) return;
  std::ranges::sort(advice, std::greater<>());
  fmt::print("What holds it back, and what to change:\n");
  for (const auto& [seconds, text] : advice) {
    fmt::print("  {:>4} of the step   {}\n", Percent(seconds, p.step), text);
  }
}

// Bytes of a checkpoint: weights (of bf16 ones the masters), moments and average. Of Muon's second
// moments only those of the vocabulary's tables count.
double CheckpointBytes(const train::Plan& plan) {
  const train::OptimizerOptions& optimizer = plan.training.options.optimizer;
  const model::Options& model = plan.training.model.options;
  double numbers =
      static_cast<double>(model::ParameterCount(model)) * (1 + train::LeastState(optimizer));
  if (optimizer.kind == train::OptimizerKind::kMuon) {
    const std::int64_t tables = model.tie_embeddings ? 1 : 2;
    numbers +=
        static_cast<double>((tables * model.vocabulary + model.SourceVocabulary()) * model.dim);
  }
  return numbers * static_cast<double>(SizeOf(SumTypeOf(plan.training.model.dtype)));
}

// The steps of the schedule, in whole batches: smaller ones count by their windows.
double WholeSteps(const train::Plan& plan) {
  const train::TrainingOptions& options = plan.training.options;
  const std::int64_t last = options.schedule.Last();
  if (options.samples.ramp.steps == 0) return static_cast<double>(last);
  return static_cast<double>(data::Sampler(options.samples).NextSample(last)) /
         static_cast<double>(plan.training.Batch());
}

void PrintCost(const Candidate& row, const train::Plan& plan, const predict::Machine& machine) {
  const Prediction& p = row.prediction;
  const double steps = WholeSteps(plan);
  const double seconds = steps * p.step;
  const double nodes = CeilDivide(plan.grid.Ranks(), machine.ranks_per_node);
  const double node_hours = nodes * seconds / kSecondsPerHour;
  std::string energy = "energy: the machine's description states no power";
  if (machine.watts_rank > 0) {
    const double watts = nodes * (machine.watts_node + machine.ranks_per_node * machine.watts_rank);
    energy = fmt::format("{:.3g} MWh", watts * seconds / kSecondsPerHour / 1e6);
  }
  PrintLine("to end",
            fmt::format("{} steps in {:.3g} hours of {:.0f} nodes: {} node-hours, {}",
                        report::WithThousands(plan.training.options.schedule.Last()),
                        seconds / kSecondsPerHour, nodes,
                        report::WithThousands(static_cast<std::int64_t>(node_hours)), energy));
  if (machine.file_bandwidth > 0) {
    const double bytes = CheckpointBytes(plan);
    PrintLine("files",
              fmt::format("a checkpoint of {} takes {:.3g} s, as long as {:.3g} steps",
                          report::AsBytes(static_cast<std::int64_t>(bytes)),
                          bytes / machine.file_bandwidth, bytes / machine.file_bandwidth / p.step));
  }
  const double tokens = steps * p.step * p.tokens_per_second;
  const auto parameters = static_cast<double>(model::ParameterCount(plan.training.model.options));
  constexpr double kTokensPerParameter = 20;  // Hoffmann et al. 2022, table 3
  PrintLine("tokens", fmt::format("{:.3g}, {:.1f} for each parameter; the least loss for these "
                                  "operations is near 20 (Hoffmann et al. 2022): {:.3g} tokens",
                                  tokens, tokens / parameters, kTokensPerParameter * parameters));
}

nlohmann::json JsonOf(const Candidate& row) {
  const predict::Layout& at = row.layout;
  const Prediction& p = row.prediction;
  nlohmann::json json = {{"data", at.data},
                         {"tensor", at.tensor},
                         {"context", at.context},
                         {"pipeline", at.pipeline},
                         {"chunks", at.chunks},
                         {"schedule", parallel::NameOf(at.schedule)},
                         {"sequence_parallel", at.sequence_parallel},
                         {"sharding", comm::NameOf(at.sharding)},
                         {"shard_group", at.shard_group},
                         {"micro_batch", at.micro_batch},
                         {"recompute", model::NameOf(at.recompute)},
                         {"memory_bytes", row.memory.Total()},
                         {"fits", row.fits},
                         {"step_seconds", p.step},
                         {"tokens_per_second", p.tokens_per_second},
                         {"utilisation", p.utilisation},
                         {"seconds_compute", p.compute},
                         {"seconds_exposed_communication", p.Exposed()},
                         {"seconds_bubble", p.bubble}};
  for (int i = 0; i < comm::kGroups; ++i) {
    const double seconds = p.exposed[static_cast<std::size_t>(i)];
    if (seconds > 0) {
      json["seconds_exposed"][comm::NameOf(static_cast<comm::Group>(i))] = seconds;
    }
  }
  if (row.own) json["own"] = true;
  return json;
}

void WriteRows(const std::string& folder, const std::vector<Candidate>& rows) {
  report::MakeOutputFolder(folder);
  std::string text;
  for (const Candidate& row : rows) text += JsonOf(row).dump() + "\n";
  report::WriteWhole(folder + "/plan.jsonl", text);
  PrintLine("rows", folder + "/plan.jsonl");
}

// Prints the layouts of a deck on a described machine; writes plan.jsonl and a timeline if the deck
// names them. dry: searches and writes nothing. InputError if the machine cannot run the deck.
void PlanMachine(const app::DeckOptions& options, const deck::Deck& deck, bool dry) {
  const std::string& name = options.plan.machine;
  const predict::Machine machine = predict::ReadMachine(
      name == predict::kAutoMachine ? "h100" : name, SharedFolder(ProgramFile()));
  std::unique_ptr<device::Gpu> gpu;
  if (machine.gpu) gpu = std::make_unique<device::Gpu>(machine.Card());
  const train::Request request{.options = options,
                               .deck = deck,
                               .ranks = RanksOf(options, deck, machine),
                               .tokens = FactsForPlan(options, deck),
                               .machine = FactsOf(options, deck, machine, gpu.get()),
                               .async_checkpoints = options.checkpoint.async};
  fmt::print("Trireme {} ({})   plan for {} of {}   precision {}\n", Version(), Commit(),
             report::Counted(request.ranks, "rank"), machine.title,
             device::NameOf(options.machine.precision));
  model::Options model = model::WithVocabulary(options.model, request.tokens.vocabulary, deck);
  if (request.tokens.pairs) model.source_types = request.tokens.pairs->source_vocabulary;
  PrintLine("model", train::DescribeModel(model));
  if (!machine.source.empty()) PrintLine("machine", machine.source);
  for (const std::string& assumption : machine.assumptions) PrintLine("assumed", assumption);
  if (dry) return Say("valid: nothing was searched or written");
  std::fflush(stdout);
  predict::SearchResult found = predict::Search(
      request, machine, options.comm.layout_given || options.parallel.schedule_given,
      static_cast<int>(options.plan.simulate));
  if (!found.own_refused.empty()) PrintLine("deck", "its own layout: " + found.own_refused);
  if (found.rows.empty()) {
    throw InputError(fmt::format("plan: none of {} layouts fits into {} of {} per rank",
                                 report::WithThousands(found.looked_at),
                                 report::AsBytes(machine.memory_bytes), machine.title),
                     "Plan for more nodes (plan.nodes), or a smaller model.");
  }
  PrintLine("search", fmt::format("{} layouts estimated, {} simulated; memory of a rank: {}",
                                  report::WithThousands(found.looked_at), found.simulated,
                                  report::AsBytes(machine.memory_bytes)));
  std::vector<Candidate> shown = found.rows;
  if (std::ssize(shown) > options.plan.rows) {
    shown.resize(static_cast<std::size_t>(options.plan.rows));
  }
  PrintTable(shown);
  const auto best =
      std::ranges::find_if(found.rows, [](const Candidate& row) { return !row.own && row.fits; });
  const Candidate& chosen = best == found.rows.end() ? found.rows.front() : *best;
  const train::Plan plan = predict::PlanWith(request, chosen.layout);
  PrintLine("fastest", KeysText(chosen.layout));
  if (found.rows.front().own && &chosen != &found.rows.front()) {
    PrintLine("", fmt::format("{:.2f} times the speed of the deck's own layout",
                              found.rows.front().prediction.step / chosen.prediction.step));
  }
  PrintLine("exposed", ExposedText(chosen.prediction));
  PrintCost(chosen, plan, machine);
  PrintAdvice(chosen, request);
  if (!options.plan.timeline.empty()) {
    predict::WriteTimeline(plan, machine, options.plan.timeline);
    PrintLine("timeline", options.plan.timeline);
  }
  if (options.job.output_given) WriteRows(options.job.output, found.rows);
  std::fflush(stdout);
}

// Device to plan for: this machine's GPU if there is one and it may be used; null: the CPU.
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
  fmt::print("{}", train::Describe(plan));
  for (const std::string& odd : train::Oddities(plan)) fmt::print("warning: {}\n", odd);
  Say("valid: planned for ranks that need not be there; nothing was written");
}

}  // namespace

ExitCode RunPlan(const app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  AtRoot(world, [&] { PlanMachine(request, request.deck, request.line.validate_only); });
  return ExitCode::kDone;
}

std::optional<ExitCode> AnswerWithPlan(const app::CommandLine& line, const deck::Schema& schema) {
  // Without -v, a deck with job.task = plan is left to RunTask, where one rank reads the files.
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
