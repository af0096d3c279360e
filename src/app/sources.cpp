// Sources of a job: reading them, and the deck that follows from them.
#include "trireme/app/sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "site_deck.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/installation.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/options.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/app/options.hpp"
#include "trireme/app/restarts.hpp"
#include "trireme/model/options.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::app {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostDeckBytes = std::int64_t{1} << 20;

// hint: made for a deck that cannot be read.
std::string ReadDeckFile(const std::string& path, const std::function<std::string()>& hint) {
  std::error_code error;
  const bool regular = fs::is_regular_file(path, error);
  std::ifstream file(path);
  std::string text;
  if (regular && file) {
    text.resize(static_cast<std::size_t>(kMostDeckBytes) + 1);
    file.read(text.data(), std::ssize(text));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (!regular || file.bad() || !file.is_open()) {
    const char* reason = error ? "" : regular ? ": no permission" : ": is not a file";
    throw InputError(fmt::format("{}: the deck cannot be read{}{}", path,
                                 error ? ": " + error.message() : "", reason),
                     hint());
  }
  if (std::ssize(text) > kMostDeckBytes) {
    throw InputError(fmt::format("{}: longer than a deck can be, {} bytes", path, kMostDeckBytes),
                     hint());
  }
  return text;
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Advice for a deck that cannot be read: the one of that name that comes with Trireme, or where
// such decks are.
std::string DeckHint(const std::string& path) {
  const std::string shared = SharedFolder(ProgramFile());
  if (shared.empty()) return "Check the path behind -i.";
  const fs::path folder = fs::path(shared) / "input";
  const fs::path named = folder / fs::path(path).filename();
  if (named.has_filename() && Exists(named.string())) {
    return "Trireme's own deck of that name is " + named.string() + ".";
  }
  return "Check the path behind -i. Decks that come with Trireme are in " + folder.string() + ".";
}

RunRecord ReadRecord(const std::string& checkpoint) {
  return ParseRunRecord(checkpoint::ReadRun(checkpoint), checkpoint + "/run.json");
}

struct Located {
  checkpoint::Choice choice;
  std::optional<RunRecord> record;  // of the first candidate
};

// Locates checkpoints, without those in `damaged`. A run that goes on may remove what was just
// found: then it has written another one.
Located LocateWhole(const std::string& path, const std::vector<std::string>& damaged = {}) {
  constexpr int kMostLooks = 10;
  std::vector<std::string> before;
  for (int look = 1;; ++look) {
    Located found{checkpoint::Locate(path), {}};
    std::vector<std::string>& candidates = found.choice.candidates;
    std::erase_if(candidates, [&](const std::string& each) {
      return std::find(damaged.begin(), damaged.end(), each) != damaged.end();
    });
    if (candidates.empty()) {
      if (look == kMostLooks || (look > 1 && found.choice.others == before)) return found;
      before = found.choice.others;
      continue;
    }
    try {
      found.record = ReadRecord(candidates.front());
      return found;
    } catch (const Error&) {
      if (look == kMostLooks || !checkpoint::Vanished(candidates.front())) throw;
    }
  }
}

// Whether the text of a deck.in is only the beginning of what was written.
bool IsCutOff(const std::string& text, const std::string& recorded) {
  const report::DeckEnd end = report::EndOf(text);
  if (end != report::DeckEnd::kUnmarked) return end == report::DeckEnd::kMissing;
  return text.size() < recorded.size() && recorded.starts_with(text);
}

// The run's own deck: of its folder, which its user may have changed, or of a checkpoint. Returns a
// warning or nothing.
std::string ReadOwnDeck(const CommandLine& line, Sources& sources) {
  const std::string path = line.resume + "/deck.in";
  const bool exists = Exists(path);
  if (exists) {
    sources.deck_path = path;
    sources.deck_text = ReadDeckFile(path, [] { return "Give a deck with -i."; });
    if (report::EndOf(sources.deck_text) == report::DeckEnd::kThere) return {};
  }
  const Located found = LocateWhole(line.resume);
  const std::string recorded = found.record ? found.record->deck : "";
  if (exists && !IsCutOff(sources.deck_text, recorded)) return {};
  if (exists && recorded.empty()) {
    throw InputError(
        fmt::format("{}: the deck was cut off: its end is missing, and no checkpoint has a copy",
                    path),
        "Give the run's deck with -i.");
  }
  if (!found.record) throw checkpoint::NoneComplete(found.choice);
  if (recorded.empty()) {
    throw InputError(fmt::format("{}: records no deck", found.record->path), "Give one with -i.");
  }
  sources.deck_path = found.record->path + ": deck";
  sources.deck_text = recorded;
  if (!exists) return {};
  return fmt::format("{}: the deck was cut off: the one in {} is taken", path, found.record->path);
}

deck::Deck ParseAlone(const deck::Schema& schema, const CommandLine& line,
                       const Sources& sources) {
  deck::Deck deck =
      deck::Deck::Parse(schema, sources.deck_text, sources.deck_path, line.overrides);
  for (const std::string& key : sources.forgotten) deck.Forget(key);
  if (!sources.site_path.empty()) SupplySite(schema, sources.site_text, sources.site_path, deck);
  if (!line.deck.empty()) return deck;
  // Keys of that session, not of the run.
  for (const char* key : {"job.output", "schedule.stop_at"}) deck.Forget(key);
  if (!sources.start.weights_alone) deck.Forget("checkpoint.start_from");
  return deck;
}

// Refuses a run whose checkpoints are gone: beginning anew would erase its records.
void RequireNoneWritten(const std::string& run, const std::string& folder) {
  const std::optional<std::int64_t> written = report::LastCheckpoint(run);
  const std::int64_t started = LastStart(run);
  if (!written && started == 0) return;
  const char* file = written ? "metrics.jsonl" : "restarts.json";
  throw InputError(
      fmt::format("{0}: its checkpoints are gone: {0}/{1} tells of one at step {2}, but {3} holds "
                  "none; nothing was changed",
                  run, file, written.value_or(started), folder),
      fmt::format("Mount or restore the folder {0}/checkpoints. To begin at step 0 instead, name "
                  "another job.output with -i {0}/deck.in, without -r. A run that was branched off "
                  "another one and ended before its first checkpoint is to be branched off again.",
                  run));
}

// The site's deck for a deck of the user's. A run's own deck holds all that it was begun with.
void ReadSite(const CommandLine& line, Sources& sources) {
  const char* const path = std::getenv(kSiteDeckVariable);
  if (line.deck.empty() || path == nullptr || *path == '\0') return;
  sources.site_path = path;
  sources.site_text = ReadDeckFile(path, [] {
    return "The environment variable TRIREME_SITE_DECK names it as the site's deck: mend the "
           "variable, or unset it.";
  });
}

// The configuration of the model to import.
void ReadConfig(const deck::Deck& deck, Sources& sources) {
  if (Read(deck).task != Task::kImport) return;
  const std::string folder = hf::Read(deck).path;
  if (folder.empty()) {
    throw deck.Complain("hf.path", "no folder to import is named",
                        "Name one with config.json and safetensors files.");
  }
  sources.config_text = hf::ReadConfigText(folder);
  sources.config_path = folder + "/" + hf::kConfigFile;
}

Start StartOf(Located found, const std::vector<std::string>& damaged, bool weights_alone) {
  return {.candidates = std::move(found.choice.candidates),
          .weights_alone = weights_alone,
          .passed_over = std::move(found.choice.others),
          .damaged = damaged,
          .warnings = {},
          .record = std::move(found.record)};
}

// Checkpoints that give a new run its weights, without those in `damaged`.
Start ReadWeights(const deck::Deck& deck, const std::vector<std::string>& damaged) {
  const std::string path = checkpoint::Read(deck).start_from;
  if (path.empty()) return {};
  Located found = LocateWhole(path, damaged);
  if (!found.record) throw checkpoint::NoneComplete(found.choice);
  return StartOf(std::move(found), damaged, true);
}

// The checkpoints that the job may start from, without those in `damaged`. Empty, too, for a run
// that ended before its first one.
Start ReadStart(const CommandLine& line, const deck::Deck& deck,
                const std::vector<std::string>& damaged = {}) {
  const Task task = Read(deck).task;
  if (task == Task::kTokenize || task == Task::kVerify || task == Task::kImport) return {};
  const std::string& run = line.resume;
  if (run.empty()) return ReadWeights(deck, damaged);
  Located found = LocateWhole(run, damaged);
  if (found.record) return StartOf(std::move(found), damaged, false);
  if (task != Task::kTrain || !Exists(run + "/deck.in") || !found.choice.Unstarted()) {
    throw checkpoint::NoneComplete(found.choice);
  }
  RequireNoneWritten(run, found.choice.folder);
  return {};
}

// Collective. Gives every rank world rank 0's.
void Share(const comm::Communicator& world, Start& start) {
  const auto share_list = [&](std::vector<std::string>& list) {
    const std::string count = world.Broadcast(std::to_string(list.size()));
    list.resize(std::stoul(count));
    for (std::string& each : list) each = world.Broadcast(each);
  };
  for (auto* list : {&start.candidates, &start.passed_over, &start.damaged, &start.warnings}) {
    share_list(*list);
  }
  start.weights_alone = world.Broadcast(start.weights_alone ? "yes" : "no") == "yes";
  std::string run;
  world.Together([&] {
    if (world.IsRoot() && start.record) run = start.record->json.dump();
  });
  run = world.Broadcast(run);
  world.Together([&] {
    if (world.IsRoot() || run.empty()) return;
    start.record =
        ParseRunRecord(nlohmann::json::parse(run), start.candidates.front() + "/run.json");
  });
}

}  // namespace

Sources ReadSources(const deck::Schema& schema, const CommandLine& line) {
  Sources sources;
  std::string warning;
  if (!line.calibrate.empty() && line.deck.empty()) {
    sources.deck_path = "command line";  // keys alone, on no deck
  } else if (line.deck.empty()) {
    warning = ReadOwnDeck(line, sources);
  } else {
    sources.deck_path = line.deck;
    sources.deck_text = ReadDeckFile(line.deck, [&] { return DeckHint(line.deck); });
  }
  ReadSite(line, sources);
  const deck::Deck deck = ParseAlone(schema, line, sources);
  sources.start = ReadStart(line, deck);
  ReadConfig(deck, sources);
  if (!line.resume.empty() && sources.start.candidates.empty()) {
    sources.start.weights_alone = true;  // so that the deck keeps what the run began with
    sources.start = ReadWeights(ParseAlone(schema, line, sources), {});
  }
  if (!warning.empty()) sources.start.warnings.push_back(warning);
  return sources;
}

Sources ShareSources(const comm::Communicator& world, const deck::Schema& schema,
                     const CommandLine& line) {
  Sources sources;
  world.Together([&] {
    if (world.IsRoot()) sources = ReadSources(schema, line);
  });
  sources.deck_path = world.Broadcast(sources.deck_path);
  sources.deck_text = world.Broadcast(sources.deck_text);
  sources.site_path = world.Broadcast(sources.site_path);
  sources.site_text = world.Broadcast(sources.site_text);
  sources.config_path = world.Broadcast(sources.config_path);
  sources.config_text = world.Broadcast(sources.config_text);
  Share(world, sources.start);
  return sources;
}

void FindAgain(const comm::Communicator& world, const CommandLine& line, const deck::Deck& deck,
               Start& start) {
  world.Together([&] {
    if (!world.IsRoot()) return;
    Start found = ReadStart(line, deck, start.damaged);
    if (found.candidates.empty()) {
      throw InputError(fmt::format("{}: its checkpoints are gone", line.resume), "Start again.");
    }
    start.candidates = std::move(found.candidates);
    start.record = std::move(found.record);
  });
  Share(world, start);
}

void PrintWarnings(const Start& start) {
  for (const std::string& warning : start.warnings) {
    fmt::print(stderr, "trireme: warning: {}\n", warning);
  }
}

deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line,
                      const Sources& sources) {
  deck::Deck deck = ParseAlone(schema, line, sources);
  Resolve(deck);
  data::Resolve(deck);
  checkpoint::Resolve(deck);
  model::ResolvePreset(deck);
  if (sources.start.record) {
    TakeModel(schema, *sources.start.record, sources.start.weights_alone, deck);
  }
  if (!sources.config_path.empty()) {
    const hf::Config config = hf::ParseConfig(sources.config_text, sources.config_path);
    TakeModel(schema, config.model, sources.config_path, deck);
  }
  model::Resolve(deck);
  return deck;
}

deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line,
                      const std::string& text) {
  return ParseDeck(schema, line, {.deck_path = line.deck, .deck_text = text, .start = {}});
}

}  // namespace trireme::app
