// The object "validation" of run.json: writing, reading, comparing.
#include "decider_record.hpp"

#include <fmt/format.h>

#include "mixture_record.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::app {

namespace {

std::string Describe(const Decider& decider) {
  return fmt::format(
      "{}{} ({} tokens, sha256 {:.12})",
      decider.windows > 0
          ? fmt::format("{} window{} of ", decider.windows, decider.windows == 1 ? "" : "s")
          : "",
      decider.set.empty() ? "the valid split" : "the set " + deck::Shown(decider.set),
      decider.tokens, deck::Shown(decider.sha256));
}

}  // namespace

nlohmann::json DeciderJson(const Decider& decider) {
  return {{"set", decider.set},
          {"source_sha256", decider.sha256},
          {"tokens", decider.tokens},
          {"windows", decider.windows},
          {"since", decider.since}};
}

void ParseDecider(const nlohmann::json& run, const std::string& path, RunRecord& record) {
  if (!run.contains("validation")) return;
  const deck::JsonObject decider = deck::JsonObject(run, path).Object("validation");
  record.decider = {.set = decider.Text("set"),
                    .sha256 = decider.Text("source_sha256"),
                    .tokens = decider.Integer("tokens", 0, kMostTrainTokens),
                    .windows = decider.Has("windows") ? decider.Integer("windows") : 0,
                    .since = decider.Integer("since")};
}

bool SameSet(const Decider& a, const Decider& b) {
  return a.set == b.set && a.sha256 == b.sha256 && a.tokens == b.tokens && a.windows == b.windows;
}

std::string DeciderChange(const RunRecord& record, const Decider& now) {
  if (!record.decider || SameSet(*record.decider, now)) return {};
  return fmt::format(
      "the best checkpoint is chosen by {} now and was by {}: its loss begins anew, and the next "
      "validation takes checkpoints/best over",
      Describe(now), Describe(*record.decider));
}

}  // namespace trireme::app
