// LayOut: a heading for each run and as many lines of facts as its rows allow, in the order of
// their weight.
#include "layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/report/monitor.hpp"

namespace trireme::tools {

namespace {

using report::AsBytes;
using report::AsClock;
using report::WithThousands;

constexpr int kLabel = 8;  // columns of a line's first word

bool Known(double value) { return !std::isnan(value); }

std::string Percent(double fraction) { return fmt::format("{:.0f}%", 100 * fraction); }

std::string Bytes(double bytes) { return AsBytes(static_cast<std::int64_t>(bytes)); }

std::string Loss(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string("not finite");
}

// Parts joined by ", ", those that are empty left out.
std::string Joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (!text.empty()) text += ", ";
    text += part;
  }
  return text;
}

std::string Progress(const Glance& glance) {
  std::string text = "step " + WithThousands(glance.step);
  if (glance.total_steps <= 0) return text;
  const double share = static_cast<double>(glance.step) / static_cast<double>(glance.total_steps);
  return fmt::format("{} of {}{} ({})", text, glance.about ? "about " : "",
                     WithThousands(glance.total_steps), Percent(std::min(share, 1.0)));
}

std::string Condition(const FollowedRun& run, std::int64_t now) {
  switch (run.condition) {
    case FollowedFile::State::kMissing:
      return run.state.Records() > 0 ? "metrics.jsonl is gone" : "no records yet";
    case FollowedFile::State::kUnreadable:
      return "metrics.jsonl: " + run.file.Reason();
    case FollowedFile::State::kBehind:
      return fmt::format("reading, {}", Percent(run.file.Fraction()));
    case FollowedFile::State::kCaughtUp:
      break;
  }
  if (run.state.Done()) return "done";
  if (run.state.Stopped()) return "stopped";
  if (run.state.Records() == 0) return "no records yet";
  const std::int64_t age = now - run.file.ModifiedAt();
  return age < kQuiet ? "running" : "nothing new for " + AsClock(static_cast<double>(age));
}

Row Line(std::string_view label, const std::string& text) {
  return {.text = fmt::format("{:<{}}{}", label, kLabel, text)};
}

Row LossLine(const RunState& state, const Glance& glance, const Frame& frame) {
  std::string numbers = Loss(glance.loss);
  if (Known(glance.loss_least) && Known(glance.loss_most)) {
    numbers += fmt::format(", lately {} to {}", Loss(glance.loss_least), Loss(glance.loss_most));
  }
  constexpr int kLeast = 8;  // columns of bars
  const int left = frame.columns - kLabel - static_cast<int>(numbers.size()) - 3;
  return Line("loss", numbers + "  " + state.Losses().Bars(std::max(left, kLeast), frame.blocks));
}

std::string ValidText(const RunState& state) {
  const auto one = [](const Validation& set) {
    return fmt::format("{} at step {}, best {} at step {}", Loss(set.last),
                       WithThousands(set.last_step), Loss(set.best), WithThousands(set.best_step));
  };
  std::vector<std::string> parts;
  if (Known(state.Decider().best)) parts.push_back(one(state.Decider()));
  if (Known(state.Test())) parts.push_back("test " + Loss(state.Test()));
  for (const auto& [name, set] : state.OtherSets()) parts.push_back(name + " " + Loss(set.last));
  return Joined(parts);
}

std::string SpeedText(const Glance& glance) {
  if (!Known(glance.step_seconds)) return {};
  const bool roof = glance.roof_fraction > 0;
  return Joined({WithThousands(std::llround(glance.tokens_per_second)) + " tokens/s",
                 roof ? "roof " + Percent(glance.roof_fraction) : "",
                 fmt::format("{:.3g} s a step", glance.step_seconds),
                 Known(glance.seconds_left) ? "left " + AsClock(glance.seconds_left) : "",
                 glance.bad_steps > 0 ? fmt::format("bad steps {:.0f}", glance.bad_steps) : ""});
}

std::string MemoryText(const Glance& glance) {
  std::string text;
  if (glance.memory_bytes > 0) {
    const bool known = !glance.memory_place.empty();
    text = fmt::format("{} a rank at most{}", Bytes(glance.memory_bytes),
                       known ? fmt::format(" ({})", glance.memory_place) : "");
  }
  const bool gpu = glance.gpu_memory_bytes > 0;
  return Joined({text, gpu ? Bytes(glance.gpu_memory_bytes) + " of the fullest GPU" : ""});
}

std::string EnergyText(const Glance& glance) {
  const auto with = [](double value, const char* unit) {
    return Known(value) ? report::WithUnit(value, unit) : std::string();
  };
  return Joined({with(glance.watts_per_node, "W a node"),
                 Known(glance.joules_per_token)
                     ? fmt::format("{:.3g} J a token", glance.joules_per_token)
                     : "",
                 with(glance.joules, glance.some_joules ? "J (not all known)" : "J"),
                 Known(glance.gpu_utilisation) ? "GPUs " + Percent(glance.gpu_utilisation) : ""});
}

// A run in one row.
Row ShortRow(const FollowedRun& run, const Frame& frame) {
  const RunState& state = run.state;
  const Glance glance = state.Look(run.schedule);
  std::string text = fmt::format("{}: {}", run.name, Condition(run, frame.now));
  if (state.Records() == 0) return {.text = text};
  text += ", " + Joined({Progress(glance), "loss " + Loss(glance.loss),
                         Known(state.Decider().best) ? "valid " + Loss(state.Decider().last) : "",
                         SpeedText(glance)});
  const int left = frame.columns - static_cast<int>(text.size()) - 2;
  constexpr int kMost = 30;
  return {.text = text + "  " + state.Losses().Bars(std::min(left, kMost), frame.blocks)};
}

// A run in at most `rows` rows.
std::vector<Row> LongRows(const FollowedRun& run, const Frame& frame, std::size_t rows) {
  const RunState& state = run.state;
  const Glance glance = state.Look(run.schedule);
  std::string heading = fmt::format("{}: {}", run.name, Condition(run, frame.now));
  if (glance.step > 0) heading += ", " + Progress(glance);
  if (Known(glance.epoch)) heading += fmt::format(", epoch {:.2f}", glance.epoch);
  if (state.Damaged() > 0) {
    heading += ", " + report::Counted(state.Damaged(), "unreadable line");
  }
  std::vector<Row> all = {{.text = heading, .strong = true}};
  if (!state.Losses().Empty()) all.push_back(LossLine(state, glance, frame));
  const auto add = [&all](std::string_view label, const std::string& text) {
    if (!text.empty()) all.push_back(Line(label, text));
  };
  add("speed", SpeedText(glance));
  add("valid", ValidText(state));
  const auto event = [](const Happening& what) {
    return fmt::format("step {}: {}{}{}", WithThousands(what.step), what.name,
                       what.text.empty() ? "" : ", ", what.text);
  };
  const auto& events = state.LastEvents();
  if (!events.empty()) add("event", event(events.front()));
  add("memory", MemoryText(glance));
  add("energy", EnergyText(glance));
  for (std::size_t i = 1; i < events.size(); ++i) add("", event(events[i]));
  // Events stand together, at the end.
  const auto is_event = [](const Row& row) { return row.text.starts_with("event"); };
  if (all.size() > rows) all.resize(rows);
  const auto at = std::find_if(all.begin() + 1, all.end(), is_event);
  const auto end = std::find_if(all.begin() + 1, all.end(), [](const Row& row) {
    return row.text.starts_with(' ');  // of the second event
  });
  if (at != all.end()) std::rotate(at, at + 1, end);
  return all;
}

}  // namespace

std::int64_t RunsThatFit(std::int64_t runs, int rows) {
  return std::clamp<std::int64_t>(rows - 1, 1, std::max<std::int64_t>(runs, 1));
}

std::vector<Row> LayOut(const std::vector<const FollowedRun*>& runs, const Frame& frame) {
  std::vector<Row> all;
  const std::int64_t shown = RunsThatFit(std::ssize(runs), frame.rows);
  const std::int64_t first =
      std::clamp<std::int64_t>(frame.first, 0, std::max<std::int64_t>(std::ssize(runs) - shown, 0));
  const std::int64_t each = (frame.rows - 1) / std::max<std::int64_t>(shown, 1);
  for (std::int64_t i = first; i < first + shown; ++i) {
    const FollowedRun& run = *runs[static_cast<std::size_t>(i)];
    constexpr std::int64_t kLong = 3;  // rows, below which a run takes one
    if (each < kLong) {
      all.push_back(ShortRow(run, frame));
      continue;
    }
    // A blank row between two runs.
    const bool last = i + 1 == first + shown;
    const auto rows = static_cast<std::size_t>(last ? each : each - 1);
    for (Row& row : LongRows(run, frame, rows)) all.push_back(std::move(row));
    if (!last) all.emplace_back();
  }
  if (std::ssize(all) >= frame.rows) return all;
  std::string help = "q ends";
  if (shown < std::ssize(runs)) {
    help += fmt::format("; arrows move through the runs, {} to {} of {}", first + 1, first + shown,
                        runs.size());
  }
  all.push_back({.text = help});
  return all;
}

}  // namespace trireme::tools
