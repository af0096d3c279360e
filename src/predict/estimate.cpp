// Estimate: operations, bubble (Narayanan et al. 2021) and transfers (comm::Moved) of a step.
#include "estimate.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/partition.hpp"

namespace trireme::predict {

namespace {

using comm::Sharding;
using model::Recompute;

// Bytes of a parameter's state: its gradient, master and moments, of 4 bytes each, beside the value
// of 16-bit ones.
double StateBytes(const Layout& layout, double value, double replicas) {
  constexpr double kFp32 = 4;
  const double master = value < kFp32 ? kFp32 : 0, moments = 2 * kFp32;
  const double shards = layout.shard_group > 0 ? layout.shard_group : replicas;
  double bytes = value + kFp32 + master + moments;
  if (layout.sharding >= Sharding::kOptimizer) bytes += (moments + master) * (1 / shards - 1);
  if (layout.sharding >= Sharding::kGradients) bytes += kFp32 * (1 / shards - 1);
  if (layout.sharding == Sharding::kParameters) bytes += value * (1 / shards - 1);
  return bytes;
}

// Residual-sized matrices that a block keeps of a token without recomputation, about.
double KeptMatrices(const model::Options& model, Recompute recompute) {
  if (recompute == Recompute::kFull) return 1;
  const double ffn = static_cast<double>(model.ffn) / static_cast<double>(model.dim);
  const double wide = model.activation == model::Activation::kSwiglu ? 3 : 2;
  return recompute == Recompute::kSelective ? 4 + (wide - 1) * ffn : 6 + wide * ffn;
}

// A batch's sequences: their number, and of one the rows of a block and the operations.
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
  // Of a block of either stack.
  const double rows = static_cast<double>(typical.source_length + typical.target_length) / 2;
  return {typical.pairs, rows,
          model::PairFlops(model, typical.source_length, typical.target_length)};
}

}  // namespace

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

  // Computation of a micro-batch on a rank.
  const Products& products = machine.Of(request.machine.dtype, request.machine.stream.fp8);
  const auto filled = [&](double size) { return size / (size + products.half); };
  const double rate = products.peak * products.efficiency * filled(rows) *
                      filled(static_cast<double>(model.dim) / tensor);
  const double again = layout.recompute == Recompute::kFull        ? 4.0 / 3
                       : layout.recompute == Recompute::kSelective ? 1.03
                                                                   : 1;
  double task = taken * sequences.flops / layout.context * again / (tensor * stages * rate);
  // Sums of the tensor ranks: two a block forward and two backward, half of them hidden.
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
  estimate.least_bytes = parameters * StateBytes(layout, value, replicas) +
                         layers * under_way * rows / tensor * static_cast<double>(model.dim) *
                             value * KeptMatrices(model, layout.recompute) * 0.8;
  return estimate;
}

}  // namespace trireme::predict
