// MakePlan: turns the deck's options, the ranks and the facts into decisions, or refuses them.
// First run.canonical: checks against grid, model and arithmetic, and the automatic leaf.
#include "trireme/train/plan.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "trireme/base/partition.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/device/options.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

namespace {

constexpr const char* kKey = "run.canonical";
constexpr std::int64_t kLeafTokens = 4096;  // tokens of an automatic leaf

// The powers of two up to `most`, which is one of them: "1, 2 or 4".
std::string PowersUpTo(std::int64_t most) {
  std::string text;
  for (std::int64_t power = 1; power <= most; power *= 2) {
    text += fmt::format("{}{}", power == 1 ? "" : power == most ? " or " : ", ", power);
  }
  return text;
}

// ", or run.canonical = 8x2", a value that allows `ranks` ranks; empty if no value does.
std::string OrMore(int ranks, int groups, int slices) {
  if (ranks < 1 || !std::has_single_bit(static_cast<unsigned>(ranks))) return {};
  return fmt::format(", or {} = {}x{}", kKey, groups, slices);
}

void CheckGrid(const deck::Deck& deck, const comm::GridShape& grid, int groups, int slices) {
  const std::string value = fmt::format("{}x{}", groups, slices);
  if (grid.context > 1) {
    throw deck.Complain("grid.context",
                        fmt::format("a ring adds up attention in an order of its own, but {} = {} "
                                    "asks for the same bits in every layout",
                                    kKey, value),
                        fmt::format("What fits: grid.context = 1, or {} = none.", kKey));
  }
  if (groups % grid.data != 0) {
    throw deck.Complain("grid.data",
                        fmt::format("{} data ranks do not divide the {} of {} = {}", grid.data,
                                    groups, kKey, value),
                        fmt::format("What fits: {} data rank{}{}.", PowersUpTo(groups),
                                    groups == 1 ? "" : "s", OrMore(grid.data, grid.data, slices)));
  }
  if (slices % grid.tensor != 0) {
    throw deck.Complain("grid.tensor",
                        fmt::format("{} tensor ranks do not divide the {} of {} = {}", grid.tensor,
                                    slices, kKey, value),
                        fmt::format("What fits: grid.tensor = {}{}.", PowersUpTo(slices),
                                    OrMore(grid.tensor, groups, grid.tensor)));
  }
}

void CheckArithmetic(const Request& request, const std::string& value) {
  if (request.machine.stream.OnGpu()) {
    throw request.deck.Complain(kKey, "is arithmetic of the CPU: GPUs have none",
                                "Use run.device = cpu, or run.canonical = none.");
  }
  if (request.options.machine.precision == device::Precision::kBf16) {
    throw request.deck.Complain(
        "run.precision", fmt::format("{} = {} is built for fp32 and fp64 products", kKey, value),
        fmt::format("What fits: run.precision = fp32, or {} = none.", kKey));
  }
}

// Refuses what does not go together in training.
void CheckCombinations(const Request& request) {
  const DeckOptions& asked = request.options;
  const bool sampled = asked.model.sampled_softmax > 0, grows = asked.schedule.batch_ramp > 0;
  const bool fp8 = asked.machine.precision == device::Precision::kFp8;
  constexpr const char* kSampled = "model.sampled_softmax";
  struct Refusal {
    bool applies;
    const char *key, *what, *advice;
  };
  for (const Refusal& refusal : {
           Refusal{sampled && request.machine.stream.OnGpu(), kSampled, "works on CPUs alone",
                   "Use run.device = cpu, or model.sampled_softmax = 0."},
           Refusal{sampled && asked.optimizer.label_smoothing > 0, kSampled,
                   "does not go together with optimizer.label_smoothing",
                   "Leave out optimizer.label_smoothing, or use model.sampled_softmax = 0."},
           Refusal{sampled && asked.parallel.canonical.On(), kSampled,
                   "does not go together with run.canonical",
                   "Leave out run.canonical, or use model.sampled_softmax = 0."},
           Refusal{grows && request.tokens.pairs, "schedule.batch_ramp",
                   "batches of pairs do not grow", "Use schedule.batch_ramp = 0."},
           Refusal{fp8 && asked.model.weight_dropout > 0, "model.weight_dropout",
                   "does not go together with fp8 products",
                   "Use run.precision = bf16, or model.weight_dropout = 0."},
       }) {
    if (refusal.applies) throw request.deck.Complain(refusal.key, refusal.what, refusal.advice);
  }
  const std::int64_t batch = asked.data.batch;
  if (!grows || asked.schedule.batch_start <= batch) return;
  throw request.deck.Complain("schedule.batch_start",
                              fmt::format("the batch grows from here to data.batch = {}", batch),
                              fmt::format("What fits: schedule.batch_start = 1 to {}.", batch));
}

using Sizes = std::pair<std::int64_t, std::int64_t>;

// Coordinates along one axis whose ranks hold slices of the same sizes.
struct AxisClass {
  int first = 0;
  std::int64_t ranks = 0;
};

// Classes of tensor ranks by their slices of hidden features and vocabulary. Nothing else differs:
// heads are cut evenly, and rows of the residual stream are planned for the largest part.
std::map<Sizes, AxisClass> TensorClasses(const Plan& plan) {
  const model::Options& model = plan.training.model.options;
  std::map<Sizes, AxisClass> classes;
  for (int rank = 0; rank < plan.grid.tensor; ++rank) {
    const auto slice = [&](std::int64_t total) {
      return PartOf(total, rank, plan.grid.tensor).Size();
    };
    const auto [at, added] = classes.try_emplace({slice(model.ffn), slice(model.vocabulary)});
    if (added) at->second.first = rank;
    ++at->second.ranks;
  }
  return classes;
}

// What a rank owns of a shard group's pieces, in elements: the share of each piece that is cut
// between parameters, then the sum of its shares of the others.
using Shares = std::vector<std::int64_t>;

// The shares of each rank of a shard group. Pieces that are cut evenly are alike if equally long.
std::vector<Shares> SharesOf(const kernels::Ownership& owns, int ranks) {
  std::map<std::int64_t, std::int64_t> lengths;  // number of pieces by length
  std::vector<Shares> shares(static_cast<std::size_t>(ranks));
  for (const kernels::Piece& piece : owns.pieces) {
    if (piece.counts.empty()) ++lengths[piece.range.Size()];
    for (std::size_t rank = 0; rank < piece.counts.size(); ++rank) {
      shares[rank].push_back(piece.counts[rank]);
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t even = 0;
    for (const auto& [length, pieces] : lengths) {
      even += pieces * parallel::OwnPart(length, rank, ranks).Size();
    }
    shares[static_cast<std::size_t>(rank)].push_back(even);
  }
  return shares;
}

// Adds the kinds among the ranks of one stage and one class of tensor ranks.
void AppendKinds(const Plan& plan, int stage, const AxisClass& tensor,
                 std::vector<RankKind>& kinds) {
  const int contexts = plan.grid.context, shard_ranks = comm::ShardRanks(plan.grid, plan.sharing);
  const auto rank_of = [&](int data, int context) {
    return comm::RankAt(
        {.pipeline = stage, .data = data, .context = context, .tensor = tensor.first}, plan.grid);
  };
  std::vector<Shares> shares(1);  // [ranks of a shard group]
  if (shard_ranks > 1) shares = SharesOf(PlanPieces(plan, rank_of(0, 0)), shard_ranks);
  std::map<std::pair<std::int64_t, Shares>, RankKind> found;
  for (int data = 0; data < plan.grid.data; ++data) {
    for (int context = 0; context < contexts; ++context) {
      const auto place = static_cast<std::size_t>((data * contexts + context) % shard_ranks);
      const auto [at, added] = found.try_emplace(
          {PositionsOf(plan.training.model.length, context, contexts).Count(), shares[place]});
      if (added) at->second.first = rank_of(data, context);
      at->second.ranks += tensor.ranks;
    }
  }
  for (auto& [sizes, kind] : found) {
    kind.memory = PlanMemory(plan, kind.first);
    kinds.push_back(kind);
  }
}

// MiB of gradients per bucket on a GPU: its faster network needs larger transfers.
constexpr double kGpuBucketMib = 32;
constexpr double kMib = 1024 * 1024;

void CheckPositions(const model::Options& model, const Request& request) {
  if (model.position != model::Position::kLearned ||
      request.options.data.sequence_length <= model.max_positions) {
    return;
  }
  throw request.deck.Complain(
      "data.sequence_length",
      fmt::format("longer than model.max_positions = {}", model.max_positions),
      "Learned positions end there: raise model.max_positions or shorten the sequence.");
}

void CheckDocuments(const Request& request) {
  if (!request.options.data.document_mask || request.tokens.undocumented.empty()) return;
  throw request.deck.Complain(
      "data.document_mask", request.tokens.undocumented,
      "They say where documents begin: make the file anew with task = tokenize, or use "
      "data.document_mask = no.");
}

// Refuses settings that encoder-decoders do not have.
void CheckPairs(const Request& request) {
  const DeckOptions& asked = request.options;
  const PairFacts& pairs = *request.tokens.pairs;
  if (asked.model.shared_vocabulary && !pairs.shared_vocabulary) {
    throw request.deck.Complain(
        "model.shared_vocabulary",
        fmt::format("source and target texts of {} have each a vocabulary of their own",
                    request.tokens.source),
        "Use model.shared_vocabulary = no, or make the file with tokenize.shared_vocabulary = "
        "yes.");
  }
  if (asked.comm.context > 1) {
    throw request.deck.Complain("grid.context", "texts of pairs are not cut over ranks",
                                "Use grid.context = 1, with grid.tensor or grid.pipeline.");
  }
  if (asked.data.document_mask) {
    throw request.deck.Complain("data.document_mask", "each text of a pair is one document",
                                "Use data.document_mask = no.");
  }
}

// What the plans of training and evaluation have in common: grid, schedule and architecture.
// Without `training`, a single stage does not use the schedule, which is then not checked.
EvaluationPlan MakeLayout(const Request& request, bool training) {
  const DeckOptions& asked = request.options;
  EvaluationPlan layout;
  layout.machine = request.machine;
  layout.tokens = request.tokens;
  model::ModelPlan& model = layout.model;
  model.options = model::WithVocabulary(asked.model, request.tokens.vocabulary, request.deck);
  if (asked.model.Translates() && !request.tokens.pairs) {
    throw request.deck.Complain("data.file", "is not there: its pairs decide on the plan",
                                "Write it with job.task = tokenize.");
  }
  if (request.tokens.pairs) {
    model.options.source_types = request.tokens.pairs->source_vocabulary;
    CheckPairs(request);
  }
  layout.grid = PlanGrid(asked, request.deck, request.ranks);
  layout.sharing = comm::ReadGridOptions(asked.comm, request.deck, layout.grid);
  if (training || layout.grid.pipeline > 1) {
    model.pipeline =
        parallel::MakePipelineShape(asked.parallel, request.deck, layout.grid.pipeline);
  }
  CheckPositions(model.options, request);
  CheckDocuments(request);
  model::CheckLayout(request.deck, model.options, layout.grid, model.pipeline);
  model.dtype = request.machine.dtype;
  model.seed = asked.machine.seed;
  model.length = asked.data.sequence_length;
  model.training = training;
  model.document_mask = asked.data.document_mask;
  const bool bucket_given = asked.parallel.bucket_given || !request.machine.stream.OnGpu();
  const double bucket = bucket_given ? asked.parallel.bucket_mib : kGpuBucketMib;
  model.bucket_bytes = static_cast<std::int64_t>(bucket * kMib);
  model.prefetch = asked.parallel.prefetch;
  model.overlap = asked.parallel.overlap;
  return layout;
}

// Refuses optimizer.groups for the head if it has no parameters of its own.
void CheckGroups(const Request& request) {
  const DeckOptions& asked = request.options;
  const auto& head = asked.optimizer.groups.at(static_cast<std::size_t>(ParameterGroup::kHead));
  if (!asked.model.tie_embeddings || (head.rate == 1 && !head.decay)) return;
  throw request.deck.Complain(
      "optimizer.groups", "names head, which has no matrix of its own (model.tie_embeddings = yes)",
      "Leave head out: embedding is the matrix of both.");
}

// Tokens of a micro-batch: enough rows for matrix products to run at full speed, few enough to keep
// a layer's activations small.
constexpr std::int64_t kTokens = 2048, kGpuTokens = 16384;

// Micro-batches per stage that keep a pipeline's bubble, (P - 1) / (M + P - 1), under a fifth.
constexpr std::int64_t kPerStage = 4;

// Sequences per micro-batch that suit the device, if the deck leaves them to the program.
std::int64_t SuitableMicroBatch(std::int64_t length, bool on_gpu) {
  return std::max<std::int64_t>(1, (on_gpu ? kGpuTokens : kTokens) / length);
}

// Chooses the sequences of a micro-batch, up to `suitable`, in whole grains (windows that stay
// together: a canonical leaf, else 1), but few enough for kPerStage micro-batches per stage of a
// pipeline; an interleaved schedule gets the next smaller number that it can take, else the next
// larger one. share: windows of the data rank that has most.
std::int64_t ChooseMicroBatch(std::int64_t suitable, std::int64_t share, std::int64_t grain,
                              const parallel::PipelineShape& pipeline) {
  const std::int64_t all = CeilDivide(share, grain);  // counts in grains from here on
  const auto sequences = [&](std::int64_t grains) { return std::min(grains * grain, share); };
  std::int64_t wanted = std::clamp<std::int64_t>(suitable / grain, 1, all);
  if (pipeline.stages == 1) return sequences(wanted);
  wanted = std::clamp<std::int64_t>(all / (kPerStage * pipeline.stages), 1, wanted);
  if (pipeline.kind != parallel::ScheduleKind::kInterleaved) return sequences(wanted);
  const auto fits = [&](std::int64_t grains) {
    return CeilDivide(all, grains) % pipeline.stages == 0;
  };
  for (std::int64_t fewer = wanted; fewer >= 1; --fewer) {
    if (fits(fewer)) return sequences(fewer);
  }
  for (std::int64_t more = wanted + 1; more <= all; ++more) {
    if (fits(more)) return sequences(more);
  }
  return sequences(wanted);  // none fits: model::CheckMicroBatches will throw
}

// Completes layout.model with micro-batch and canonical leaf, and returns all training options.
TrainingOptions MakeTrainingOptions(const Request& request, EvaluationPlan& layout) {
  const DeckOptions& asked = request.options;
  const bool on_gpu = request.machine.stream.OnGpu();
  const comm::GridShape& grid = layout.grid;
  CheckGroups(request);
  CheckCombinations(request);
  const std::optional<PairFacts>& pairs = request.tokens.pairs;
  data::Sampler::Options samples{.tokens = request.tokens.train,
                                 .length = asked.data.sequence_length,
                                 .stride = asked.data.stride,
                                 .batch = asked.data.batch,
                                 .seed = asked.machine.seed,
                                 .shuffle = true,
                                 .origin = request.origin,
                                 .sources = request.tokens.sources,
                                 .ramp = {asked.schedule.batch_ramp, asked.schedule.batch_start}};
  const std::int64_t batch = pairs ? pairs->batch : data::Sampler(samples).MostWindows();
  samples.batch = batch;
  layout.model.canonical = MakeCanonical(request, layout.model.options, grid, batch);
  const parallel::Canonical& canonical = layout.model.canonical;
  CheckLeaves(request, canonical);
  const std::int64_t grain = canonical.On() ? canonical.leaf : 1;
  const std::int64_t share = LargestShare(batch, grid.data, canonical);
  const std::int64_t suitable = SuitableMicroBatch(asked.data.sequence_length, on_gpu);
  layout.model.micro_batch = asked.data.micro_batch != 0
                                 ? std::min(asked.data.micro_batch, share)
                                 : ChooseMicroBatch(suitable, share, grain, layout.model.pipeline);
  model::CheckMicroBatches(request.deck, layout.model.pipeline, grid.data, share,
                           layout.model.micro_batch, grain);
  layout.model.label_smoothing = asked.optimizer.label_smoothing;
  layout.model.z_loss = asked.optimizer.z_loss;
  const double epochs = asked.schedule.epochs;
  std::int64_t steps = request.steps;  // if the deck leaves them open
  std::optional<data::PairBatches::Options> batches;
  if (pairs) {
    batches = data::BatchesOf(asked.data, asked.machine.seed);
    if (steps == 0) steps = std::max(1LL, std::llround(epochs * static_cast<double>(pairs->steps)));
  } else if (steps == 0) {
    steps = data::Sampler(samples).StepsOf(epochs);
  }
  return {.model = layout.model,
          .samples = samples,
          .loss_mask = request.tokens.loss_mask,
          .pairs = batches,
          .optimizer = asked.optimizer,
          .schedule = MakeSchedule(asked.schedule, asked.optimizer.learning_rate, steps),
          .keep_gradients = false,
          .async_checkpoints = request.async_checkpoints,
          .graphs = asked.machine.graphs == device::Graphs::kAuto,
          .products_file = asked.machine.products};
}

void OfWindows(const data::Sampler::Options& samples, const TokenFacts& tokens,
               std::vector<std::string>& odd) {
  if (samples.stride > samples.length) {
    odd.push_back(
        fmt::format("data.stride = {} exceeds data.sequence_length = {}: {:.0f}% of the "
                    "tokens are never trained on",
                    samples.stride, samples.length,
                    100. * static_cast<double>(samples.stride - samples.length) /
                        static_cast<double>(samples.stride)));
  }
  if (tokens.train > 0 && samples.length > tokens.train - 1) {
    odd.push_back(
        fmt::format("data.sequence_length = {} exceeds the {} tokens of {}: its only "
                    "window is filled up",
                    samples.length, tokens.train, tokens.source));
  }
}

}  // namespace

parallel::Canonical MakeCanonical(const Request& request, const model::Options& model,
                                  const comm::GridShape& grid, std::int64_t batch) {
  const parallel::Canonical& asked = request.options.parallel.canonical;
  if (!asked.On()) return {};
  const int groups = asked.data_groups, slices = asked.slices;
  CheckGrid(request.deck, grid, groups, slices);
  CheckArithmetic(request, fmt::format("{}x{}", groups, slices));
  if (model.qk_norm && slices > 1) {
    throw request.deck.Complain(
        kKey, "gradients of model.qk_norm = yes have no fixed order of slices",
        fmt::format("What fits: {} = {}x1, or model.qk_norm = no.", kKey, groups));
  }
  const std::int64_t most = std::min({model.heads, model.kv_heads, model.ffn, model.vocabulary});
  if (slices > most) {
    throw request.deck.Complain(
        kKey,
        fmt::format("{} slices, but model.kv_heads = {}, model.heads = {}, "
                    "model.ffn = {}, vocabulary {}: each slice needs one of each",
                    slices, model.kv_heads, model.heads, model.ffn, model.vocabulary),
        fmt::format("What fits: {} = {}x{}.", kKey, groups,
                    std::bit_floor(static_cast<unsigned>(most))));
  }
  const std::int64_t length = request.options.data.sequence_length;
  std::int64_t leaf = asked.leaf;
  if (leaf == 0) {
    leaf = std::min(CeilDivide(batch, groups), std::max<std::int64_t>(1, kLeafTokens / length));
  }
  return {groups, slices, std::min(leaf, batch)};
}

void CheckLeaves(const Request& request, const parallel::Canonical& canonical) {
  const std::int64_t leaf = canonical.leaf, given = request.options.data.micro_batch;
  if (!canonical.On() || given % leaf == 0) return;
  const std::int64_t lower = std::max(leaf, given / leaf * leaf);
  throw request.deck.Complain(
      "data.micro_batch", fmt::format("it is not a multiple of the leaf, {} sequences", leaf),
      fmt::format("What fits: data.micro_batch = {} or {}.", lower, lower + leaf));
}

// PlanKinds: groups ranks that need the same memory, without planning each of 100,000 ranks.
std::vector<RankKind> PlanKinds(const Plan& plan) {
  std::vector<RankKind> kinds;
  for (const auto& [sizes, tensor] : TensorClasses(plan)) {
    for (int stage = 0; stage < plan.grid.pipeline; ++stage) {
      AppendKinds(plan, stage, tensor, kinds);
    }
  }
  std::ranges::sort(kinds, [](const RankKind& a, const RankKind& b) {
    const std::int64_t most = a.memory.Total(), other = b.memory.Total();
    return most != other ? most > other : a.first < b.first;
  });
  return kinds;
}

MachineFacts FactsOf(device::Precision precision, const device::Gpu* gpu, int threads) {
  const device::Arithmetic arithmetic = device::ArithmeticOf(precision, gpu != nullptr);
  MachineFacts facts;
  facts.dtype = arithmetic.dtype;
  facts.stream.bf16 = arithmetic.bf16_products;
  facts.stream.fp8 = arithmetic.fp8_products;
  facts.stream.gpu = gpu == nullptr ? nullptr : &gpu->Context();
  facts.stream.threads = threads;
  return facts;
}

comm::GridShape PlanGrid(const DeckOptions& options, const deck::Deck& deck, int ranks) {
  return comm::ReadGrid(options.comm, deck, ranks, [&](std::int64_t tensor, std::int64_t pipeline) {
    return model::LayoutFits(options.model, options.parallel.chunks, tensor, pipeline);
  });
}

Plan MakePlan(const Request& request) {
  EvaluationPlan layout = MakeLayout(request, true);
  const TrainingOptions options = MakeTrainingOptions(request, layout);
  const TokenFacts& tokens = request.tokens;
  return {.grid = layout.grid,
          .sharing = layout.sharing,
          .training =
              PlanTraining(options, tokens.pairs ? tokens.pairs->pairs : tokens.train, layout.grid),
          .machine = request.machine,
          .tokens = request.tokens};
}

StepShape Plan::TypicalStep() const {
  if (!tokens.pairs || tokens.pairs->typical.pairs == 0) return {training.Batch()};
  const data::PairBatchShape& typical = tokens.pairs->typical;
  return {typical.pairs, typical.source_length, typical.target_length};
}

bool CanPackWeights(const EvaluationPlan& plan) {
  const model::ModelPlan& model = plan.model;
  return !model.canonical.On() &&
         kernels::PackedWeights::Serve(plan.machine.stream, model.dtype, model.cache_slots) &&
         plan.sharing.sharding != comm::Sharding::kParameters;
}

EvaluationPlan MakeEvaluationPlan(const Request& request, std::int64_t micro_batch,
                                  std::int64_t cache_slots) {
  const data::Options& data = request.options.data;
  EvaluationPlan layout = MakeLayout(request, false);
  layout.model.micro_batch = micro_batch > 0 ? micro_batch : data.micro_batch;
  if (layout.model.micro_batch == 0) {
    layout.model.micro_batch =
        SuitableMicroBatch(data.sequence_length, request.machine.stream.OnGpu());
  }
  layout.model.canonical = MakeCanonical(request, layout.model.options, layout.grid, data.batch);
  // Keys and values that are cut over context ranks are not cached.
  if (layout.grid.context == 1) layout.model.cache_slots = cache_slots;
  // A micro-batch must also hold one token of each cached sequence.
  layout.model.micro_batch =
      std::max(layout.model.micro_batch, CeilDivide(cache_slots, layout.model.length));
  return layout;
}

std::vector<std::string> Oddities(const Plan& plan) {
  std::vector<std::string> odd;
  const TrainingPlan& training = plan.training;
  const int data_ranks = plan.grid.data;
  if (data_ranks > training.Batch()) {
    odd.push_back(fmt::format("{} data ranks share data.batch = {}: {} of them have nothing to do",
                              data_ranks, training.Batch(), data_ranks - training.Batch()));
  }
  const Schedule& schedule = training.options.schedule;
  if (schedule.peak == 0) {
    odd.emplace_back("optimizer.learning_rate = 0: nothing is learned");
  } else if (schedule.warmup_steps > schedule.steps) {
    odd.push_back(fmt::format(
        "schedule.warmup_steps = {} exceeds the run's {} steps: the rate ends "
        "at {:.3g} and never reaches optimizer.learning_rate = {:.3g}",
        schedule.warmup_steps, schedule.steps, schedule.Rate(schedule.steps), schedule.peak));
  }
  const data::BatchRamp& ramp = training.options.samples.ramp;
  if (ramp.steps >= schedule.steps) {
    odd.push_back(
        fmt::format("schedule.batch_ramp = {} takes the run's {} steps: none has the whole "
                    "data.batch = {}",
                    ramp.steps, schedule.steps, training.Batch()));
  }
  if (plan.machine.stream.OnGpu() && ramp.steps > 0 &&
      CeilDivide(ramp.start, std::int64_t{data_ranks}) < training.model.micro_batch) {
    odd.push_back(fmt::format(
        "schedule.batch_start = {} fills no micro-batch of {} windows: its products are not among "
        "those that the first step times",
        ramp.start, training.model.micro_batch));
  }
  const model::Options& model = training.model.options;
  if (!training.options.pairs) OfWindows(training.options.samples, plan.tokens, odd);
  if (model.position == model::Position::kRope && training.model.length > model.max_positions) {
    odd.push_back(
        fmt::format("data.sequence_length = {} exceeds model.max_positions = {}, for "
                    "which the rotary positions are made",
                    training.model.length, model.max_positions));
  }
  return odd;
}

}  // namespace trireme::train
