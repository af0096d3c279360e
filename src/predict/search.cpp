// Search: estimates every layout, plans the memory of the best exactly, simulates those that fit.
#include "trireme/predict/search.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::predict {

namespace {

using comm::Sharding;
using model::Recompute;
using parallel::ScheduleKind;

// Step time and least memory of a layout by simple formulas, to choose what is simulated.
struct Estimate {
  double seconds = 0;
  double least_bytes = 0;  // per rank: parameter state and kept activations
};

// Bytes of one parameter on a rank: its value, and 4 bytes each for gradient, `state` moments and
// averages and, if the value is shorter than fp32, a master copy. value: bytes of the value.
double StateBytes(const Layout& layout, int state, double value, double replicas) {
  constexpr double kFp32 = 4;
  const double master = value < kFp32 ? kFp32 : 0, moments = state * kFp32;
  const double shards = layout.shard_group > 0 ? layout.shard_group : replicas;
  double bytes = value + kFp32 + master + moments;
  if (layout.sharding >= Sharding::kOptimizer) bytes += (moments + master) * (1 / shards - 1);
  if (layout.sharding >= Sharding::kGradients) bytes += kFp32 * (1 / shards - 1);
  if (layout.sharding == Sharding::kParameters) bytes += value * (1 / shards - 1);
  return bytes;
}

// About how many numbers a block keeps per token for the backward pass, in units of `dim`.
double KeptMatrices(const model::Options& model, Recompute recompute) {
  if (recompute == Recompute::kFull) return 1;
  const double ffn = static_cast<double>(model.ffn) / static_cast<double>(model.dim);
  const double wide = model.activation == model::Activation::kSwiglu ? 3 : 2;
  return recompute == Recompute::kSelective ? 4 + (wide - 1) * ffn : 6 + wide * ffn;
}

// A step's sequences: their number, and the rows in a block and operations of each.
struct Sequences {
  std::int64_t batch = 0;
  double rows = 0, flops = 0;
};
Sequences SequencesOf(const train::Request& request, const model::Options& model) {
  const data::Options& data = request.options.data;
  if (!request.tokens.pairs || request.tokens.pairs->typical.pairs == 0) {
    const auto length = static_cast<double>(data.sequence_length);
    return {data.batch, length, model::FlopsPerToken(model, data.sequence_length) * length};
  }
  const data::PairBatchShape& typical = request.tokens.pairs->typical;
  // The mean of the encoder's and the decoder's rows.
  const double rows = static_cast<double>(typical.source_length + typical.target_length) / 2;
  return {typical.pairs, rows,
          model::PairFlops(model, typical.source_length, typical.target_length)};
}

// Estimates a step from its operations, bubble (Narayanan et al. 2021) and transfers.
Estimate EstimateOf(const train::Request& request, const Machine& machine, const Layout& layout) {
  const train::DeckOptions& asked = request.options;
  model::Options model = asked.model;
  model.vocabulary = std::max(model.asked_vocabulary, request.tokens.vocabulary);
  if (request.tokens.pairs) model.source_types = request.tokens.pairs->source_vocabulary;
  const double value = static_cast<double>(SizeOf(request.machine.dtype));
  const double tensor = layout.tensor, stages = layout.pipeline,
               replicas = static_cast<double>(layout.data) * layout.context;
  const Sequences sequences = SequencesOf(request, model);
  const auto share = static_cast<double>(CeilDivide(sequences.batch, std::int64_t{layout.data}));
  const double micro_batches = std::ceil(share / static_cast<double>(layout.micro_batch));
  const double taken = std::min(static_cast<double>(layout.micro_batch), share);
  const double rows = taken * sequences.rows / layout.context;
  const auto parameters = static_cast<double>(model::ParameterCount(model)) / (tensor * stages);

  // Computation of one micro-batch on a rank.
  const Products& products = machine.Of(request.machine.dtype, request.machine.stream.fp8);
  const auto filled = [&](double size) { return size / (size + products.half); };
  const double rate = products.peak * products.efficiency * filled(rows) *
                      filled(static_cast<double>(model.dim) / tensor);
  const double again = layout.recompute == Recompute::kFull        ? 4.0 / 3
                       : layout.recompute == Recompute::kSelective ? 1.03
                                                                   : 1;
  double task = taken * sequences.flops / layout.context * again / (tensor * stages * rate);
  // Sums over the tensor ranks: two per block forward and two backward, some of them hidden.
  const double layers = static_cast<double>(model.Blocks()) / stages;
  const double sum = rows * static_cast<double>(model.dim) * value;
  if (layout.tensor > 1) {
    task += 3 * layers *
            (2 * (tensor - 1) / tensor * sum / machine.node.bandwidth + 4 * machine.node.latency);
  }
  const bool near = replicas * tensor <= machine.ranks_per_node || layout.shard_group > 0;
  const double link =
      near ? machine.node.bandwidth
           : machine.network.bandwidth * std::max(1.0, machine.ranks_per_node / tensor);
  const double gathered = std::min(link, machine.node.bandwidth);
  double ends = 0;
  if (replicas > 1) {
    constexpr double kFp32 = 4;
    if (layout.sharding == Sharding::kParameters) {
      task = std::max(task, parameters * (2 * value + kFp32) / gathered);
    } else {
      ends = parameters * (kFp32 + value) / gathered / 2;
    }
  }
  double bubble = (stages - 1) / layout.chunks;
  if (layout.schedule == parallel::ScheduleKind::kZeroBubble) bubble /= 3;
  Estimate estimate;
  estimate.seconds = task * (micro_batches + bubble) + ends;
  const double under_way = std::min(stages, micro_batches);
  estimate.least_bytes =
      parameters * StateBytes(layout, train::LeastState(asked.optimizer), value, replicas) +
      layers * under_way * rows / tensor * static_cast<double>(model.dim) * value *
          KeptMatrices(model, layout.recompute) * 0.8;
  return estimate;
}

constexpr int kMostStages = 64, kMostContext = 16;
constexpr std::int64_t kMostMicroBatch = 16;
constexpr std::int64_t kLongSequence = 32768;  // shorter sequences are not worth context ranks
constexpr int kMostLooks = 400;                // layouts planned exactly

std::vector<int> DivisorsUpTo(int number, std::int64_t most) {
  std::vector<int> divisors;
  for (int i = 1; i <= std::min<std::int64_t>(number, most); ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

struct Schedule {
  ScheduleKind kind;
  int chunks;
};
std::vector<Schedule> SchedulesFor(int stages, std::int64_t layers) {
  std::vector<Schedule> schedules = {{ScheduleKind::kOneForwardOneBackward, 1}};
  if (stages == 1) return schedules;
  schedules.push_back({ScheduleKind::kZeroBubble, 1});
  for (const int chunks : {2, 4}) {
    if (std::int64_t{chunks} * stages <= layers) {
      schedules.push_back({ScheduleKind::kInterleaved, chunks});
    }
  }
  return schedules;
}

// All layouts of the ranks; micro-batch and recomputation are chosen later.
std::vector<Layout> GridsOf(const train::Request& request, const Machine& machine) {
  const std::int64_t layers = request.options.model.Blocks();
  const bool long_sequences = request.options.data.sequence_length >= kLongSequence;
  const std::int64_t most_context =
      std::max<std::int64_t>(request.options.comm.context, long_sequences ? kMostContext : 1);
  std::vector<Layout> list;
  const auto add = [&](Layout layout) {
    const int replicas = layout.data * layout.context;
    const int on_node = std::max(1, machine.ranks_per_node / layout.tensor);
    std::vector<Sharding> kinds = {Sharding::kNone};
    if (replicas > 1) kinds = {Sharding::kOptimizer, Sharding::kParameters};
    for (const Schedule& schedule : SchedulesFor(layout.pipeline, layers)) {
      layout.schedule = schedule.kind;
      layout.chunks = schedule.chunks;
      for (const Sharding kind : kinds) {
        layout.sharding = kind;
        layout.shard_group = 0;
        list.push_back(layout);
        if (kind != Sharding::kParameters || on_node < 2 || on_node >= replicas ||
            replicas % on_node != 0) {
          continue;
        }
        layout.shard_group = on_node;
        list.push_back(layout);
      }
    }
  };
  for (const int tensor : DivisorsUpTo(request.ranks, machine.ranks_per_node)) {
    const int rest = request.ranks / tensor;
    for (const int pipeline : DivisorsUpTo(rest, std::min<std::int64_t>(layers, kMostStages))) {
      if (!model::LayoutFits(request.options.model, 1, tensor, pipeline)) continue;
      const int left = rest / pipeline;
      for (const int context : DivisorsUpTo(left, most_context)) {
        add({.data = left / context,
             .context = context,
             .tensor = tensor,
             .pipeline = pipeline,
             .sequence_parallel = tensor > 1});
      }
    }
  }
  return list;
}

// Sequences of a step.
std::int64_t BatchOf(const train::Request& request) {
  const std::optional<train::PairFacts>& pairs = request.tokens.pairs;
  return pairs && pairs->typical.pairs > 0 ? pairs->typical.pairs : request.options.data.batch;
}

// Micro-batch sizes to try, up to `share`, a data rank's sequences; pairs, whose texts are short,
// may take the whole share at once.
std::vector<std::int64_t> MicroBatchesFor(const train::Request& request, std::int64_t share) {
  std::vector<std::int64_t> sizes;
  const std::int64_t most = request.tokens.pairs ? share : std::min(share, kMostMicroBatch);
  for (std::int64_t micro = 1; micro <= most; micro *= 2) sizes.push_back(micro);
  if (request.tokens.pairs && sizes.back() < share) sizes.push_back(share);
  return sizes;
}

// All complete layouts with their estimated seconds, fastest first.
std::vector<std::pair<double, Layout>> Estimated(const train::Request& request,
                                                 const Machine& machine) {
  std::vector<std::pair<double, Layout>> list;
  for (Layout layout : GridsOf(request, machine)) {
    const std::int64_t share = CeilDivide(BatchOf(request), std::int64_t{layout.data});
    for (const std::int64_t micro : MicroBatchesFor(request, share)) {
      const std::int64_t count = CeilDivide(share, micro);
      if (layout.schedule == ScheduleKind::kInterleaved && count < layout.pipeline) continue;
      layout.micro_batch = micro;
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        layout.recompute = recompute;
        const Estimate estimate = EstimateOf(request, machine, layout);
        if (estimate.least_bytes > static_cast<double>(machine.memory_bytes)) continue;
        list.emplace_back(estimate.seconds, layout);
      }
    }
  }
  std::ranges::stable_sort(list, {}, [](const auto& each) { return each.first; });
  return list;
}

Candidate Look(const train::Plan& plan, const Machine& machine) {
  Candidate candidate;
  candidate.layout = LayoutOf(plan);
  candidate.memory = LargestMemory(plan);
  candidate.fits = candidate.memory.Total() <= machine.memory_bytes;
  return candidate;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> KeysOf(const Layout& layout) {
  std::vector<std::pair<std::string, std::string>> keys;
  const auto add = [&keys](const char* key, const std::string& value) {
    keys.emplace_back(key, value);
  };
  add("grid.tensor", fmt::format("{}", layout.tensor));
  if (layout.tensor > 1) add("grid.sequence_parallel", layout.sequence_parallel ? "yes" : "no");
  add("grid.pipeline", fmt::format("{}", layout.pipeline));
  add("grid.context", fmt::format("{}", layout.context));
  add("grid.sharding", comm::NameOf(layout.sharding));
  if (layout.sharding != Sharding::kNone && layout.shard_group > 0) {
    add("grid.shard_group", fmt::format("{}", layout.shard_group));
  }
  if (layout.pipeline > 1) {
    add("pipeline.schedule", parallel::NameOf(layout.schedule));
    if (layout.chunks > 1) add("pipeline.chunks", fmt::format("{}", layout.chunks));
  }
  add("data.micro_batch", fmt::format("{}", layout.micro_batch));
  add("model.recompute", model::NameOf(layout.recompute));
  return keys;
}

train::Plan PlanWith(const train::Request& request, const Layout& layout) {
  train::DeckOptions options = request.options;
  options.comm.data = layout.data;
  options.comm.context = layout.context;
  options.comm.tensor = layout.tensor;
  options.comm.pipeline = layout.pipeline;
  options.comm.sequence_parallel = layout.sequence_parallel;
  options.comm.sequence_parallel_given = layout.tensor > 1;
  options.comm.sharding = layout.sharding;
  options.comm.shard_group = layout.shard_group;
  options.comm.shard_group_given = layout.shard_group > 0;
  options.parallel.schedule = layout.schedule;
  options.parallel.chunks = layout.chunks;
  options.data.micro_batch = layout.micro_batch;
  options.model.recompute = layout.recompute;
  return train::MakePlan({.options = options,
                          .deck = request.deck,
                          .ranks = request.ranks,
                          .tokens = request.tokens,
                          .machine = request.machine,
                          .async_checkpoints = request.async_checkpoints});
}

Layout LayoutOf(const train::Plan& plan) {
  const model::ModelPlan& model = plan.training.model;
  return {.data = plan.grid.data,
          .context = plan.grid.context,
          .tensor = plan.grid.tensor,
          .pipeline = plan.grid.pipeline,
          .sequence_parallel = plan.sharing.sequence_parallel,
          .sharding = plan.sharing.sharding,
          .shard_group = plan.sharing.shard_group,
          .schedule = model.pipeline.kind,
          .chunks = model.pipeline.chunks,
          .micro_batch = model.micro_batch,
          .recompute = model.options.recompute};
}

device::MemoryTerms LargestMemory(const train::Plan& plan) {
  // Owners of whole matrices own unequal shares.
  if (plan.training.model.whole_parameters && plan.sharing.sharding != Sharding::kNone) {
    return train::PlanKinds(plan).front().memory;
  }
  device::MemoryTerms most;
  for (int stage = 0; stage < plan.grid.pipeline; ++stage) {
    // The ends hold embeddings and head; of the others, stage 1 has most micro-batches in flight.
    if (stage > 1 && stage + 1 < plan.grid.pipeline) continue;
    const int rank =
        comm::RankAt({.pipeline = stage, .data = 0, .context = 0, .tensor = 0}, plan.grid);
    const device::MemoryTerms memory = train::PlanMemory(plan, rank);
    if (memory.Total() > most.Total()) most = memory;
  }
  return most;
}

SearchResult Search(const train::Request& request, const Machine& machine, bool own, int most) {
  SearchResult result;
  std::optional<Candidate> mine;
  if (own) {
    try {
      const train::Plan plan = train::MakePlan(request);
      mine = Look(plan, machine);
      mine->own = true;
      mine->prediction = Predict(plan, machine);
    } catch (const Error& error) {
      result.own_refused = error.what();
    }
  }
  if (most == 0 && mine) {
    result.rows.push_back(*mine);
    return result;
  }
  const std::vector<std::pair<double, Layout>> list = Estimated(request, machine);
  result.looked_at = std::ssize(list);
  int looks = 0;
  for (const auto& [seconds, layout] : list) {
    if (looks >= kMostLooks || result.simulated >= most) break;
    if (mine && layout == mine->layout) continue;
    try {
      ++looks;
      const train::Plan plan = PlanWith(request, layout);
      Candidate candidate = Look(plan, machine);
      if (!candidate.fits) continue;
      candidate.prediction = Predict(plan, machine);
      ++result.simulated;
      result.rows.push_back(candidate);
    } catch (const Error&) {
      // a layout that the model or the batch does not allow
    }
  }
  std::ranges::stable_sort(result.rows, {},
                           [](const Candidate& each) { return each.prediction.step; });
  if (mine) result.rows.insert(result.rows.begin(), *mine);
  return result;
}

}  // namespace trireme::predict
