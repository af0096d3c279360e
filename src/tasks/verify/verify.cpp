// job.task = verify: makes the data, measures differences, prints the table and the verdict.
#include "trireme/tasks/verify.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <system_error>
#include <tuple>

#include "root.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/report/monitor.hpp"
#include "verifier.hpp"

namespace trireme::tasks {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kTensorsShown = 10;
constexpr std::size_t kIndent = 8;  // columns by which the head's lines are indented

// Folder for the checkpoint, beside the future run folder, where every rank can read it. Rank 0
// makes it and removes it in the destructor.
class VerifyFolder {
 public:
  VerifyFolder(const comm::Communicator& world, const app::Request& request)
      : path_(FromRoot(world, [&] { return Make(request.job.output, request.deck); })),
        own_(world.IsRoot()) {}
  ~VerifyFolder() {
    std::error_code ignored;
    if (own_) fs::remove_all(path_, ignored);
  }
  VerifyFolder(const VerifyFolder&) = delete;
  VerifyFolder& operator=(const VerifyFolder&) = delete;
  const std::string& Path() const { return path_; }

 private:
  static std::string Make(const std::string& output, const deck::Deck& deck) {
    std::error_code error;
    fs::path place = fs::absolute(output, error).parent_path();
    while (!fs::is_directory(place, error) && place.has_relative_path()) {
      place = place.parent_path();
    }
    std::string path = (place / ".trireme_verify_XXXXXX").string();
    if (mkdtemp(path.data()) != nullptr) return path;
    throw deck.Complain("job.output",
                        fmt::format("no temporary folder can be made in {}: {}", place.string(),
                                    std::generic_category().message(errno)),
                        "Let job.output name a place where you may write, and all ranks read.");
  }
  const std::string path_;
  const bool own_;  // whether this rank removes it
};

// Facts of the token file. If it does not exist yet, assumes plan.vocabulary and as many tokens as
// one batch takes. data: becomes the line that the screen shows about this.
train::TokenFacts FactsOf(const app::Request& request, const app::Ranks& ranks,
                          const app::Files& files, std::string& data) {
  const data::Options& options = request.data;
  std::error_code ignored;
  // If a file exists but cannot be reached, InspectTokens reports it.
  const bool missing = fs::status(options.file, ignored).type() == fs::file_type::not_found;
  const comm::Communicator& world = ranks.World();
  if (world.Max(std::int64_t{world.IsRoot() && !missing}) > 0) {
    train::TokenFacts facts = app::InspectTokens(request, ranks, files);
    data = fmt::format("{}: vocabulary {}", options.file, report::WithThousands(facts.vocabulary));
    return facts;
  }
  const std::int64_t vocabulary = request.plan.vocabulary;
  data = fmt::format("{} is not there yet: a vocabulary of {} is assumed", options.file,
                     report::WithThousands(vocabulary));
  train::TokenFacts facts{.vocabulary = vocabulary,
                          .train = options.batch * options.sequence_length + 1,
                          .source = options.file};
  if (request.model.Translates()) {
    facts.pairs = {.source_vocabulary = vocabulary,
                   .shared_vocabulary = request.model.shared_vocabulary,
                   .pairs = options.batch,
                   .steps = 1,
                   .batch = options.batch};
  }
  return facts;
}

// Peak memory of the fp64 run on the grid and of the run on this rank alone, which exist at once.
device::MemoryTerms PlanRuns(const train::Plan& deck, train::TrainingOptions small, int rank) {
  train::Plan plan = deck;
  plan.tokens = {};  // the data is made up: a few KiB
  small.model.dtype = Dtype::kFloat64;
  const auto memory_of = [&](const train::TrainingOptions& options, int of_rank) {
    plan.training = train::PlanTraining(options, MadeUpData::TrainSize(options), plan.grid);
    return train::PlanMemory(plan, of_rank);
  };
  device::MemoryTerms memory = memory_of(small, rank);
  plan.grid = {};
  plan.sharing = {};
  device::MemoryTerms alone = memory_of(Alone(small, Arithmetic::kFast), 0);
  alone.gpu_libraries = 0;  // counted already
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    memory.*term.bytes += alone.*term.bytes;
  }
  return memory;
}

std::string Number(double value) {
  if (value == 0) return "0";
  return std::isfinite(value) ? fmt::format("{:.1e}", value) : "not finite";
}

void PrintHead(const app::Request& request, const comm::Communicator& world,
               const comm::ProcessGrid& grid, const std::string& data,
               const train::TrainingOptions& deck, const train::TrainingOptions& small) {
  if (!world.IsRoot()) return;
  const int ranks = world.Size();
  fmt::print("verify  {} on {} rank{}, against one rank\n", request.deck.Path(), ranks,
             ranks == 1 ? "" : "s");
  const train::TrainingPlan plan =
      train::PlanTraining(small, MadeUpData::TrainSize(small), grid.Shape());
  fmt::print("grid    {}\n", train::DescribeLayout(grid.Shape(), grid.Options(), plan.model));
  if (small.model.canonical.On()) {
    fmt::print("bits    canonical {}x{}: compared too\n", small.model.canonical.data_groups,
               small.model.canonical.slices);
  }
  Say("data    {}; compared on made-up {}\nshrunk  {}", data, small.pairs ? "pairs" : "tokens",
      DescribeShrinking(deck, small, kIndent));
}

constexpr double kSilent = 1e-12;  // fraction of the scale; below it lies rounding (key biases)
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Replaces NaN, which a maximum would ignore, by infinity.
double Finite(double difference) { return std::isfinite(difference) ? difference : kInfinite; }

std::span<const double> Elements(const kernels::StateBlock& block) {
  return {static_cast<const double*>(block.data),
          static_cast<std::size_t>(block.end - block.begin)};
}

double Squares(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// Largest relative difference between the elements of `held` and the same elements of `wanted`,
// which must contain them; 0 only if all bits are equal.
template <typename T>
double LargestDifference(const kernels::StateBlock& held, const kernels::StateBlock& wanted) {
  if (held.end == held.begin) return 0;
  if (held.begin < wanted.begin || held.end > wanted.end) return kInfinite;
  const auto* mine = static_cast<const T*>(held.data);
  const auto* other = static_cast<const T*>(wanted.data) + (held.begin - wanted.begin);
  const std::int64_t count = held.end - held.begin;
  if (std::memcmp(mine, other, static_cast<std::size_t>(count) * sizeof(T)) == 0) return 0;
  double worst = std::numeric_limits<double>::min();  // above 0: some bits differ
  for (std::int64_t j = 0; j < count; ++j) {
    worst = std::max(worst, RelativeDifference(mine[j], other[j]));
  }
  return worst;
}

void MaxOverWorld(const comm::ProcessGrid& grid, std::vector<double>& values) {
  for (double& value : values) value = Finite(value);
  grid.Over(comm::Group::kWorld)
      .AllReduce(Dtype::kFloat64, values.data(), std::ssize(values), comm::Reduction::kMax);
}

constexpr std::int64_t kValidSamples = 5;

// Windows or pairs per epoch. The second step gets fewer than the first, so that in one of the
// steps data ranks have unequal shares.
std::int64_t SamplesOfAnEpoch(const train::TrainingOptions& small) {
  return small.samples.batch + std::max<std::int64_t>(small.samples.batch - 1, 1);
}

// Token i of a split: the whole vocabulary in turn, with a few common tokens in between.
std::int32_t TokenAt(data::Split split, std::int64_t i, std::int64_t vocabulary) {
  constexpr std::int64_t kCommon = 5, kEveryThird = 3;
  const std::int64_t any =
      data::Permute(static_cast<std::uint32_t>(split), i / vocabulary, i % vocabulary, vocabulary);
  const std::int64_t common = i % std::min(kCommon, vocabulary);
  return static_cast<std::int32_t>(i % kEveryThird == 0 ? common : any);
}

void AddWords(std::int64_t vocabulary, data::TokenData& data) {
  for (std::int64_t id = 0; id < vocabulary; ++id) {
    data.vocabulary.words.push_back(std::to_string(id));
  }
  data.tokenizer = "word";
}

// If the deck masks documents, divides tokens into documents of uneven lengths, some of which end
// at a window's edge. If it masks losses, marks some targets as not counted.
void AddMasks(const train::TrainingOptions& small, data::TokenData& data) {
  constexpr std::int64_t kLongest = 5, kEvery = 4;
  for (const data::Split split : data::kSplits) {
    const auto i = static_cast<std::size_t>(split);
    const std::int64_t count = std::ssize(data.tokens[i]);
    if (small.model.document_mask) {
      for (std::int64_t at = 0, place = 0; at < count; at += 1 + place++ % kLongest) {
        data.documents[i].push_back(at);
      }
    }
    // Count more targets in the first half than in the second, so that the ranks' counts differ.
    for (std::int64_t t = 0; small.loss_mask && t < count; ++t) {
      data.counted[i].push_back(t < count / 2 ? t % kEvery != 0 : t % 2);
    }
  }
}

// Texts of 2 to model.length tokens. Each is `stride` shorter than the one before, or starts again.
data::TokenData Texts(const train::TrainingOptions& small, std::int64_t vocabulary,
                      std::int64_t stride) {
  data::TokenData data;
  AddWords(vocabulary, data);
  const auto eos = static_cast<std::int32_t>(data.vocabulary.eos);
  for (const data::Split split : data::kSplits) {
    const auto s = static_cast<std::size_t>(split);
    std::vector<std::int32_t>& tokens = data.tokens.at(s);
    const std::int64_t count =
        split == data::Split::kTrain ? SamplesOfAnEpoch(small) : kValidSamples;
    for (std::int64_t i = 0; i < count; ++i) {
      data.documents.at(s).push_back(std::ssize(tokens));
      const std::int64_t length = small.model.length - i * stride % (small.model.length - 1);
      for (std::int64_t t = 0; t + 1 < length; ++t) {
        tokens.push_back(TokenAt(split, std::ssize(tokens), vocabulary));
      }
      tokens.push_back(eos);
    }
  }
  return data;
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
      {"stride", deck.samples.stride, small.samples.stride},
      {"batch", deck.samples.batch, small.samples.batch},
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
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  world.Together([&] {
    if (request.line.resume.empty()) return;
    throw InputError("command line: -r has no meaning for job.task = verify",
                     "Leave it out: verification starts from weights of its own.");
  });
  std::string data;
  const train::TokenFacts facts = FactsOf(request, job.ranks, job.files, data);
  train::Plan plan;
  world.Together([&] {
    plan = train::MakePlan(app::RequestOf(request, world, job.device, job.start, facts));
  });
  comm::ProcessGrid grid(world, plan.grid, plan.sharing);
  if (plan.training.model.canonical.On()) train::CheckInstructionSets(world);
  const train::TrainingOptions small = Shrink(plan.training.options, plan.grid);
  device::MemoryTerms memory;
  world.Together([&] { memory = PlanRuns(plan, small, world.Rank()); });
  app::UseGpu(request, job.device, memory, grid);
  if (request.line.validate_only) {
    const MadeUpData made_up(world, small);
    const Run run(grid, made_up, small, job.device.stream);
    return app::SayValid(world);
  }
  const double start = Seconds();
  Verification verification;
  {
    const VerifyFolder folder(world, request);
    PrintHead(request, world, grid, data, plan.training.options, small);
    verification = Verify(grid, small, job.device.stream, job.device.dtype, folder.Path());
  }
  Judge(verification, world, Seconds() - start);
  return ExitCode::kDone;
}

double RelativeDifference(double got, double wanted) {
  if (got == wanted) return 0;
  return Finite(std::abs(got - wanted) / std::max(std::abs(got), std::abs(wanted)));
}

Differences Compare(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                    const std::vector<kernels::StateBlock>& whole) {
  double squares = 0, count = 0;
  for (const kernels::StateBlock& tensor : whole) {
    squares += Squares(Elements(tensor));
    count += static_cast<double>(tensor.end - tensor.begin);
  }
  Differences result;
  std::vector<double> sums, scales;  // [tensors]: relative squared differences; scales
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const std::span<const double> mine = Elements(held[i]), all = Elements(whole[i]);
    double difference = 0;
    for (std::size_t j = 0; j < mine.size(); ++j) {
      const double d = mine[j] - all[static_cast<std::size_t>(held[i].begin) + j];
      difference += d * d;
    }
    const double size = static_cast<double>(all.size());
    // At least the smallest normal number, because all elements may be zero.
    const double scale =
        std::max({Squares(all), squares / count * size, std::numeric_limits<double>::min()});
    scales.push_back(scale);
    sums.push_back(difference / scale);
    result.mine.push_back(Finite(std::sqrt(difference / scale)));
    result.silent.push_back(Squares(all) < kSilent * kSilent * scale);
  }
  // The replicas of a shard group together hold one copy of the model. Parts that it holds twice
  // count twice, so that a wrong one cannot hide behind a right one.
  std::vector<double> elements(whole.size());
  for (std::size_t i = 0; i < held.size(); ++i) {
    const int within = held[i].replicas / grid.SameShard().Size();
    elements[i] = static_cast<double>(held[i].end - held[i].begin) / std::max(within, 1);
  }
  for (const comm::Communicator* group : {&grid.Shard(), &grid.Replica()}) {
    group->Sum(sums);
    group->Sum(elements);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const bool complete =
        std::abs(elements[i] - static_cast<double>(Elements(whole[i]).size())) < 0.5;
    result.all.push_back(complete ? std::sqrt(sums[i]) : kInfinite);
  }
  MaxOverWorld(grid, result.all);
  return result;
}

Differences CompareBits(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                        const std::vector<kernels::StateBlock>& wanted) {
  Differences result;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const kernels::StateBlock& block = held[i];
    result.mine.push_back(DispatchDtype(block.dtype, [&](auto zero) {
      return LargestDifference<decltype(zero)>(block, wanted[i]);
    }));
  }
  result.all = result.mine;
  MaxOverWorld(grid, result.all);
  return result;
}

std::string WhereLargest(const comm::ProcessGrid& grid, double mine) {
  const comm::Communicator& world = grid.World();
  const bool here = mine >= world.Max(mine);
  const std::int64_t rank =
      world.Min(here ? std::int64_t{world.Rank()} : std::int64_t{world.Size()});
  const comm::GridShape at = comm::Locate(static_cast<int>(rank), grid.Shape());
  return fmt::format("rank {} (pipeline {}, data {}, context {}, tensor {})", rank, at.pipeline,
                     at.data, at.context, at.tensor);
}

std::vector<kernels::GradientSum> GatherSums(const comm::ProcessGrid& grid,
                                             const kernels::Registry& registry) {
  std::vector<double> kinds;
  for (const kernels::Parameter& parameter : registry.Parameters()) {
    kinds.push_back(parameter.Held() ? static_cast<double>(parameter.sum) : 0.0);
  }
  MaxOverWorld(grid, kinds);
  std::vector<kernels::GradientSum> sums;
  for (const double kind : kinds)
    sums.push_back(static_cast<kernels::GradientSum>(std::lround(kind)));
  return sums;
}

data::TokenData VerificationTokens(const train::TrainingOptions& small) {
  const std::int64_t vocabulary = small.model.options.vocabulary;
  const std::int64_t length = small.model.length, stride = small.samples.stride;
  const std::int64_t windows = SamplesOfAnEpoch(small);
  // The last window is half as long, or longer if needed so that it has a target of its own.
  const std::int64_t shorter = std::min({length / 2, stride - 1, length - 1});
  const std::int64_t targets = (windows - 1) * stride + length - shorter;
  data::TokenData data;
  for (const data::Split split : data::kSplits) {
    std::vector<std::int32_t>& tokens = data.tokens.at(static_cast<std::size_t>(split));
    const std::int64_t count =
        split == data::Split::kTrain ? targets + 1 : kValidSamples * length - length / 2 + 1;
    for (std::int64_t i = 0; i < count; ++i) tokens.push_back(TokenAt(split, i, vocabulary));
  }
  AddMasks(small, data);
  AddWords(vocabulary, data);
  return data;
}

MadeUpData::MadeUpData(const comm::Communicator& world, const train::TrainingOptions& small) {
  if (small.pairs) {
    const model::Options& o = small.model.options;
    const std::int64_t sources = o.shared_vocabulary ? o.vocabulary : o.source_types;
    constexpr std::int64_t kSourceStride = 1, kTargetStride = 3;
    pairs_.emplace(world, Texts(small, sources, kSourceStride),
                   Texts(small, o.vocabulary, kTargetStride));
  } else {
    tokens_.emplace(world, VerificationTokens(small));
  }
}

std::int64_t MadeUpData::TrainSize(const train::TrainingOptions& small) {
  return small.pairs ? SamplesOfAnEpoch(small) : std::ssize(VerificationTokens(small).tokens[0]);
}

train::TrainingStep MadeUpData::MakeStep(train::TrainingState& state) const {
  if (pairs_) return {state, *pairs_};
  return {state, *tokens_};
}

double MadeUpData::ValidationLoss(model::ParallelModel& model) const {
  constexpr data::Split kValid = data::Split::kValid;
  return pairs_ ? train::EvaluatePairs(model, *pairs_, kValid, {}).loss
                : train::Evaluate(model, *tokens_, kValid).loss;
}

}  // namespace trireme::tasks
