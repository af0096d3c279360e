// Sources of a job: reading them, and the deck that follows from them.
#include "trireme/job/sources.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/options.hpp"
#include "trireme/job/options.hpp"
#include "trireme/model/options.hpp"

namespace trireme::job {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostDeckBytes = std::int64_t{1} << 20;

std::string ReadDeckFile(const std::string& path, const char* hint) {
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
                     hint);
  }
  if (std::ssize(text) > kMostDeckBytes) {
    throw InputError(fmt::format("{}: longer than a deck can be, {} bytes", path, kMostDeckBytes),
                     hint);
  }
  return text;
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

RunRecord ReadRecord(const std::string& checkpoint) {
  return ParseRunRecord(checkpoint::ReadRun(checkpoint), checkpoint + "/run.json");
}

// The run's own deck: of its folder, which its user may have changed, or of a lone checkpoint.
void ReadOwnDeck(const CommandLine& line, Sources& sources) {
  sources.deck_path = line.resume + "/deck.in";
  if (Exists(sources.deck_path)) {
    sources.deck_text = ReadDeckFile(sources.deck_path, "Give a deck with -i.");
    return;
  }
  const checkpoint::Choice choice = checkpoint::Locate(line.resume);
  if (choice.candidates.empty()) throw checkpoint::NoneComplete(choice);
  const RunRecord record = ReadRecord(choice.candidates.front());
  sources.deck_path = record.path + ": deck";
  sources.deck_text = record.deck;
  if (record.deck.empty()) {
    throw InputError(fmt::format("{}: records no deck", record.path), "Give one with -i.");
  }
}

input::Deck ParseAlone(const input::Schema& schema, const CommandLine& line,
                       const Sources& sources) {
  input::Deck deck =
      input::Deck::Parse(schema, sources.deck_text, sources.deck_path, line.overrides);
  if (!line.deck.empty()) return deck;
  // Keys of that session, not of the run.
  for (const char* key : {"job.output", "schedule.stop_at", "checkpoint.start_from"}) {
    deck.Forget(key);
  }
  return deck;
}

// The checkpoints that the job may start from.
Start ReadStart(const CommandLine& line, const input::Deck& deck) {
  const Task task = Read(deck).task;
  const bool uses = task != Task::kTokenize && task != Task::kVerify;
  const bool resumes = !line.resume.empty();
  const std::string path = resumes ? line.resume : checkpoint::Read(deck).start_from;
  if (!uses || path.empty()) return {};
  const checkpoint::Choice choice = checkpoint::Locate(path);
  if (choice.candidates.empty()) {
    const bool begun = Exists(path + "/deck.in");
    if (task == Task::kTrain && resumes && begun && choice.Unstarted()) return {};
    throw checkpoint::NoneComplete(choice);
  }
  return {.candidates = choice.candidates,
          .passed_over = choice.others,
          .damaged = {},
          .record = ReadRecord(choice.candidates.front())};
}

}  // namespace

Sources ReadSources(const input::Schema& schema, const CommandLine& line) {
  Sources sources;
  if (line.deck.empty()) {
    ReadOwnDeck(line, sources);
  } else {
    sources.deck_path = line.deck;
    sources.deck_text = ReadDeckFile(line.deck, "Check the path behind -i.");
  }
  sources.start = ReadStart(line, ParseAlone(schema, line, sources));
  return sources;
}

Sources ShareSources(const comm::Communicator& world, const input::Schema& schema,
                     const CommandLine& line) {
  Sources sources;
  std::optional<RunRecord>& record = sources.start.record;
  std::string run;
  world.Together([&] {
    if (!world.IsRoot()) return;
    sources = ReadSources(schema, line);
    if (record) run = record->json.dump();
  });
  const auto share_list = [&](std::vector<std::string>& list) {
    const std::string count = world.Broadcast(std::to_string(list.size()));
    list.resize(std::stoul(count));
    for (std::string& each : list) each = world.Broadcast(each);
  };
  sources.deck_path = world.Broadcast(sources.deck_path);
  sources.deck_text = world.Broadcast(sources.deck_text);
  share_list(sources.start.candidates);
  share_list(sources.start.passed_over);
  run = world.Broadcast(run);
  world.Together([&] {
    if (record || run.empty()) return;
    record =
        ParseRunRecord(nlohmann::json::parse(run), sources.start.candidates.front() + "/run.json");
  });
  return sources;
}

input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const Sources& sources) {
  input::Deck deck = ParseAlone(schema, line, sources);
  Resolve(deck);
  data::Resolve(deck);
  checkpoint::Resolve(deck);
  model::ResolvePreset(deck);
  if (sources.start.record) TakeModel(schema, *sources.start.record, deck);
  model::Resolve(deck);
  return deck;
}

input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const std::string& text) {
  return ParseDeck(schema, line, {.deck_path = line.deck, .deck_text = text, .start = {}});
}

}  // namespace trireme::job
