// Runs the task that the deck names. Also: the task tokenize, and which runs get a page.
#include "trireme/tasks/tasks.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <system_error>

#include "root.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/tasks/evaluate.hpp"
#include "trireme/tasks/scaling.hpp"
#include "trireme/tasks/verify.hpp"

namespace trireme::tasks {

// DeclareAll: every key of the deck, in the order of --help-deck.
deck::Schema DeclareAll() {
  deck::Schema schema;
  app::Declare(schema);
  device::Declare(schema);
  DeclareEvaluate(schema);
  DeclareGenerate(schema);
  comm::Declare(schema);
  parallel::Declare(schema);
  data::Declare(schema);
  model::Declare(schema);
  train::DeclareOptimizerAndSchedule(schema);
  checkpoint::Declare(schema);
  hf::Declare(schema);
  report::Declare(schema);
  train::DeclareSafeguards(schema);
  train::DeclarePlan(schema);
  DeclareScaling(schema);
  return schema;
}

namespace {

// Checks that no task overwrites a file that the job reads.

namespace fs = std::filesystem;

// Keys that name a file to write, and the task that writes it. Omitted: generate.output, and
// hf.path in an export, which refuse to replace a file.
constexpr std::array<std::pair<std::string_view, app::Task>, 5> kOutputs = {
    {{"data.file", app::Task::kTokenize},
     {"evaluate.documents", app::Task::kEvaluate},
     {"evaluate.output", app::Task::kEvaluate},
     {"evaluate.results", app::Task::kEvaluate},
     {"plan.timeline", app::Task::kPlan}}};

struct Input {
  std::string key;  // the deck's key, or a description of the input
  std::string path;
};

// Adds the parts of a list "a:2, b" and also the whole text, which may be one name with a comma.
void AddNames(const std::string& key, const std::string& text, std::vector<Input>& to) {
  to.push_back({key, text});
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(",: ", begin), text.size());
    if (end > begin && end - begin < text.size()) {
      to.push_back({key, text.substr(begin, end - begin)});
    }
    begin = end + 1;
  }
}

std::vector<Input> InputsOf(const app::Request& request) {
  std::vector<Input> inputs;
  const deck::Deck& values = request.deck;  // its keys name inputs
  for (const std::string& deck : {request.sources.deck_path, request.sources.site_path}) {
    inputs.push_back({"this job's deck", deck});
  }
  for (const deck::Key& key : request.schema->Keys()) {
    const bool written = std::ranges::any_of(kOutputs, [&](const auto& output) {
      return output.first == key.name &&
             (output.second == request.job.task || key.name != "data.file");
    });
    if (key.path && !written) AddNames(key.name, values.Text(key.name), inputs);
  }
  return inputs;
}

bool IsOneOf(const std::string& output, const Input& input) {
  std::error_code none;
  if (input.path.empty() || !fs::exists(input.path, none)) return false;
  if (!fs::is_directory(input.path, none)) return fs::equivalent(output, input.path, none);
  // The job may read any file in a folder that holds a tokenizer.
  return (input.key.starts_with("tokenize.") || input.key.starts_with("hf.")) &&
         fs::equivalent(fs::absolute(output, none).parent_path(), input.path, none);
}

// Serial. Throws InputError if the task writes a file that the job reads, including a deck.
// Compares device and inode, so other names for the same file are found. Texts named by a glob are
// compared in data::IsReplaced, run folders in report::CheckRunFolder.
void CheckOutputs(const app::Request& request) {
  std::vector<Input> inputs;
  const deck::Deck& values = request.deck;  // its keys name outputs
  for (const auto& [key, task] : kOutputs) {
    if (task != request.job.task) continue;
    const std::string output = BehindLink(values.Text(std::string(key)));
    std::error_code none;
    if (output.empty() || !fs::exists(output, none)) continue;
    if (inputs.empty()) inputs = InputsOf(request);
    for (const Input& input : inputs) {
      if (!IsOneOf(output, input)) continue;
      throw request.deck.Complain(
          std::string(key),
          fmt::format("{} is read by this job, as {}, and would be replaced", output, input.key),
          "Name another file.");
    }
  }
}

// Whether the parent is an MPI launcher that kills its ranks soon after Ctrl-C.
bool LauncherIsImpatient() {
  std::ifstream file(fmt::format("/proc/{}/comm", getppid()));
  std::string name;
  std::getline(file, name);
  return name == "mpirun" || name == "mpiexec" || name == "orterun" || name == "orted" ||
         name == "prterun" || name == "prted";
}

// Answers the first signal at once, since the current step may take minutes. what: "the run ...".
void SayStop(int signal, const char* what) {
  const bool gentle = signal == SIGUSR1;
  std::string text = fmt::format("trireme: SIG{}: {}{}\n", sigabbrev_np(signal), what,
                                 gentle ? "" : "; a second one ends it at once");
  if (!gentle && LauncherIsImpatient()) {
    text +=
        "  mpirun makes SIGTERM of Ctrl-C, and kills its ranks soon, maybe before: send SIGUSR1 to "
        "mpirun instead, or start it with --mca odls_base_sigkill_timeout 600\n";
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// On rank 0, prints how the job will stop as soon as a signal has come.
void WatchForStop(const app::Request& request, const app::Ranks& ranks) {
  const char* what = request.job.task == app::Task::kScaling
                         ? "the study stops at the end of a step and keeps what it has measured"
                         : "the run stops at the end of a step and writes a checkpoint (before "
                           "its first step: at once, without one)";
  std::function<void(int)> say;
  if (ranks.World().IsRoot()) say = [what](int signal) { SayStop(signal, what); };
  ranks.signals->Watch(std::move(say));
}

// Whether all ranks tokenise, in bounded memory; otherwise rank 0 does, with the text in memory.
bool OnAllRanks(const data::TokenizeOptions& options) {
  return data::IsSubword(options.kind) || options.WritesPairs();
}

void SayWritable(const std::string& path) {
  Say("valid: {} could be written; nothing was written", path);
}

// Counts of the three splits: "1,000 / 100 / 100".
std::string BySplit(const std::array<std::int64_t, 3>& counts) {
  using report::WithThousands;
  return fmt::format("{} / {} / {}", WithThousands(counts[0]), WithThousands(counts[1]),
                     WithThousands(counts[2]));
}

// types: number of token types. tokens: number of tokens per split.
void SayTokens(const std::string& path, const std::string& tokenizer, std::int64_t types,
               const std::array<std::int64_t, 3>& tokens) {
  Say("{}: {}, {} types; {} tokens (train / valid / test)", path, tokenizer,
      report::WithThousands(types), BySplit(tokens));
}

// Rank 0 prints the progress of tokenisation every few seconds.
class TextProgress {
 public:
  // share: fraction of the work done, about equal on all ranks. bytes: all input; 0: not known.
  void Say(double share, std::int64_t bytes) {
    constexpr double kSeconds = 10;
    const double now = Seconds();
    if (now - said_ < kSeconds || share <= 0) return;
    said_ = now;
    const std::string left = report::AsClock((now - start_) * (1 - share) / share);
    const double done = share * static_cast<double>(bytes);
    if (bytes == 0) return tasks::Say("{:.1f}%, {} left", 100 * share, left);
    tasks::Say("{:.1f}% of {}, {}/s, {} left", 100 * share, report::AsBytes(bytes),
               report::AsBytes(static_cast<std::int64_t>(done / (now - start_))), left);
  }

 private:
  double start_ = Seconds(), said_ = start_;
};

// Tokenises texts or pairs of texts on all ranks.
void TokenizeOnAllRanks(const app::Request& request, const comm::Communicator& world,
                        const data::TokenizeOptions& options, const data::TextWatch& watch) {
  const std::string& path = request.data.file;
  const bool dry = request.line.validate_only, pairs = options.WritesPairs();
  const data::TextTokens done =
      data::TokenizeInParallel(world, options, request.deck, path, watch, dry);
  if (!world.IsRoot()) return;
  if (dry) return SayWritable(path);
  if (done.replaced > 0) {
    Say("invalid UTF-8: {} of bytes became U+FFFD", report::Counted(done.replaced, "sequence"));
  }
  if (done.missing > 0) {
    Say("{} without \"{}\" left out", report::Counted(done.missing, "JSON record"),
        options.text_key);
  }
  if (done.empty > 0) {
    Say("{} left out", pairs ? report::Counted(done.empty, "pair") + " with an empty text"
                             : report::Counted(done.empty, "record") + " without text");
  }
  Say("{} {} (train / valid / test)", BySplit(done.documents), pairs ? "pairs" : "documents");
  for (const data::TextTokens::Text& text : done.texts) {
    const char* const side = &text == &done.texts.front() ? ": source" : ": target";
    SayTokens(pairs ? path + side : path, text.tokenizer, text.vocabulary, text.tokens);
  }
}

ExitCode RunChosen(app::Job& job) {
  using app::Task;
  const Task task = job.request.job.task;
  if (task == Task::kTokenize) return RunTokenize(job);
  if (task == Task::kEvaluate) return RunEvaluate(job);
  if (task == Task::kGenerate) return RunGenerate(job);
  if (task == Task::kScaling) return RunScaling(job);
  if (task == Task::kImport) return RunImport(job);
  if (task == Task::kExport) return RunExport(job);
  if (task == Task::kVerify) return RunVerify(job);
  if (task == Task::kPreflight) return RunPreflight(job);
  if (task == Task::kPlan) return RunPlan(job);
  return RunTraining(job);
}

// Text from standard input, for "-" in the deck. Rank 0 keeps it in a file beside data.file, which
// all ranks read, while this object exists. texts: the splits' paths; "-" becomes the file's name.
class TextFromInput {
 public:
  TextFromInput(const app::Request& request, std::array<std::string, 3>& texts) {
    const auto found = std::ranges::find(texts, "-");
    if (found == texts.end()) return;
    if (std::ranges::count(texts, "-") > 1) {
      throw InputError("standard input ('-') is the text of one split only");
    }
    if (isatty(STDIN_FILENO) != 0) {
      throw InputError("standard input ('-') is a terminal",
                       "Send a text there: ... | trireme -i DECK");
    }
    Take(request.data.file);
    *found = path_;
    for (std::size_t at = 0; (at = found->find(',', at)) != std::string::npos; at += 2) {
      found->insert(at, "\\");
    }
  }
  ~TextFromInput() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TextFromInput(const TextFromInput&) = delete;
  TextFromInput& operator=(const TextFromInput&) = delete;

 private:
  void Take(const std::string& beside) {
    std::string buffer(std::size_t{1} << 20, '\0');
    std::optional<Descriptor> file;
    for (;;) {
      const ssize_t got = Retry([&] { return ::read(STDIN_FILENO, buffer.data(), buffer.size()); });
      if (got < 0) throw InputError("standard input cannot be read: " + ErrorText(errno));
      if (got == 0 && file) return;
      const std::string_view piece(buffer.data(), static_cast<std::size_t>(got));
      if (!file) {
        // JSON records begin with '{'. Compressed text is recognised later, by its own first bytes.
        const std::size_t first = piece.find_first_not_of(" \t\r\n");
        const bool records = first != std::string_view::npos && piece[first] == '{';
        path_ = NewNameBeside(beside) + (records ? ".stdin.jsonl" : ".stdin");
        file.emplace(CreateNewFile(path_));
      }
      if (!file->Valid() || !WriteAll(file->Get(), piece)) {
        throw RunError(
            fmt::format("{}: standard input cannot be kept there: {}", path_, ErrorText(errno)));
      }
    }
  }

  std::string path_;  // empty: no text from standard input
};

}  // namespace

ExitCode RunTask(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  using app::Task;
  if (!request.line.calibrate.empty()) return RunCalibration(job);
  world.Together([&] {
    if (world.IsRoot()) CheckOutputs(request);
    const int ranks = request.comm.ranks;
    // A plan may be for ranks that do not exist here.
    if (ranks == 0 || ranks == world.Size() || request.job.task == Task::kPlan) return;
    throw request.deck.Complain(
        "grid.ranks",
        report::Counted(world.Size(), "rank") + (world.Size() == 1 ? " runs" : " run"),
        "It names ranks to plan for, with -v: leave it out here.");
  });
  const Task task = request.job.task;
  const bool texts = task == Task::kTokenize && OnAllRanks(request.tokenize);
  const bool writes = texts || task == Task::kGenerate;
  if (writes && !request.line.validate_only) {
    job.ranks.signals->Watch();
  } else if (!app::ReadsTraining(task) || request.line.validate_only) {
    job.ranks.signals->Release();
  } else {
    WatchForStop(request, job.ranks);
  }
  if (app::ReadsTraining(task)) {
    // Inspects the ranks and their hosts; problems are printed and recorded.
    app::ArmSetUp(*job.ranks.runtime, request.machine.hang_timeout);
    job.preflight = app::LookAround(request, job.ranks, job.device, false);
    for (const tools::Warning& warning : job.preflight.warnings) {  // only rank 0 has any
      fmt::print(stderr, "warning: preflight: {}\n", warning.text);
    }
    std::fflush(stderr);
  }
  return app::FromNewestValid(request, world, job.start, [&] { return RunChosen(job); });
}

ExitCode RunTokenize(const app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  const std::string& path = request.data.file;
  data::TokenizeOptions options = request.tokenize;
  std::optional<TextFromInput> from_input;
  AtRoot(world, [&] {
    if (!request.line.resume.empty()) {
      throw InputError("command line: -r has no meaning for job.task = tokenize",
                       "Leave it out, or choose another task.");
    }
    if (!request.data.mixture.empty()) {
      throw request.deck.Complain("data.mixture", "job.task = tokenize writes one file",
                                  "Name it with data.file.");
    }
    data::CheckTokenFileTarget(path, options.overwrite);
    from_input.emplace(request, options.texts);
    if (OnAllRanks(options)) return;
    const data::TokenData data = data::Tokenize(options, request.deck, path);
    if (request.line.validate_only) return SayWritable(path);
    data::WriteTokenFile(path, data, options.overwrite);
    SayTokens(path, data.tokenizer, std::ssize(data.vocabulary.words),
              {std::ssize(data.tokens[0]), std::ssize(data.tokens[1]), std::ssize(data.tokens[2])});
    if (data.entropy_rate) {
      Say("entropy rate {:.6f} nats/token: no honest model does better", *data.entropy_rate);
    }
  });
  if (!OnAllRanks(options)) return ExitCode::kDone;
  TextProgress progress;
  data::TextWatch watch{.stop = [&job] { return job.ranks.signals->Received(); }};
  if (world.IsRoot()) {
    watch.progress = [&](double share, std::int64_t bytes) { progress.Say(share, bytes); };
  }
  TokenizeOnAllRanks(request, world, options, watch);
  return ExitCode::kDone;
}

// OrderPage: which runs get a page, and how long making it may take.
std::optional<report::PageOrder> OrderPage(const app::Job& job) {
  constexpr double kMostSeconds = 60;
  constexpr double kMargin = 20;  // seconds before the job's end: the program must have ended then
  constexpr double kLeast = 5;    // seconds; with less time the page is not begun
  if (job.ended_run.empty() || !job.ranks.World().IsRoot() || !job.request.monitor.report)
    return {};
  double seconds = kMostSeconds;
  if (const auto end = app::ReadBatchJob().end_unix_seconds) {
    seconds = std::min(seconds, *end - UnixSeconds() - kMargin);
  }
  return report::PageOrder{.folder = job.ended_run, .seconds = seconds < kLeast ? 0 : seconds};
}

}  // namespace trireme::tasks
