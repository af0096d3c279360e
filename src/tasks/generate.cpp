// job.task = generate: texts for one prompt, a file of prompts, or a user at the keyboard.
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>

#include "generator.hpp"
#include "root.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/evaluate.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/trained_model.hpp"

namespace trireme::tasks {

namespace {

// Translates prompts. Translations are shown when complete: until then another beam may win.
class TranslationWriter : public Writer {
 public:
  // All arguments must outlive this.
  TranslationWriter(model::ParallelModel& model, const data::PairFile& pairs,
                    const GenerateOptions& options, const std::function<bool()>& stopped)
      : model_(model), pairs_(pairs), translator_(SetupOf(model, pairs, options, stopped)) {}

  // Throws InputError as Writer does, and if the text has no tokens or more than the model takes.
  void Encode(Prompt& prompt) const override {
    try {
      prompt.ids = pairs_.Encode(data::Side::kSource, prompt.text);
    } catch (const Error& error) {
      throw Error(error.Code(), fmt::format("{}: {}", prompt.where, error.what()));
    }
    const std::int64_t tokens = std::ssize(prompt.ids), most = model_.Plan().length;
    if (tokens == 1) {
      throw InputError(fmt::format("{}: nothing to translate", prompt.where), "Give it text.");
    }
    if (tokens <= most) return;
    throw InputError(fmt::format("{}: {} tokens, the model takes {}", prompt.where, tokens, most),
                     "Cut it into sentences.");
  }

  std::vector<std::optional<Continuation>> Run(std::span<const Prompt> prompts,
                                               const OnText& on_text) override {
    std::vector<Translator::Ids> sources;
    for (const Prompt& prompt : prompts) sources.push_back(prompt.ids);
    std::vector<std::optional<Continuation>> texts;
    for (const auto& found : translator_.Run(sources)) {
      std::optional<Continuation>& text = texts.emplace_back();
      if (!found) continue;
      text = Continuation{.tokens = found->tokens,
                          .text = pairs_.Decode(data::Side::kTarget, found->tokens),
                          .log_probability = found->log_probability,
                          .end = found->ended ? End::kEos : End::kLength};
    }
    if (on_text && model_.Grid().World().IsRoot() && !texts.empty() && texts.front()) {
      on_text(texts.front()->text);
    }
    return texts;
  }
  bool Stopped() const override { return translator_.Stopped(); }

 private:
  const model::ParallelModel& model_;
  const data::PairFile& pairs_;
  Translator translator_;
};

void Show(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

[[noreturn]] void ThrowStopped(const std::string& done) {
  throw AgreedError(ExitCode::kStopped, "stopped by a signal: " + done);
}

// Collective. Answers a prompt and shows the text as it grows.
void ShowAnswer(const comm::Communicator& world, Writer& writer, std::span<const Prompt> prompt) {
  writer.Run(prompt, [](const std::string& piece) { Show(Printable(piece)); });
  if (world.IsRoot()) Show("\n");
}

// Continues one prompt and shows its text as it grows.
void ContinuePrompt(const comm::Communicator& world, Writer& writer, const TrainedModel& trained,
                    const GenerateOptions& options) {
  std::vector<Prompt> prompts = {
      {.where = "generate.prompt", .text = options.prompt, .id = {}, .options = options}};
  world.Together([&] { writer.Encode(prompts.front()); });
  if (world.IsRoot() && !options.translates) {
    Show(Printable(trained.Tokens().Decode(prompts.front().ids)));
  }
  ShowAnswer(world, writer, prompts);
  if (writer.Stopped()) ThrowStopped("the text is not complete");
}

// Reads lines of standard input while watching for signals.
class InputLines {
 public:
  // The next line without its newline; nullopt at the end of the input, or once `stopped`.
  std::optional<std::string> Next(const std::function<bool()>& stopped) {
    constexpr int kPause = 100;  // ms, between looks at `stopped`
    while (true) {
      const std::size_t end = waiting_.find('\n');
      if (end != std::string::npos) {
        std::string line = waiting_.substr(0, end);
        waiting_.erase(0, end + 1);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        return line;
      }
      if (stopped()) return std::nullopt;
      pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (poll(&input, 1, kPause) <= 0) continue;
      char bytes[4096];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count > 0) {
        waiting_.append(bytes, static_cast<std::size_t>(count));
      } else if (waiting_.empty()) {
        return std::nullopt;
      } else {
        waiting_ += '\n';  // the last line has no newline
      }
    }
  }

 private:
  std::string waiting_;
};

// Collective. The next line of rank 0's input, on all ranks; nullopt at its end or after a signal.
std::optional<std::string> NextLine(const app::Ranks& ranks, InputLines& lines) {
  const comm::Communicator& world = ranks.World();
  std::string sent;  // empty: no more lines
  if (world.IsRoot()) {
    if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) Show("> ");
    if (const auto line = lines.Next([&] { return ranks.signals->Received(); })) sent = "+" + *line;
  }
  sent = world.Broadcast(sent);
  if (sent.empty()) return std::nullopt;
  return sent.substr(1);
}

// Answers prompts from standard input. Each has a number of its own, from which its random draws
// follow. If a line cannot be encoded, the user is told why and the next one is read.
void Converse(const app::Ranks& ranks, Writer& writer, const GenerateOptions& options) {
  InputLines lines;
  std::int64_t number = 0;
  while (const std::optional<std::string> line = NextLine(ranks, lines)) {
    std::vector<Prompt> prompts = {{.number = number,
                                    .where = fmt::format("line {}", number + 1),
                                    .text = *line,
                                    .id = {},
                                    .options = options}};
    ++number;
    try {
      writer.Encode(prompts.front());  // on all ranks alike
    } catch (const Error& error) {
      if (ranks.World().IsRoot()) fmt::print(stderr, "trireme: {}\n", error.what());
      continue;
    }
    ShowAnswer(ranks.World(), writer, prompts);
    if (writer.Stopped()) break;
  }
  if (ranks.World().Max(std::int64_t{ranks.signals->Received()}) == 0) return;
  if (ranks.World().IsRoot() && isatty(STDOUT_FILENO) != 0) Show("\n");
  ThrowStopped(fmt::format("{} answered", report::Counted(number, "prompt")));
}

// generate.output, on rank 0. When Write returns, its lines were handed to the system.
class OutputFile {
 public:
  // path: empty for standard output. Throws InputError if the file exists or cannot be created.
  OutputFile(const deck::Deck& deck, std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    struct stat found {};
    if (lstat(path_.c_str(), &found) == 0) {
      throw deck.Complain("generate.output", "exists already",
                          "Name another file, or move that one away.");
    }
    file_.emplace(CreateNewFile(path_));
    if (!file_->Valid()) {
      throw deck.Complain("generate.output", "cannot be made: " + ErrorText(errno),
                          "Name a file in a folder that allows it.");
    }
  }
  void Write(const std::string& lines) {
    if (path_.empty()) return Show(lines);
    if (!WriteAll(file_->Get(), lines)) Fail();
  }
  void Close() {
    if (!path_.empty() && fsync(file_->Get()) != 0) Fail();
  }

 private:
  [[noreturn]] void Fail() const {
    throw RunError(fmt::format("{}: cannot be written: {}", path_, ErrorText(errno)),
                   "Texts up to there are in it.");
  }
  std::string path_;
  std::optional<Descriptor> file_;
};

// A round's output lines in the order of its prompts, on every rank. Adds to counts: texts, tokens.
std::string Collect(const comm::Communicator& world, const comm::ProcessGrid& grid,
                    std::span<const Prompt> prompts,
                    const std::vector<std::optional<Continuation>>& results,
                    std::array<std::int64_t, 2>& counts) {
  nlohmann::json mine = nlohmann::json::array();
  for (std::size_t i = 0; LeadsReplica(grid) && i < prompts.size(); ++i) {
    if (!results[i]) continue;
    mine.push_back({i, LineOf(prompts[i], *results[i]), results[i]->tokens.size()});
  }
  std::vector<std::string> lines(prompts.size());
  for (const std::string& text : world.Gather(mine.dump())) {
    for (const nlohmann::json& entry : nlohmann::json::parse(text)) {
      lines[entry[0].get<std::size_t>()] = entry[1].get<std::string>();
      ++counts[0];
      counts[1] += entry[2].get<std::int64_t>();
    }
  }
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

// Continues all prompts of a file in rounds; texts are written after each round.
void ContinueFile(const deck::Deck& deck, const comm::Communicator& world, Writer& writer,
                  TrainedModel& trained, std::vector<Prompt>& prompts,
                  const GenerateOptions& options) {
  constexpr std::int64_t kBatches = 16;  // batches of prompts per round and data rank
  const comm::ProcessGrid& grid = trained.Net().Grid();
  world.Together([&] {
    for (Prompt& prompt : prompts) writer.Encode(prompt);
  });
  std::optional<OutputFile> output;
  AtRoot(world, [&] { output.emplace(deck, options.output); });
  const auto round = static_cast<std::size_t>(kBatches * options.batch * grid.Shape().data);
  std::array<std::int64_t, 2> counts{};  // texts, tokens
  const double start = Seconds();
  for (std::size_t begin = 0; begin < prompts.size() && !writer.Stopped(); begin += round) {
    const auto some = std::span(prompts).subspan(begin, std::min(round, prompts.size() - begin));
    const auto results = writer.Run(some);
    const std::string lines = Collect(world, grid, some, results, counts);
    world.Together([&] {
      if (output) output->Write(lines);
    });
  }
  world.Together([&] {
    if (output) output->Close();
  });
  if (writer.Stopped()) {
    ThrowStopped(fmt::format("{} of {} prompts were continued", counts[0], prompts.size()));
  }
  if (!world.IsRoot() || options.output.empty()) return;
  const double seconds = Seconds() - start;
  Say("{}: {}, {} tokens in {:.1f} s, {:.1f} tokens/s", options.output,
      report::Counted(counts[0], "text"), report::WithThousands(counts[1]), seconds,
      static_cast<double>(counts[1]) / seconds);
}

}  // namespace

std::vector<std::int32_t> Continue(model::ParallelModel& model, std::vector<std::int32_t> prompt,
                                   const GenerateOptions& options) {
  const std::int64_t longest = model.Plan().length;
  std::vector<std::int32_t> added;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const std::int64_t seen = std::min(std::ssize(prompt), longest);  // tokens for the model
    data::Entry batch;
    batch.sequences = 1;
    batch.length = seen;
    batch.inputs.assign(prompt.end() - seen, prompt.end());
    batch.targets.assign(static_cast<std::size_t>(seen), data::kMasked);
    batch.ordinals = {0};
    const std::vector<double> logits = model.Inference().Logits(batch, seen - 1);
    if (!AllFinite(logits)) return {};
    const std::int32_t next = Choose(logits, options, DrawOf(options.seed, 0, i));
    prompt.push_back(next);
    added.push_back(next);
  }
  return added;
}

std::vector<std::int32_t> ContinueOnce(model::ParallelModel& model,
                                       const std::vector<std::int32_t>& prompt,
                                       const GenerateOptions& options) {
  const comm::ProcessGrid& grid = model.Grid();
  // With sharded values, all replicas must take part in gathers of parameters.
  const bool writes = grid.Coordinates().data == 0 || model.Units().ValuesSharded();
  std::vector<std::int32_t> added;
  if (writes) added = Continue(model, prompt, options);
  grid.World().Together([&] {
    if (!writes || !added.empty() || options.tokens == 0) return;
    throw RunError("the model's prediction is not finite", "Its weights are damaged.");
  });
  return added;
}

ExitCode RunGenerate(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  GenerateOptions options;
  world.Together([&] {
    options = ReadGenerate(request.deck);
    options.translates = request.model.Translates();
    CheckGenerate(options, request.deck);
  });
  std::vector<Prompt> prompts;
  if (!options.file.empty()) prompts = ReadPrompts(request, world, options);
  // A single prompt is a micro-batch of its own; for a file, the deck's micro-batch applies.
  TrainedModel trained(job, options.file.empty() ? 1 : 0, options.batch * options.beams,
                       options.pack_weights);
  if (request.line.validate_only) return app::SayValid(world);
  constexpr int kFew = 16;  // up to so many tokens are fast enough without a cache
  const bool is_short = options.file.empty() && options.tokens <= kFew;
  if (world.IsRoot() && trained.Net().Plan().cache_slots == 0 && !is_short) {
    fmt::print(stderr,
               "trireme: grid.context > 1: keys and values are not kept, each token computes the "
               "whole window\n");
  }
  const auto stopped = [&] { return job.ranks.signals->Received(); };
  std::unique_ptr<Writer> writer;
  if (trained.Pairs() != nullptr) {
    writer = std::make_unique<TranslationWriter>(trained.Net(), *trained.Pairs(), options, stopped);
  } else {
    writer = std::make_unique<Generator>(Generator::Setup{.model = trained.Net(),
                                                          .tokens = trained.Tokens(),
                                                          .slots = options.batch,
                                                          .stopped = stopped});
  }
  if (!options.file.empty()) {
    ContinueFile(request.deck, world, *writer, trained, prompts, options);
  } else if (options.prompt == "-") {
    Converse(job.ranks, *writer, options);
  } else {
    ContinuePrompt(world, *writer, trained, options);
  }
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
