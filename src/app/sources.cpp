// Sources of a job: reads them and makes the deck from them. Also the command line, the site's deck
// and small shared files.
#include "trireme/app/sources.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "site_deck.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/app/job.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/program.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/channel.hpp"
#include "trireme/data/options.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/options.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tools/watch.hpp"

namespace trireme::app {

// The command line, and the options that are answered without MPI.

namespace {

constexpr const char* kHelp =
    R"(Trireme trains Transformer language models through MPI.

usage: trireme -i DECK [-r RUN_OR_CHECKPOINT] [-n] [-v] [section.key=value ...]
       trireme -r RUN_OR_CHECKPOINT [section.key=value ...]
       mpirun -n 4 trireme -i DECK ...        srun trireme -i DECK ...
       trireme --watch RUN...
       trireme --support RUN
       trireme --self-test [FOLDER]           mpirun -n 4 trireme --self-test
       mpirun -n 2 trireme --calibrate FILE [-i DECK] [section.key=value ...]

  -i DECK              the input deck
  -r PATH              continue from a run folder (its newest valid checkpoint) or from one
                       checkpoint; without -i, with the deck that the run folder holds
  -n                   print the resolved deck and stop
  -v                   validate: construct everything, allocate, check files, print the memory plan
                       and stop; nothing is written. With grid.ranks=N the plan is for N ranks that
                       need not be there, without MPI
  section.key=value    set a key, whatever the deck says
  --watch RUN...       follow running jobs by their run folders, on any node, without MPI: a view in
                       the terminal (q ends, arrows move through many runs); in a pipe, a line per
                       record from the first one on, until all runs are done or stopped
  --support RUN        write an archive for a support ticket, <run>_<date>_<time>.tar.gz in the
                       current directory: versions, host, limits, environment, deck, log, records;
                       no data, no weights, no texts, no secrets. Lists its contents; damaged and
                       missing runs work, too
  --self-test [FOLDER] check within a minute that everything works on these ranks: a line for each
                       check, exit code 0 or 1. Its files go into FOLDER (left out: $TMPDIR, else
                       /tmp), which all ranks must see, and are removed
  --calibrate FILE     run small steps and transfers on these ranks for some seconds and write a
                       description of their machine, for job.task=plan plan.machine=FILE. The deck
                       and the keys run.threads and run.device choose threads and device
  --help               this text
  --help-deck [NAME]   all keys of the deck, those of a section or one key (model.dim): type,
                       default, range, unit, meaning
  --version            version, commit, compiler and libraries

exit codes: 0 done; 1 failed; 2 bad deck, input file or command line (nothing was written);
            3 stopped early by a signal or the walltime, checkpoint written: run it again with -r
)";

std::string VersionText() {
  // This call is allowed before MPI_Init. The first line names the implementation.
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> library = {};
  int length = 0;
  MPI_Get_library_version(library.data(), &length);
  std::string mpi(library.data(), static_cast<std::size_t>(length));
  mpi.resize(std::min(mpi.find_first_of("\n,"), mpi.size()));
  // MPICH writes "MPICH Version:\t4.0.2".
  constexpr std::string_view kWord = " Version:";
  const std::size_t word = mpi.find(kWord);
  if (word != std::string::npos) {
    const std::size_t number = mpi.find_first_not_of(" \t", word + kWord.size());
    mpi = mpi.substr(0, word) + " " + mpi.substr(std::min(number, mpi.size()));
  }
  std::string gpu = "not built in";
  if (device::GpuBuilt()) {
    const std::string why = device::WhyNoGpu();
    const auto count = device::GpuIds().size();
    gpu = fmt::format(
        "{}, {}, {}, {}\n          {}", device::GpuLibraries(), kernels::GpuMathLibraries(),
        comm::GpuTransferLibrary(), device::ActivityLibrary(),
        why.empty() ? fmt::format("{} GPU{} here", count, count == 1 ? "" : "s") : why);
  }
  return fmt::format(
      "Trireme {} ({})\ncompiler  {}\nmatrices  {}\nmpi       {} (MPI {}.{})\nhdf5      {}\n"
      "gpu       {}\n",
      Version(), Commit(), Compiler(), kernels::MatrixLibrary(), mpi, MPI_VERSION, MPI_SUBVERSION,
      data::Hdf5Version(), gpu);
}

// -n: prints the deck as it will be used.
void PrintResolved(const CommandLine& line, const deck::Schema& schema) {
  const Sources sources = ReadSources(schema, line);
  const deck::Deck deck = ParseDeck(schema, line, sources);
  ReadAll(deck);  // throws if values contradict each other
  PrintWarnings(sources.start);
  std::fputs(deck.Resolved().c_str(), stdout);
}

// Parses --watch, --support and --self-test, which allow nothing but their own arguments; nullopt
// for any other command line.
std::optional<CommandLine> ParseStandalone(const std::vector<std::string>& arguments) {
  CommandLine line;
  for (const std::string& word : arguments) {
    const auto rest = arguments.size() - 1;
    const bool first = &word == &arguments.front();
    if (word == "--watch") {
      line.watch.assign(arguments.begin() + 1, arguments.end());
      if (first && rest > 0) return line;
      throw InputError("command line: --watch stands alone, with one run folder or more",
                       "usage: trireme --watch RUN...");
    }
    if (word == "--support") {
      line.support = arguments.back();
      if (first && rest == 1 && !line.support.empty()) return line;
      throw InputError("command line: --support stands alone, with one run folder",
                       "usage: trireme --support RUN");
    }
    if (word == "--self-test") {
      line.self_test = true;
      if (rest == 1) line.self_test_folder = arguments.back();
      if (first && rest <= 1 && !line.self_test_folder.starts_with('-')) return line;
      throw InputError("command line: --self-test stands alone, with a folder or without one",
                       "usage: trireme --self-test [FOLDER]");
    }
  }
  return std::nullopt;
}

Error NoOption(const std::string& word, bool first) {
  std::string hint = "A deck's keys are given as section.key=value.";
  if (word.starts_with('-')) {
    hint =
        "Options are -i -r -n -v --watch --support --self-test --calibrate --help --help-deck "
        "--version; a deck's keys are given as section.key=value.";
  } else if (first) {
    hint = "A deck goes after -i, a run after -r.";
  }
  return InputError(fmt::format("command line: '{}' is not an option", word), hint);
}

}  // namespace

std::string HelpText() { return kHelp; }

CommandLine ParseCommandLine(const std::vector<std::string>& arguments) {
  if (const auto alone = ParseStandalone(arguments)) return *alone;
  CommandLine line;
  const auto take = [&](std::size_t& i, std::string& value) {
    if (i + 1 >= arguments.size()) {
      throw InputError(fmt::format("command line: {} needs a value", arguments[i]),
                       "See trireme --help.");
    }
    if (!value.empty()) {
      throw InputError(fmt::format("command line: {} is given twice: {} and {}", arguments[i],
                                   value, arguments[i + 1]),
                       "Keep one of the two.");
    }
    value = arguments[++i];
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-i") {
      take(i, line.deck);
    } else if (word == "-r") {
      take(i, line.resume);
    } else if (word == "-n") {
      line.resolve_only = true;
    } else if (word == "-v") {
      line.validate_only = true;
    } else if (word == "--calibrate") {
      take(i, line.calibrate);
    } else if (word == "--help" || word == "-h") {
      line.help = true;
    } else if (word == "--version") {
      line.version = true;
    } else if (word == "--help-deck") {
      const bool has_section = i + 1 < arguments.size() && !arguments[i + 1].starts_with('-');
      line.help_deck = has_section ? arguments[++i] : std::string();
    } else if (word.starts_with('-') || word.find('=') == std::string::npos) {
      throw NoOption(word, line.deck.empty() && line.resume.empty());
    } else {
      line.overrides.push_back(word);
    }
  }
  if (!line.calibrate.empty() &&
      (line.resolve_only || line.validate_only || !line.resume.empty())) {
    throw InputError("command line: --calibrate goes with -i and keys alone",
                     "usage: trireme --calibrate FILE [-i DECK] [section.key=value ...]");
  }
  if (line.deck.empty() && line.resume.empty() && line.calibrate.empty() && !line.help &&
      !line.version && !line.help_deck) {
    throw InputError("command line: no deck was given",
                     "usage: trireme -i DECK [-r RUN] [-n] [-v] [section.key=value ...]; see "
                     "trireme --help.");
  }
  return line;
}

ExitCode Answered(ExitCode code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "trireme: error: standard output: %s\n", std::strerror(errno));
  return ExitCode::kFailed;
}

std::optional<ExitCode> AnswerWithoutMpi(const CommandLine& line, const deck::Schema& schema) {
  try {
    if (line.help) {
      std::fputs(kHelp, stdout);
    } else if (line.version) {
      std::fputs(VersionText().c_str(), stdout);
    } else if (line.help_deck) {
      std::fputs(schema.Help(*line.help_deck).c_str(), stdout);
    } else if (!line.watch.empty()) {
      tools::Watch(line.watch);
    } else if (!line.support.empty()) {
      tools::MakeArchive(line.support, VersionText());
    } else if (line.resolve_only) {
      PrintResolved(line, schema);
    } else {
      return std::nullopt;
    }
    return Answered(ExitCode::kDone);
  } catch (const Error& error) {
    std::fprintf(stderr, "trireme: error: %s\n", error.what());
    return error.Code();
  }
}

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostDeckBytes = std::int64_t{1} << 20;

// hint: called for the hint of the error if the deck cannot be read.
std::string ReadDeckFile(const std::string& path, const std::function<std::string()>& hint) {
  std::error_code error;
  const bool regular = fs::is_regular_file(path, error);
  std::ifstream file(path);
  std::string text(static_cast<std::size_t>(kMostDeckBytes) + 1, '\0');
  if (regular) file.read(text.data(), std::ssize(text));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!regular || file.bad() || !file.is_open()) {
    const std::string reason = error     ? error.message()
                               : regular ? "no permission"
                                         : "is not a file";
    throw InputError(fmt::format("{}: the deck cannot be read: {}", path, reason), hint());
  }
  if (std::ssize(text) > kMostDeckBytes) {
    throw InputError(fmt::format("{}: longer than a deck can be, {} bytes", path, kMostDeckBytes),
                     hint());
  }
  return text;
}

template <class Names>
bool Holds(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Advice for a deck that cannot be read: names Trireme's own deck of that name or, if there is
// none, the folder of its decks.
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
  std::optional<RunRecord> record;  // run.json of the first candidate
};

// Locates checkpoints except those in `damaged`. Looks again if the run, which may still be going
// on, has removed what was just found: it has then written a newer one.
Located LocateWhole(const std::string& path, const std::vector<std::string>& damaged = {}) {
  constexpr int kMostLooks = 10;
  std::vector<std::string> before;
  for (int look = 1;; ++look) {
    Located found{checkpoint::Locate(path), {}};
    std::vector<std::string>& candidates = found.choice.candidates;
    std::erase_if(candidates, [&](const std::string& each) { return Holds(damaged, each); });
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

// Whether a deck.in has lost its end. recorded: the deck in the newest checkpoint; may be empty.
bool IsCutOff(const std::string& text, const std::string& recorded) {
  const report::DeckEnd end = report::EndOf(text);
  if (end != report::DeckEnd::kUnmarked) return end == report::DeckEnd::kMissing;
  return text.size() < recorded.size() && recorded.starts_with(text);
}

// Reads the run's own deck: deck.in, which the user may have changed, or else the one in a
// checkpoint. Returns a warning or "".
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

deck::Deck ParseAlone(const deck::Schema& schema, const CommandLine& line, const Sources& sources) {
  deck::Deck deck = deck::Deck::Parse(schema, sources.deck_text, sources.deck_path, line.overrides);
  for (const std::string& key : sources.forgotten) deck.Forget(key);
  if (!sources.site_path.empty()) SupplySite(schema, sources.site_text, sources.site_path, deck);
  if (!line.deck.empty()) return deck;
  // These keys concern the session that wrote the deck, not the run.
  for (const char* key : {"job.output", "schedule.stop_at"}) deck.Forget(key);
  if (!sources.start.weights_alone) deck.Forget("checkpoint.start_from");
  return deck;
}

// Refuses a run whose checkpoints have been lost: starting again would erase its records.
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

// Reads the site's deck, if -i names a user's deck. A run's own deck already has the site's values.
void ReadSite(const CommandLine& line, Sources& sources) {
  const char* const path = std::getenv(kSiteDeckVariable);
  if (line.deck.empty() || path == nullptr || *path == '\0') return;
  sources.site_path = path;
  sources.site_text = ReadDeckFile(path, [] {
    return "The environment variable TRIREME_SITE_DECK names it as the site's deck: mend the "
           "variable, or unset it.";
  });
}

// For job.task = import: reads the model's configuration.
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

// The checkpoints that the job may start from, except those in `damaged`: those of the run `run`
// or, if that is empty, those that can give a new run its weights. None for a run that ended before
// its first checkpoint.
Start ReadStart(const std::string& run, const deck::Deck& deck,
                const std::vector<std::string>& damaged = {}) {
  const Task task = Read(deck).task;
  if (task == Task::kTokenize || task == Task::kVerify || task == Task::kImport) return {};
  const std::string path = run.empty() ? checkpoint::Read(deck).start_from : run;
  if (path.empty()) return {};
  Located found = LocateWhole(path, damaged);
  if (found.record) {
    return {.candidates = std::move(found.choice.candidates),
            .weights_alone = run.empty(),
            .passed_over = std::move(found.choice.others),
            .damaged = damaged,
            .warnings = {},
            .record = std::move(found.record)};
  }
  if (run.empty() || task != Task::kTrain || !Exists(run + "/deck.in") ||
      !found.choice.Unstarted()) {
    throw checkpoint::NoneComplete(found.choice);
  }
  RequireNoneWritten(run, found.choice.folder);
  return {};
}

// Copies world rank 0's `start` to every rank. Collective.
void Share(const comm::Communicator& world, Start& start) {
  for (auto* list : {&start.candidates, &start.passed_over, &start.damaged, &start.warnings}) {
    list->resize(std::stoul(world.Broadcast(std::to_string(list->size()))));
    for (std::string& each : *list) each = world.Broadcast(each);
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
    sources.deck_path = "command line";  // there are only keys, and no deck
  } else if (line.deck.empty()) {
    warning = ReadOwnDeck(line, sources);
  } else {
    sources.deck_path = line.deck;
    sources.deck_text = ReadDeckFile(line.deck, [&] { return DeckHint(line.deck); });
  }
  ReadSite(line, sources);
  const deck::Deck deck = ParseAlone(schema, line, sources);
  sources.start = ReadStart(line.resume, deck);
  ReadConfig(deck, sources);
  if (!line.resume.empty() && sources.start.candidates.empty()) {
    sources.start.weights_alone = true;  // lets ParseAlone keep checkpoint.start_from
    sources.start = ReadStart({}, ParseAlone(schema, line, sources));
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
  for (std::string* text : {&sources.deck_path, &sources.deck_text, &sources.site_path,
                            &sources.site_text, &sources.config_path, &sources.config_text}) {
    *text = world.Broadcast(*text);
  }
  Share(world, sources.start);
  return sources;
}

void FindAgain(const comm::Communicator& world, const CommandLine& line, const deck::Deck& deck,
               Start& start) {
  world.Together([&] {
    if (!world.IsRoot()) return;
    Start found = ReadStart(line.resume, deck, start.damaged);
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

deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line, const Sources& sources) {
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

deck::Deck ParseDeck(const deck::Schema& schema, const CommandLine& line, const std::string& text) {
  return ParseDeck(schema, line, {.deck_path = line.deck, .deck_text = text, .start = {}});
}

// A site's deck: the keys that it may set, unless the user does.

// Keys that together decide when checkpoints are written. If the user sets one, the site sets none.
static constexpr std::array kWhenToWrite = {"checkpoint.every_steps", "checkpoint.every_minutes",
                                            "checkpoint.auto", "checkpoint.drain_every"};

const std::vector<std::string>& SiteKeys() {
  static const std::vector<std::string> keys = WordsIn(
      "run.pin run.hang_timeout run.check_replicas_every run.mtbf_hours data.staging "
      "data.staging_path data.read_ahead checkpoint.every_steps checkpoint.every_minutes "
      "checkpoint.auto checkpoint.max_failures checkpoint.max_restarts checkpoint.keep "
      "checkpoint.local checkpoint.drain_every checkpoint.local_survival "
      "checkpoint.keep_every_steps checkpoint.async checkpoint.writers checkpoint.io_hints "
      "monitor.tensorboard monitor.report plan.machine");
  return keys;
}

void SupplySite(const deck::Schema& schema, const std::string& text, const std::string& path,
                deck::Deck& user) {
  const deck::Deck site = deck::Deck::Parse(schema, text, path, {});
  const bool user_decides_when =
      std::ranges::any_of(kWhenToWrite, [&](const char* name) { return user.Given(name); });
  std::vector<std::string> refused;
  for (const auto& [section, help] : schema.Sections()) {
    for (const auto& [key, value] : site.Section(section)) {
      const std::string name = section + "." + key;
      if (!site.Given(name)) continue;
      if (!Holds(SiteKeys(), name)) {
        refused.push_back(fmt::format(
            "{}: {} = {}: not for a site's deck: it says what is computed, which stands "
            "in a user's own deck",
            site.Where(name), name, value));
      } else if (!user_decides_when || !Holds(kWhenToWrite, name)) {
        user.Supply(name, value, site.Where(name));
      }
    }
  }
  if (refused.empty()) return;
  throw InputError(
      fmt::format("{}", fmt::join(refused, "\n")),
      fmt::format("A site may give {}. Tell those who keep the file that {} names; without the "
                  "variable the site has no say.",
                  fmt::join(SiteKeys(), ", "), kSiteDeckVariable));
}

// Small files shared between jobs.

namespace {

// Attempts to open a file that another machine keeps replacing (ESTALE on NFS).
constexpr int kStaleRetries = 10;

// Reads an open file into `result`; returns 0 or an errno.
int ReadAll(const Descriptor& file, std::size_t most_bytes, SmallFile& result) {
  struct stat status = {};
  if (::fstat(file.Get(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) {
    result.fault = "is not a plain file";
    return 0;
  }
  // Reads one byte more than allowed, to notice a file that is longer or grows meanwhile.
  result.text.resize(most_bytes + 1);
  const auto most = static_cast<std::int64_t>(most_bytes);
  const std::int64_t got = ReadAt(file.Get(), result.text.data(), most + 1, 0);
  if (got <= most && errno != 0) return errno;
  if (got > most) result.fault = fmt::format("is longer than {} bytes", most);
  result.text.resize(got > most ? 0 : static_cast<std::size_t>(got));
  return 0;
}

}  // namespace

SmallFile ReadSmallFile(const std::string& path, std::size_t most_bytes) {
  SmallFile result;
  int error = ESTALE;
  for (int attempt = 0; error == ESTALE && attempt < kStaleRetries; ++attempt) {
    // O_NONBLOCK: opening a named pipe would wait for its writer.
    const Descriptor file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    error = file.Valid() ? ReadAll(file, most_bytes, result) : errno;
  }
  result.exists = error != ENOENT;
  if (error == ELOOP) {
    result.fault = "is a symbolic link";
  } else if (error != 0 && result.exists) {
    result.fault = "cannot be read: " + ErrorText(error);
    result.unreadable = true;
  }
  return result;
}

}  // namespace trireme::app
