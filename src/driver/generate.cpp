// Continuing a prompt from the model's distribution.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "printable.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/driver/trained_model.hpp"

namespace trireme::driver {

std::int32_t Choose(const std::vector<double>& logits, const GenerateOptions& options,
                    double uniform) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const double x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
  std::sort(order.begin(), order.end(), likelier);
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  const double top = logits[static_cast<std::size_t>(order[0])];
  std::vector<double> weights;
  for (std::int32_t id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - top) / options.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) {
    kept += weights[count++];
  }
  double remaining = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    remaining -= weights[i];
    if (remaining <= 0) return order[i];
  }
  return order[count - 1];
}

std::vector<std::int32_t> Continue(model::ParallelModel& model, std::vector<std::int32_t> prompt,
                                   const GenerateOptions& options) {
  const std::int64_t longest = model.Plan().length;
  std::vector<std::int32_t> added;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    // The model sees the last `longest` tokens.
    const std::int64_t size = static_cast<std::int64_t>(prompt.size());
    const std::int64_t seen = std::min(size, longest);
    data::Entry batch;
    batch.sequences = 1;
    batch.length = seen;
    batch.inputs.assign(prompt.end() - seen, prompt.end());
    batch.targets.assign(static_cast<std::size_t>(seen), data::kMasked);
    batch.ordinals = {0};
    const std::vector<double> logits = model.Logits(batch, seen - 1);
    if (!std::all_of(logits.begin(), logits.end(), [](double x) { return std::isfinite(x); })) {
      return {};
    }
    const PhiloxCounter words =
        Philox({static_cast<std::uint32_t>(i), 0, 0, 0}, MakeKey(options.seed, Purpose::kGenerate));
    const std::int32_t next = Choose(logits, options, UniformFrom(words[0]));
    prompt.push_back(next);
    added.push_back(next);
  }
  return added;
}

std::vector<std::int32_t> ContinueOnce(model::ParallelModel& model,
                                       const std::vector<std::int32_t>& prompt,
                                       const GenerateOptions& options) {
  const comm::ProcessGrid& grid = model.Grid();
  // All ranks take part in gathers of parameters.
  const bool writes = grid.Coordinates().data == 0 || model.Units().ValuesSharded();
  std::vector<std::int32_t> added;
  if (writes) added = Continue(model, prompt, options);
  grid.World().Together([&] {
    if (!writes || !added.empty() || options.tokens == 0) return;
    throw RunError("the model's prediction is not finite", "Its weights are damaged.");
  });
  return added;
}

ExitCode RunGenerate(job::Job& job) {
  constexpr std::int64_t kOnePrompt = 1;
  TrainedModel trained(job, kOnePrompt);
  const data::TokenFile& tokens = trained.Tokens();
  if (job.line->validate_only) return job::SayValid(job);
  const GenerateOptions options = ReadGenerate(job.deck);
  std::vector<std::int32_t> shown;
  job.World().Together([&] { shown = tokens.Encode(options.prompt); });
  std::vector<std::int32_t> prompt = {static_cast<std::int32_t>(tokens.Words().eos)};
  prompt.insert(prompt.end(), shown.begin(), shown.end());
  const std::vector<std::int32_t> added = ContinueOnce(trained.Net(), prompt, options);
  if (!job.World().IsRoot()) return ExitCode::kDone;
  shown.insert(shown.end(), added.begin(), added.end());
  fmt::print("{}\n", Printable(tokens.Decode(shown)));
  std::fflush(stdout);
  return ExitCode::kDone;
}

}  // namespace trireme::driver
