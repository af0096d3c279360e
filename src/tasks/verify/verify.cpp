// job.task = verify: what is compared with what, the table, the verdict.
#include "trireme/tasks/verify.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/report/monitor.hpp"
#include "verifier.hpp"

namespace trireme::tasks {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kTensorsShown = 10;
constexpr std::size_t kIndent = 8;  // columns, of what the head says

// For the checkpoint: where every rank can read it, beside the run folder to be. Rank 0 makes it,
// and removes it on the way out, whatever happens.
class VerifyFolder {
 public:
  VerifyFolder(const comm::Communicator& world, const app::Job& job) {
    world.Together([&] {
      if (world.IsRoot()) Make(job.options.job.output, job.deck);
    });
    path_ = world.Broadcast(path_);
    own_ = world.IsRoot();
  }
  ~VerifyFolder() {
    std::error_code ignored;
    if (own_) fs::remove_all(path_, ignored);
  }
  VerifyFolder(const VerifyFolder&) = delete;
  VerifyFolder& operator=(const VerifyFolder&) = delete;
  const std::string& Path() const { return path_; }

 private:
  void Make(const std::string& output, const deck::Deck& deck) {
    std::error_code error;
    fs::path place = fs::absolute(output, error).parent_path();
    while (!fs::is_directory(place, error) && place.has_relative_path()) {
      place = place.parent_path();
    }
    path_ = (place / ".trireme_verify_XXXXXX").string();
    if (mkdtemp(path_.data()) != nullptr) return;
    throw deck.Complain("job.output",
                        fmt::format("no temporary folder can be made in {}: {}", place.string(),
                                    std::generic_category().message(errno)),
                        "Let job.output name a place where you may write, and all ranks read.");
  }
  std::string path_;
  bool own_ = false;
};

// One step of the deck's batch.
train::PairFacts AssumedPairs(const app::Job& job) {
  const std::int64_t batch = job.options.data.batch;
  return {.source_vocabulary = job.options.plan.vocabulary,
          .shared_vocabulary = job.options.model.shared_vocabulary,
          .pairs = batch,
          .steps = 1,
          .batch = batch};
}

// Facts of the token file; if it is not there yet, of plan.vocabulary and of one batch of tokens,
// so that the deck's batch is the largest step. data: what the head says of them.
train::TokenFacts FactsOf(const app::Job& job, std::string& data) {
  const data::Options& options = job.options.data;
  std::error_code ignored;
  // A file that exists but cannot be reached is for InspectTokens to complain of.
  const bool missing = fs::status(options.file, ignored).type() == fs::file_type::not_found;
  const comm::Communicator& world = job.World();
  if (world.Max(std::int64_t{world.IsRoot() && !missing}) > 0) {
    train::TokenFacts facts = app::InspectTokens(job);
    data = fmt::format("{}: vocabulary {}", options.file, report::WithThousands(facts.vocabulary));
    return facts;
  }
  const std::int64_t vocabulary = job.options.plan.vocabulary;
  data = fmt::format("{} is not there yet: a vocabulary of {} is assumed", options.file,
                     report::WithThousands(vocabulary));
  train::TokenFacts facts{.vocabulary = vocabulary,
                         .train = options.batch * options.sequence_length + 1,
                         .source = options.file};
  if (job.options.model.Translates()) facts.pairs = AssumedPairs(job);
  return facts;
}

std::string Number(double value) {
  if (value == 0) return "0";
  return std::isfinite(value) ? fmt::format("{:.1e}", value) : "not finite";
}

void PrintHead(const app::Job& job, const comm::ProcessGrid& grid, const std::string& data,
               const train::TrainingOptions& deck, const train::TrainingOptions& small) {
  if (!job.World().IsRoot()) return;
  const int ranks = job.World().Size();
  fmt::print("verify  {} on {} rank{}, against one rank\n", job.deck.Path(), ranks,
             ranks == 1 ? "" : "s");
  const train::TrainingPlan plan =
      train::PlanTraining(small, MadeUpData::TrainSize(small), grid.Shape());
  fmt::print("grid    {}\n", train::DescribeLayout(grid.Shape(), grid.Options(), plan.model));
  if (small.model.canonical.On()) {
    fmt::print("bits    canonical {}x{}: compared too\n", small.model.canonical.data_groups,
               small.model.canonical.slices);
  }
  fmt::print("data    {}; compared on made-up {}\n", data, small.pairs ? "pairs" : "tokens");
  fmt::print("shrunk  {}\n", DescribeShrinking(deck, small, kIndent));
  std::fflush(stdout);
}

}  // namespace

std::string DescribeShrinking(const train::TrainingOptions& deck,
                              const train::TrainingOptions& small, std::size_t indent) {
  const model::Options &from = deck.model.options, &to = small.model.options;
  const std::vector<std::tuple<const char*, std::int64_t, std::int64_t>> sizes = {
      {"encoder_layers", from.encoder_layers, to.encoder_layers},
      {"layers", from.layers, to.layers},
      {"dim", from.dim, to.dim},
      {"heads", from.heads, to.heads},
      {"kv_heads", from.kv_heads, to.kv_heads},
      {"head_dim", from.head_dim, to.head_dim},
      {"ffn", from.ffn, to.ffn},
      {"vocabulary", from.vocabulary, to.vocabulary},
      {"sequence_length", deck.model.length, small.model.length},
      {"stride", deck.stride, small.stride},
      {"batch", deck.batch, small.batch},
      {"micro_batch", deck.model.micro_batch, small.model.micro_batch},
      {"canonical_leaf", deck.model.canonical.leaf, small.model.canonical.leaf},
      {"prefetch", deck.model.prefetch, small.model.prefetch}};
  constexpr std::size_t kColumns = 100;
  std::string text;
  std::size_t column = indent;
  for (const auto& [name, large, little] : sizes) {
    if (large == little) continue;
    const std::string change = fmt::format("{} {} -> {}", name, large, little);
    const bool wrap = column + change.size() + 2 > kColumns;
    if (!text.empty()) text += wrap ? ",\n" + std::string(indent, ' ') : ", ";
    column = (wrap ? indent : column + 2) + change.size();
    text += change;
  }
  return text.empty() ? "nothing" : text;
}

std::string Describe(const Verification& verification) {
  std::vector<VerifiedTensor> worst = verification.tensors;
  std::stable_sort(
      worst.begin(), worst.end(),
      [](const VerifiedTensor& a, const VerifiedTensor& b) { return a.Largest() > b.Largest(); });
  const std::size_t shown = std::min(worst.size(), kTensorsShown);
  std::size_t width = 0;
  for (const VerifiedQuantity& q : verification.quantities) width = std::max(width, q.name.size());
  for (std::size_t i = 0; i < shown; ++i) width = std::max(width, worst[i].name.size());

  const auto verdict = [](bool within) { return within ? "ok" : "FAIL"; };
  std::string text = fmt::format("\n{:<{}}  {:>21}  {:>10}\n", "quantity", width,
                                 "largest difference", "tolerance");
  for (const VerifiedQuantity& q : verification.quantities) {
    const std::string tolerance =
        q.tolerance == 0 ? "same bits" : fmt::format("{:.0e}", q.tolerance);
    text += fmt::format("{:<{}}  {:>21}  {:>10}  {}\n", q.name, width, Number(q.difference),
                        tolerance, verdict(q.Within()));
  }
  text += fmt::format("\n{:<{}}  {:>10} {:>10}  {:>10}\n", "tensor, fp64", width, "gradient",
                      "weights", "tolerance");
  for (std::size_t i = 0; i < shown; ++i) {
    text += fmt::format("{:<{}}  {:>10} {:>10}  {:>10.0e}  {}\n", worst[i].name, width,
                        Number(worst[i].gradient), Number(worst[i].weights), verification.tolerance,
                        verdict(worst[i].Largest() <= verification.tolerance));
  }
  if (shown < worst.size()) {
    text += fmt::format("{} more, none above {}\n", worst.size() - shown,
                        Number(worst[shown].Largest()));
  }
  return text;
}

void Judge(const Verification& verification, const comm::Communicator& world, double seconds) {
  const std::string ranks =
      world.Size() == 1 ? "one rank's micro-batches; only one rank was checked: start it with the "
                          "ranks of the run to check their layout"
                        : fmt::format("these {} ranks compute what one computes", world.Size());
  if (world.IsRoot()) {
    fmt::print("{}", Describe(verification));
    if (verification.Passed()) fmt::print("\nverified: {}; {:.1f} s\n", ranks, seconds);
    std::fflush(stdout);
  }
  if (verification.Passed()) return;
  throw AgreedError(ExitCode::kFailed, "verify: " + verification.failure, verification.hint);
}

ExitCode RunVerify(app::Job& job) {
  const comm::Communicator& world = job.World();
  world.Together([&] {
    if (job.line->resume.empty()) return;
    throw InputError("command line: -r has no meaning for job.task = verify",
                     "Leave it out: verification starts from weights of its own.");
  });
  std::string data;
  const train::TokenFacts facts = FactsOf(job, data);
  train::Plan plan;
  world.Together([&] { plan = train::MakePlan(app::RequestOf(job, facts)); });
  comm::ProcessGrid grid(world, plan.grid, plan.sharing);
  if (plan.training.model.canonical.On()) train::CheckInstructionSets(world);
  app::UseGpu(job, grid);
  const train::TrainingOptions small = Shrink(plan.options, plan.grid);
  if (job.line->validate_only) {
    const MadeUpData made_up(world, small);
    const Run run(grid, made_up, small, job.stream);
    return app::SayValid(job);
  }
  const double start = Seconds();
  Verification verification;
  {
    const VerifyFolder folder(world, job);
    PrintHead(job, grid, data, plan.options, small);
    verification = Verify(grid, small, job.stream, job.dtype, folder.Path());
  }
  Judge(verification, world, Seconds() - start);
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
