// Parsing of the command line, and the answers that need no MPI.
#include "trireme/app/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "trireme/base/version.hpp"
#include "trireme/comm/channel.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/app/options.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/tools/support.hpp"
#include "trireme/tools/watch.hpp"

namespace trireme::app {

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
                       checkpoint; without -i by the run's own deck
  -n                   print the resolved deck and stop
  -v                   validate: construct everything, allocate, check files, print the memory plan,
                       stop; nothing is written. With grid.ranks=N: the plan for N ranks that need
                       not be there, without MPI
  section.key=value    wins over the deck's value
  --watch RUN...       follow running jobs by their run folders, on any node, without MPI: a view in
                       the terminal (q ends, arrows move through many runs); in a pipe, a line per
                       record from the first one on, until all runs are done
  --support RUN        one archive for a ticket, <run>_<date>.tar.gz in the current directory:
                       versions, host, limits, environment, deck, log, records; no data, no weights,
                       no texts, no secrets. Shows what is in it; works for a damaged run, too
  --self-test [FOLDER] within a minute, on the ranks at hand: does everything work here? A line for
                       each check, code 0 or 1. Its files go into FOLDER ($TMPDIR, else /tmp), where
                       all ranks must see them, and are removed
  --calibrate FILE     runs small steps and transfers on the ranks at hand for seconds and writes their
                       machine's description, for job.task=plan plan.machine=FILE. Threads and device
                       are those of the deck and the keys (run.threads, run.device)
  --help               this text
  --help-deck [NAME]   every key of the deck, of a section or one key (model.dim): type, default,
                       range, unit, meaning
  --version            version, commit, compiler and libraries

exit codes: 0 done; 1 failed; 2 bad deck, input file or command line (nothing was written);
            3 stopped early by a signal or the walltime, checkpoint written: run it again with -r
)";

std::string VersionText() {
  // Allowed before MPI starts. The first line names the implementation.
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

// The deck as it will be used.
void PrintResolved(const CommandLine& line, const deck::Schema& schema) {
  const Sources sources = ReadSources(schema, line);
  const deck::Deck deck = ParseDeck(schema, line, sources);
  ReadAll(deck);  // complains of values that contradict each other
  PrintWarnings(sources.start);
  std::fputs(deck.Resolved().c_str(), stdout);
}

// --watch, --support and --self-test, each with what follows it and nothing else; nothing for any
// other command line.
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

}  // namespace trireme::app
