// Sources of a job: reading them, and the deck that follows from them.
#include "trireme/job/sources.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/options.hpp"
#include "trireme/input/json_text.hpp"
#include "trireme/job/options.hpp"
#include "trireme/job/run_record.hpp"
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

// The run's own deck: of its folder, which its user may have changed, or of a lone checkpoint.
void ReadOwnDeck(const CommandLine& line, Sources& sources) {
  sources.own_deck = true;
  sources.deck_path = line.resume + "/deck.in";
  if (Exists(sources.deck_path)) {
    sources.deck_text = ReadDeckFile(sources.deck_path, "Give a deck with -i.");
    return;
  }
  const checkpoint::Choice choice = checkpoint::Locate(line.resume);
  if (choice.candidates.empty()) throw checkpoint::NoneComplete(choice);
  const std::string path = choice.candidates.front() + "/run.json";
  sources.deck_path = path + ": deck";
  sources.deck_text = ParseRunRecord(checkpoint::ReadRun(choice.candidates.front()), path).deck;
  if (sources.deck_text.empty()) {
    throw InputError(fmt::format("{}: records no deck", path), "Give one with -i.");
  }
}

input::Deck ParseAlone(const input::Schema& schema, const CommandLine& line,
                       const Sources& sources) {
  input::Deck deck =
      input::Deck::Parse(schema, sources.deck_text, sources.deck_path, line.overrides);
  if (!sources.own_deck) return deck;
  // Of that session, not of the run.
  for (const char* key : {"job.output", "schedule.stop_at", "checkpoint.start_from"}) {
    deck.Forget(key);
  }
  return deck;
}

// The checkpoints that the job may start from.
void ReadStart(const CommandLine& line, const input::Deck& deck, Sources& sources) {
  const Task task = Read(deck).task;
  const bool uses = task != Task::kTokenize && task != Task::kVerify;
  const bool resumes = !line.resume.empty();
  const std::string path = resumes ? line.resume : checkpoint::Read(deck).start_from;
  if (!uses || path.empty()) return;
  const checkpoint::Choice choice = checkpoint::Locate(path);
  if (choice.candidates.empty()) {
    const bool begun = Exists(path + "/deck.in");
    if (task == Task::kTrain && resumes && begun && choice.Unstarted()) return;
    throw checkpoint::NoneComplete(choice);
  }
  sources.candidates = choice.candidates;
  sources.passed_over = choice.others;
  sources.run_text = checkpoint::ReadRun(choice.candidates.front()).dump();
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
  ReadStart(line, ParseAlone(schema, line, sources), sources);
  return sources;
}

Sources ShareSources(const comm::Communicator& world, const input::Schema& schema,
                     const CommandLine& line) {
  Sources sources;
  world.Together([&] {
    if (world.IsRoot()) sources = ReadSources(schema, line);
  });
  const auto share_list = [&](std::vector<std::string>& list) {
    const std::string count = world.Broadcast(std::to_string(list.size()));
    list.resize(std::stoul(count));
    for (std::string& each : list) each = world.Broadcast(each);
  };
  sources.deck_path = world.Broadcast(sources.deck_path);
  sources.deck_text = world.Broadcast(sources.deck_text);
  sources.own_deck = world.Max(sources.own_deck ? std::int64_t{1} : 0) == 1;
  share_list(sources.candidates);
  share_list(sources.passed_over);
  sources.run_text = world.Broadcast(sources.run_text);
  return sources;
}

input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const Sources& sources) {
  input::Deck deck = ParseAlone(schema, line, sources);
  Resolve(deck);
  data::Resolve(deck);
  checkpoint::Resolve(deck);
  model::ResolvePreset(deck);
  if (!sources.candidates.empty()) {
    const std::string path = sources.candidates.front() + "/run.json";
    TakeModel(schema, ParseRunRecord(nlohmann::json::parse(sources.run_text), path), deck);
  }
  model::Resolve(deck);
  return deck;
}

input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const std::string& text) {
  Sources sources;
  sources.deck_path = line.deck;
  sources.deck_text = text;
  return ParseDeck(schema, line, sources);
}

}  // namespace trireme::job
