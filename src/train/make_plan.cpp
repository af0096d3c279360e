// MakePlan: the deck's options, the ranks and the facts become decisions, or are refused.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "canonical.hpp"
#include "micro_batch.hpp"
#include "trireme/kernels/thin_panels.hpp"
#include "trireme/device/precision.hpp"
#include "trireme/model/check_layout.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::train {

namespace {

// MiB of gradients that are summed at once on a GPU, whose network is faster: enough to fill it.
constexpr double kGpuBucketMib = 32;
constexpr double kMib = 1024 * 1024;

// Grid, schedule and architecture: what training and evaluation share.
struct Layout {
  comm::GridShape grid;
  comm::GridOptions sharing;
  model::ModelPlan model;
};

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

// Refuses choices that models that translate do not have.
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

// Steps of the deck's epochs, at least one.
std::int64_t StepsOfPairs(const PairFacts& pairs, double epochs) {
  return std::max<std::int64_t>(1, std::llround(epochs * static_cast<double>(pairs.steps)));
}

// How pairs make batches.
std::optional<data::PairBatches::Options> PairsOf(const Request& request) {
  if (!request.tokens.pairs) return {};
  return data::BatchesOf(request.options.data, request.options.machine.seed);
}

// Without training a schedule has no meaning on one stage and is not checked there.
Layout MakeLayout(const Request& request, bool training) {
  const DeckOptions& asked = request.options;
  Layout layout;
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

// A rule that reads whole matrices cannot have slices of them.
void CheckWholeParameters(const Request& request, const comm::GridShape& grid) {
  if (grid.tensor == 1) return;
  if (!NeedsWholeParameters(request.options.optimizer.kind)) return;
  throw request.deck.Complain(
      "optimizer.kind",
      fmt::format("updates whole matrices, of which {} tensor ranks hold slices", grid.tensor),
      "Use grid.tensor = 1, with grid.sharding or grid.pipeline to share out the memory.");
}

// Also decides the grid.
TrainingOptions MakeTrainingOptions(const Request& request, comm::GridShape& grid,
                                              comm::GridOptions& sharing) {
  const DeckOptions& asked = request.options;
  const bool on_gpu = request.machine.stream.OnGpu();
  Layout layout = MakeLayout(request, true);
  grid = layout.grid;
  sharing = layout.sharing;
  CheckWholeParameters(request, grid);
  const std::optional<PairFacts>& pairs = request.tokens.pairs;
  const data::Sampler sampler({.tokens = request.tokens.train,
                               .length = asked.data.sequence_length,
                               .stride = asked.data.stride,
                               .batch = asked.data.batch,
                               .seed = asked.machine.seed,
                               .shuffle = true,
                               .origin = request.origin,
                               .sources = request.tokens.sources});
  const std::int64_t batch = std::min(asked.data.batch, pairs ? pairs->batch : sampler.Windows());
  layout.model.canonical = MakeCanonical(request, layout.model.options, grid, batch);
  const parallel::Canonical& canonical = layout.model.canonical;
  CheckLeaves(request, canonical);
  const std::int64_t grain = canonical.On() ? canonical.leaf : 1;
  const std::int64_t share = LargestShare(batch, grid.data, canonical);
  const MicroBatchChoice choice{.given = asked.data.micro_batch,
                                .suitable = SuitableMicroBatch(asked.data.sequence_length, on_gpu),
                                .share = share,
                                .grain = grain,
                                .pipeline = layout.model.pipeline};
  layout.model.micro_batch = choice.Choose();
  model::CheckMicroBatches(request.deck, layout.model.pipeline, grid.data, share,
                           layout.model.micro_batch, grain);
  layout.model.label_smoothing = asked.optimizer.label_smoothing;
  return {.model = layout.model,
          .stride = asked.data.stride,
          .batch = pairs ? batch : asked.data.batch,
          .origin = request.origin,
          .loss_mask = request.tokens.loss_mask,
          .sources = request.tokens.sources,
          .pairs = PairsOf(request),
          .optimizer = asked.optimizer,
          .schedule = MakeSchedule(asked.schedule, asked.optimizer.learning_rate,
                                              request.steps > 0 ? request.steps
                                              : pairs ? StepsOfPairs(*pairs, asked.schedule.epochs)
                                                      : sampler.StepsOf(asked.schedule.epochs)),
          .keep_gradients = false,
          .async_checkpoints = request.async_checkpoints,
          .graphs = asked.machine.graphs,
          .products_file = asked.machine.products};
}

}  // namespace

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
  comm::GridShape grid;
  comm::GridOptions sharing;
  const TrainingOptions options = MakeTrainingOptions(request, grid, sharing);
  return {
      .grid = grid,
      .sharing = sharing,
      .options = options,
      .training = PlanTraining(
          options, request.tokens.pairs ? request.tokens.pairs->pairs : request.tokens.train, grid),
      .machine = request.machine,
      .tokens = request.tokens};
}

StepShape Plan::TypicalStep() const {
  if (!tokens.pairs || tokens.pairs->typical.pairs == 0) return {training.batch};
  const data::PairBatchShape& typical = tokens.pairs->typical;
  return {typical.pairs, typical.source_length, typical.target_length};
}

bool CanPackWeights(const EvaluationPlan& plan) {
  const model::ModelPlan& model = plan.model;
  return model.cache_slots > 1 && model.cache_slots <= kernels::MostThinRows() &&
         !model.canonical.On() && kernels::HasThinProducts(plan.machine.stream, model.dtype) &&
         plan.sharing.sharding != comm::Sharding::kParameters;
}

EvaluationPlan MakeEvaluationPlan(const Request& request, std::int64_t micro_batch,
                                  std::int64_t cache_slots) {
  const data::Options& data = request.options.data;
  Layout layout = MakeLayout(request, false);
  layout.model.micro_batch = micro_batch > 0 ? micro_batch : data.micro_batch;
  if (layout.model.micro_batch == 0) {
    layout.model.micro_batch =
        SuitableMicroBatch(data.sequence_length, request.machine.stream.OnGpu());
  }
  layout.model.canonical = MakeCanonical(request, layout.model.options, layout.grid, data.batch);
  // Keys and values cut over context ranks are not kept.
  if (layout.grid.context == 1) layout.model.cache_slots = cache_slots;
  // A token of each sequence at once fits where whole windows do.
  layout.model.micro_batch =
      std::max(layout.model.micro_batch, CeilDivide(cache_slots, layout.model.length));
  return {.grid = layout.grid,
          .sharing = layout.sharing,
          .model = layout.model,
          .machine = request.machine,
          .tokens = request.tokens};
}

}  // namespace trireme::train
