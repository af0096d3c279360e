// Whether a layout suits a model, and which ones would.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "trireme/model/parallel_model.hpp"

namespace trireme::model {

namespace {

// "1", "1 or 2", "1, 2 or 4".
std::string Alternatives(const std::vector<std::int64_t>& values) {
  if (values.size() < 2) return fmt::format("{}", fmt::join(values, ""));
  return fmt::format("{} or {}", fmt::join(values.begin(), values.end() - 1, ", "), values.back());
}

bool HeadsFit(const Options& o, std::int64_t tensor) {
  return o.heads % tensor == 0 && (o.kv_heads % tensor == 0 || tensor % o.kv_heads == 0);
}
bool TensorFits(const Options& o, std::int64_t tensor) {
  return HeadsFit(o, tensor) && tensor <= o.ffn && tensor <= o.vocabulary;
}

// At most three values around `wanted` that `fits` accepts, ascending.
template <typename Fits>
std::vector<std::int64_t> Nearest(std::int64_t wanted, std::int64_t most, Fits fits) {
  constexpr std::size_t kShown = 3;
  std::vector<std::int64_t> found;
  for (std::int64_t distance = 0; distance <= std::max(wanted, most); ++distance) {
    for (const std::int64_t value : {wanted - distance, wanted + distance}) {
      if (value < 1 || value > most || !fits(value) || found.size() == kShown) continue;
      if (std::find(found.begin(), found.end(), value) == found.end()) found.push_back(value);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void CheckTensor(const input::Deck& deck, const Options& o, std::int64_t tensor) {
  if (TensorFits(o, tensor)) return;
  std::string what;
  if (!HeadsFit(o, tensor)) {
    what = o.heads % tensor != 0
               ? fmt::format("{} tensor ranks do not divide model.heads = {}", tensor, o.heads)
               : fmt::format(
                     "{} tensor ranks neither divide model.kv_heads = {} nor are a multiple "
                     "of it",
                     tensor, o.kv_heads);
  } else {
    what = tensor > o.ffn
               ? fmt::format("more tensor ranks than model.ffn = {}", o.ffn)
               : fmt::format("more tensor ranks than the vocabulary's {} tokens", o.vocabulary);
  }
  const auto fits = Nearest(tensor, o.heads, [&](std::int64_t t) { return TensorFits(o, t); });
  throw deck.Complain("grid.tensor", what,
                      fmt::format("What fits this model: grid.tensor = {}.", Alternatives(fits)));
}

void CheckStages(const input::Deck& deck, const Options& o,
                 const parallel::PipelineShape& pipeline) {
  const std::int64_t most = o.layers + 1;  // the last may hold the head alone
  if (pipeline.VirtualStages() <= most) return;
  const int stages = pipeline.stages, chunks = pipeline.chunks, wanted = pipeline.VirtualStages();
  const std::string cut = chunks > 1 ? fmt::format("{} stages of {} chunks", stages, chunks)
                                     : fmt::format("{} stages", stages);
  const std::string fits =
      chunks == 1          ? fmt::format("grid.pipeline = {} or less", most)
      : most / stages >= 2 ? fmt::format("pipeline.chunks = {} or less", most / stages)
      : most >= stages
          ? "pipeline.schedule = 1f1b, with one chunk a stage"
          : fmt::format("pipeline.schedule = 1f1b and grid.pipeline = {} or less", most);
  throw deck.Complain(
      chunks > 1 ? "pipeline.chunks" : "grid.pipeline",
      fmt::format("{} are more than model.layers = {} and the head can fill", cut, o.layers),
      fmt::format("What fits: {}; or model.layers = {} or more.", fits, wanted - 1));
}

// The interleaved schedule runs micro-batches in groups of as many as there are stages.
void CheckMicroBatches(const input::Deck& deck, const parallel::PipelineShape& pipeline, int data,
                       std::int64_t batch, std::int64_t micro_batch) {
  if (pipeline.kind != parallel::ScheduleKind::kInterleaved || pipeline.stages == 1) return;
  const std::int64_t share = (batch + data - 1) / data;
  const auto count = [share](std::int64_t size) { return (share + size - 1) / size; };
  const auto fits = [&](std::int64_t size) { return count(size) % pipeline.stages == 0; };
  if (fits(micro_batch)) return;
  const auto sizes = Nearest(micro_batch, share, fits);
  throw deck.Complain(
      sizes.empty() ? "data.batch" : "data.micro_batch",
      fmt::format("{} micro-batches a step ({} windows a data rank, {} at once) are not a multiple "
                  "of grid.pipeline = {}, which the interleaved schedule needs",
                  count(micro_batch), share, micro_batch, pipeline.stages),
      sizes.empty()
          ? fmt::format("What fits: data.batch = {} or more, or pipeline.schedule = 1f1b.",
                        static_cast<std::int64_t>(data) * pipeline.stages)
          : fmt::format("What fits: data.micro_batch = {}, or pipeline.schedule = 1f1b.",
                        Alternatives(sizes)));
}

}  // namespace

void CheckLayout(const input::Deck& deck, const Options& options, const comm::GridShape& grid,
                 const parallel::PipelineShape& pipeline, std::int64_t batch,
                 std::int64_t micro_batch) {
  CheckTensor(deck, options, grid.tensor);
  CheckStages(deck, options, pipeline);
  CheckMicroBatches(deck, pipeline, grid.data, batch, micro_batch);
}

}  // namespace trireme::model
