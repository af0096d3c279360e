// LayOut: a heading per run and as many lines of facts as its rows allow, the most important first.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "run_state.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tools {

// FollowedRun: reads records as they come, and the deck again when it has changed.

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxDeckBytes = 1 << 20;

constexpr const char* kGiveFolders = "Give the folders of runs: trireme --watch RUN...";

// Path of the records in a run folder. Throws for folders in which records would never appear.
std::string InFolder(const std::string& path) {
  std::error_code ignored;
  const fs::path folder(path);
  const fs::path records = folder / "metrics.jsonl";
  if (fs::exists(records, ignored) || fs::exists(folder / "deck.in", ignored)) {
    return records.string();
  }
  throw InputError(
      fmt::format("{}: is not a run folder: neither deck.in nor metrics.jsonl is in it",
                  OneLine(path)),
      kGiveFolders);
}

std::string OfRecords(const std::string& path) {
  constexpr std::size_t kHead = 4096;
  std::string head(kHead, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), std::ssize(head));
  head.resize(static_cast<std::size_t>(file.gcount()));
  if (head.empty() || head.find(R"({"kind")") != std::string::npos) return path;
  throw InputError(
      fmt::format("{}: holds no records of a run, as metrics.jsonl does", OneLine(path)),
      kGiveFolders);
}

std::string RecordsOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return InFolder(path);
  if (fs::is_regular_file(status) && ::access(path.c_str(), R_OK) != 0) return path;
  if (fs::is_regular_file(status)) return OfRecords(path);
  std::string why = "neither a folder nor a file";
  if (status.type() == fs::file_type::not_found) why = "no such run folder";
  if (!fs::status_known(status)) why = error.message();
  throw InputError(fmt::format("{}: {}", OneLine(path), why), kGiveFolders);
}

std::string FolderOf(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path : fs::path(path).parent_path().string();
}

}  // namespace

FollowedRun::FollowedRun(const std::string& path)
    : name(OneLine(path, 200)), folder(FolderOf(path)), file(RecordsOf(path)) {
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  // Complain now about a file that cannot be read.
  const Descriptor found(file.Path(), O_RDONLY | O_NONBLOCK);
  if (found.Valid() || errno == ENOENT) return;
  throw InputError(fmt::format("{}: cannot be read: {}", OneLine(file.Path()), ErrorText(errno)));
}

void FollowedRun::ReadDeck() {
  const fs::path path = fs::path(folder) / "deck.in";
  std::error_code error;
  const auto date = fs::last_write_time(path, error).time_since_epoch().count();
  if (error || date == deck_date_ || !fs::is_regular_file(path, error) ||
      fs::file_size(path, error) > kMaxDeckBytes) {
    return;
  }
  std::ifstream deck(path);
  std::ostringstream text;
  text << deck.rdbuf();
  if (!deck.good() && !deck.eof()) return;
  schedule = ReadSchedule(text.str());
  deck_date_ = date;
}

bool FollowedRun::ReadOn(double seconds) {
  ReadDeck();
  const double end = Seconds() + seconds;
  const FollowedFile::Visit visit{.line = [this](std::string_view line) { state.Take(line); },
                                  .restart = [this] { state.Clear(); }};
  do {
    condition = file.Read(visit);
  } while (condition == FollowedFile::State::kBehind && Seconds() < end);
  return condition == FollowedFile::State::kBehind;
}

namespace {

using report::AsBytes;
using report::AsClock;
using report::WithThousands;

constexpr int kLabel = 8;  // width of a line's first word, in columns

bool Known(double value) { return !std::isnan(value); }

std::string Percent(double fraction) { return fmt::format("{:.0f}%", 100 * fraction); }

std::string Bytes(double bytes) { return AsBytes(static_cast<std::int64_t>(bytes)); }

std::string Loss(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string("not finite");
}

// The parts that are not empty, joined by ", ".
std::string Joined(std::vector<std::string> parts) {
  std::erase_if(parts, [](const std::string& part) { return part.empty(); });
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string Progress(const Glance& glance) {
  std::string text = "step " + WithThousands(glance.step);
  if (glance.total_steps <= 0) return text;
  const double share = static_cast<double>(glance.step) / static_cast<double>(glance.total_steps);
  return fmt::format("{} of {}{} ({})", text, glance.about ? "about " : "",
                     WithThousands(glance.total_steps), Percent(std::min(share, 1.0)));
}

std::string Condition(const FollowedRun& run, std::int64_t now) {
  using State = FollowedFile::State;
  if (run.condition == State::kMissing) {
    return run.state.Records() > 0 ? "metrics.jsonl is gone" : "no records yet";
  }
  if (run.condition == State::kUnreadable) return "metrics.jsonl: " + run.file.Reason();
  if (run.condition == State::kBehind) return "reading, " + Percent(run.file.Fraction());
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
  constexpr int kLeast = 8;  // fewest columns for which bars are drawn
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
                 fmt::format("{:.3g} s per step", glance.step_seconds),
                 Known(glance.seconds_left) ? "left " + AsClock(glance.seconds_left) : "",
                 glance.bad_steps > 0 ? fmt::format("bad steps {:.0f}", glance.bad_steps) : ""});
}

std::string MemoryText(const Glance& glance) {
  std::string text;
  if (glance.memory_bytes > 0) {
    const bool known = !glance.memory_place.empty();
    text = fmt::format("{} per rank at most{}", Bytes(glance.memory_bytes),
                       known ? fmt::format(" ({})", glance.memory_place) : "");
  }
  const bool gpu = glance.gpu_memory_bytes > 0;
  return Joined({text, gpu ? Bytes(glance.gpu_memory_bytes) + " of the fullest GPU" : ""});
}

std::string EnergyText(const Glance& glance) {
  const auto with = [](double value, const char* unit) {
    return Known(value) ? report::WithUnit(value, unit) : std::string();
  };
  return Joined({with(glance.watts_per_node, "W per node"),
                 Known(glance.joules_per_token)
                     ? fmt::format("{:.3g} J per token", glance.joules_per_token)
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
  // Move the events to the end, together.
  const auto is_event = [](const Row& row) { return row.text.starts_with("event"); };
  if (all.size() > rows) all.resize(rows);
  const auto at = std::find_if(all.begin() + 1, all.end(), is_event);
  const auto end = std::find_if(all.begin() + 1, all.end(), [](const Row& row) {
    return row.text.starts_with(' ');  // rows of further events begin with a blank
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
    constexpr std::int64_t kLong = 3;  // with fewer rows, a run is shown in one row
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
