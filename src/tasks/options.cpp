// The keys of [generate], [evaluate] and [scaling].
#include "trireme/comm/options.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include "trireme/base/files.hpp"
#include "trireme/deck/keys.hpp"
#include "trireme/tasks/evaluate.hpp"
#include "trireme/tasks/scaling.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::tasks {

namespace {

constexpr deck::Names<3> kPackings = {"no", "yes", "auto"};

// The options, and the unparsed text of generate.stop.
struct AskedTexts : GenerateOptions {
  std::string stop_text;
};

void BindGenerate(deck::Keys keys, AskedTexts& o) {
  using deck::AtLeast, deck::Between;
  constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
  keys.Section("generate",
               "Continuing or, with model.kind = encoder_decoder, translating a prompt (job.task = "
               "generate).")
      .Text("generate.prompt", o.prompt,
            "Text to continue. Empty: start after an <eos>. -: interactive, each line of standard "
            "input is a prompt, until it ends (Ctrl-D).")
      .Path("generate.file", o.file,
            "File of prompts, one JSON object per line: prompt (text) and, optionally, id (a "
            "string or an integer) and values to use in place of the deck's: tokens, temperature, "
            "top_k, top_p, seed, repetition_penalty, stop (a string or a list).")
      .Path("generate.output", o.output,
            "File for the texts of generate.file, one JSON object per line, in the order of the "
            "prompts: id, prompt, text, tokens (ids), reason (length, stop, eos), log_probability "
            "(nats). A file that exists is refused. Empty: standard output.")
      .Integer("generate.batch", o.texts, AtLeast(1), "prompts",
               "Prompts of generate.file that each data rank continues at once, and texts that an "
               "evaluation translates at once. More take more memory, for keys and values.")
      .Choice("generate.pack_weights", o.pack_weights, kPackings,
              "Whether CPUs keep a second copy of the weights, in the order in which products of 2 "
              "to 32 texts at once read them: faster, with the same numbers. auto: if every node "
              "has the memory. yes: an error where it is not possible.")
      .Integer("generate.tokens", o.tokens, AtLeast(1), "tokens",
               "Number of tokens to add; for translations, the limit.")
      .Integer("generate.beams", o.beams, AtLeast(1), "texts",
               "For translations: how many of the likeliest beginnings are kept from token to "
               "token (beam search). 1: greedy.")
      .Real("generate.length_penalty", o.length_penalty, AtLeast(0), "",
            "For translations: of the texts of n tokens found by beam search, the one with the "
            "largest log-probability / ((5 + n) / 6)^length_penalty is taken (Wu et al. 2016). 0: "
            "the likeliest.")
      .Real("generate.temperature", o.temperature, AtLeast(0), "",
            "Divides the logits before a token is drawn. 0: greedy, always the likeliest token. "
            "Translations are not drawn: neither this nor generate.seed has an effect.")
      .Integer("generate.top_k", o.top_k, AtLeast(0), "tokens",
               "Draw from the k likeliest tokens only. 0: from all.")
      .Real("generate.top_p", o.top_p, {0, 1, true, false}, "",
            "Draw from the fewest tokens that together have this probability. 1: from all.")
      .Integer("generate.seed", o.seed, Between(0, kLargestSeed), "", "Seed of the draws.")
      .Real("generate.repetition_penalty", o.repetition_penalty, deck::Above(0), "",
            "Makes tokens that prompt and text already have less likely: positive logits are "
            "divided by this, negative ones multiplied (Keskar et al. 2019). 1: no penalty.")
      .Text("generate.stop", o.stop_text,
            "Strings that end a text and are left out of it, with | between them; \\n, \\t, \\\\, "
            "\\| are a newline, a tab, a backslash, a bar. Empty: none.")
      .Switch("generate.stop_at_eos", o.stop_at_eos,
              "Whether an <eos> ends the text; it is left out.")
      .Switch("generate.start_with_eos", o.start_with_eos,
              "The model sees an <eos> before a prompt, as before each document in training.")
      .Exclusive({"generate.prompt", "generate.file"});
}

// Throws InputError for the first listed key that is in use.
void RefuseAny(std::initializer_list<std::pair<const char*, bool>> keys, const char* why,
               const char* hint, const deck::Deck& deck) {
  for (const auto& [key, asked] : keys) {
    if (asked) throw deck.Complain(key, why, hint);
  }
}

namespace fs = std::filesystem;

constexpr deck::Names<2> kDetokenise = {"none", "wikitext"};

void CheckInput(const char* key, const std::string& path, const deck::Deck& deck) {
  std::error_code error;
  if (path.empty() || fs::is_regular_file(path, error)) return;
  throw deck.Complain(key,
                      fs::exists(path, error) ? path + " is not a file" : path + ": no such file",
                      "Check the path.");
}

void CheckTarget(const char* key, const std::string& path, bool overwrite, const deck::Deck& deck) {
  if (path.empty()) return;
  std::error_code error;
  if (fs::exists(path, error) && (!overwrite || !fs::is_regular_file(path, error))) {
    throw deck.Complain(key, path + " is there already",
                        "evaluate.overwrite = yes replaces a file; or name another one.");
  }
  const std::string folder = FolderOf(path);
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return;
  throw deck.Complain(
      key,
      fmt::format("the folder {} {}", folder,
                  fs::is_directory(folder, error) ? "forbids writing" : "does not exist"),
      "Make it, or name another place.");
}

void BindEvaluate(deck::Keys keys, EvaluateOptions& o) {
  keys.Section("evaluate", "Evaluating a trained model (job.task = evaluate); see doc/evaluate.md.")
      .Integer("evaluate.stride", o.stride, deck::AtLeast(0), "tokens",
               "Distance between the beginnings of neighbouring windows. Each target counts once, "
               "and all but those of the first window have at least data.sequence_length - stride "
               "tokens of context. 0: windows do not overlap.")
      .Path(
          "evaluate.text", o.text,
          "A text file to evaluate, as one document, beside the token file's splits. Empty: none.")
      .Choice("evaluate.detokenise", o.detokenise, kDetokenise,
              "wikitext: undoes the tokenisation of WikiText's files in evaluate.text, for subword "
              "tokenizers; words are still counted as in the file. none: the text as it is.")
      .Switch("evaluate.baselines", o.baselines,
              "Also shows the losses of the uniform and unigram distributions and of a Kneser-Ney "
              "5-gram model. The last two learn from the token file's train split and are left out "
              "if it has more than 100 million tokens.")
      .Path("evaluate.documents", o.documents,
            "File to write (HDF5): the loss of each document. The token file must hold the "
            "beginnings of documents. Empty: none.")
      .Path("evaluate.choices", o.choices,
            "File of multiple-choice questions to score, one JSON object per line, answers count "
            "from 0: {\"context\": \"...\", \"choices\": [\"...\", ...], \"answer\": 0}. Empty: "
            "none.")
      .Path("evaluate.output", o.output,
            "File to write, one JSON object per line: the scores of each question or, if the model "
            "translates, the translation of each pair. Empty: none.")
      .Path("evaluate.results", o.results, "File to write (JSON): all results. Empty: none.")
      .Switch("evaluate.overwrite", o.overwrite,
              "yes: existing output files are replaced; no: they are refused.");
}

void CheckTargets(const EvaluateOptions& options, const deck::Deck& deck) {
  const std::array<std::pair<const char*, const std::string*>, 3> targets = {
      {{"evaluate.documents", &options.documents},
       {"evaluate.output", &options.output},
       {"evaluate.results", &options.results}}};
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto& [key, path] = targets[i];
    CheckTarget(key, *path, options.overwrite, deck);
    for (std::size_t j = 0; j < i && !path->empty(); ++j) {
      if (*path != *targets[j].second) continue;
      throw deck.Complain(key, fmt::format("{} names the same file", targets[j].first),
                          "Name another one.");
    }
  }
}

// The parts of a list; none for an empty text.
std::vector<std::string_view> PartsOf(std::string_view text) {
  if (deck::Trimmed(text).empty()) return {};
  return deck::SplitList(text);
}

std::vector<int> ReadRanks(const std::string& list, const deck::Deck& deck) {
  std::vector<int> ranks;
  for (const std::string_view part : PartsOf(list)) {
    int count = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), count);
    if (error != std::errc() || end != part.data() + part.size() || count < 1 ||
        count > comm::kMostRanks) {
      throw deck.Complain("scaling.ranks", fmt::format("'{}' is not a number of ranks", part),
                          "Give numbers with commas between them: 1,2,4,8.");
    }
    if (std::find(ranks.begin(), ranks.end(), count) != ranks.end()) {
      throw deck.Complain("scaling.ranks", fmt::format("{} is listed twice", count),
                          "Name each number of ranks once; scaling.repeats says how often each "
                          "is measured.");
    }
    ranks.push_back(count);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<ScalingKind> ReadKinds(const std::string& list, const deck::Deck& deck) {
  std::vector<ScalingKind> kinds;
  for (const std::string_view part : PartsOf(list)) {
    const bool strong = part == NameOf(ScalingKind::kStrong);
    const ScalingKind kind = strong ? ScalingKind::kStrong : ScalingKind::kWeak;
    const bool twice = std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
    if ((!strong && part != NameOf(ScalingKind::kWeak)) || twice) {
      throw deck.Complain(
          "scaling.kind",
          fmt::format("'{}' {}", part, twice ? "stands there twice" : "is not a kind"),
          "What there is: strong; weak; strong,weak.");
    }
    kinds.push_back(kind);
  }
  if (kinds.empty()) {
    throw deck.Complain("scaling.kind", "no kind is named",
                        "What there is: strong; weak; strong,weak.");
  }
  return kinds;
}

// The options, and the unparsed texts of the lists.
struct AskedScaling : ScalingOptions {
  std::string ranks_text, kind_text = "strong";
};

void BindScaling(deck::Keys keys, AskedScaling& o) {
  keys.Section("scaling",
               "A scaling study of a training step (job.task = scaling); see doc/scaling.md.")
      .Text("scaling.ranks", o.ranks_text,
            "Numbers of ranks to compare, such as 1,2,4,8. The first ranks of the job take part, "
            "the others sleep. Empty: the ranks of one replica (tensor x context x pipeline) times "
            "1, 2, 4 ... up to the job's ranks, and all of the job's ranks.")
      .Text("scaling.kind", o.kind_text,
            "strong: data.batch windows per step on any number of ranks; weak: a batch that grows "
            "with the ranks, see scaling.base_ranks; strong,weak: both.")
      .Integer("scaling.base_ranks", o.base_ranks, deck::Between(0, comm::kMostRanks), "ranks",
               "For weak scaling: the number of ranks that take data.batch windows per step; "
               "others take data.batch x ranks / base_ranks. 0: the smallest number compared.")
      .Integer("scaling.steps", o.steps, deck::AtLeast(1), "steps",
               "Steps measured per number of ranks and round.")
      .Integer("scaling.warmup_steps", o.warmup_steps, deck::AtLeast(1), "steps",
               "Steps before the measured ones, which are not counted.")
      .Integer("scaling.repeats", o.repeats, deck::AtLeast(1), "",
               "Number of rounds. Each measures all numbers of ranks, every second round from the "
               "largest to the smallest. Confidence intervals need two or more.");
}

}  // namespace

void DeclareGenerate(deck::Schema& schema) { deck::Declare(schema, BindGenerate); }

// Compares values with defaults, because the deck of a run gives all keys.
void CheckGenerate(const GenerateOptions& o, const deck::Deck& deck) {
  if (!o.translates) {
    if (o.beams == 1) return;
    throw deck.Complain("generate.beams", "this model continues texts, it does not translate",
                        "Leave this key out.");
  }
  RefuseAny({{"generate.top_k", o.top_k != 0},
             {"generate.top_p", o.top_p != 1},
             {"generate.repetition_penalty", o.repetition_penalty != 1},
             {"generate.stop", !o.stop.empty()},
             {"generate.start_with_eos", !o.start_with_eos}},
            "translations are searched for, not drawn",
            "Leave this key out; generate.beams and generate.length_penalty are what a search has.",
            deck);
}

std::optional<std::vector<std::string>> ReadStops(const std::string& list) {
  std::vector<std::string> stops;
  if (list.empty()) return stops;
  stops.emplace_back();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '|') {
      stops.emplace_back();
    } else if (list[i] != '\\') {
      stops.back() += list[i];
    } else if (const char next = ++i < list.size() ? list[i] : '\0'; next == 'n') {
      stops.back() += '\n';
    } else if (next == 't') {
      stops.back() += '\t';
    } else if (next == '\\' || next == '|') {
      stops.back() += next;
    } else {
      return std::nullopt;
    }
  }
  if (std::ranges::any_of(stops, &std::string::empty)) return std::nullopt;
  return stops;
}

GenerateOptions ReadGenerate(const deck::Deck& deck) {
  AskedTexts options = deck::Read(deck, BindGenerate);
  const std::optional<std::vector<std::string>> stop = ReadStops(options.stop_text);
  if (!stop) {
    throw deck.Complain("generate.stop", "not a list of strings",
                        "Separate strings by |, leave none empty, and write \\n, \\t, \\\\ or \\| "
                        "for a newline, a tab, a backslash or a bar.");
  }
  if (!options.output.empty() && options.file.empty()) {
    throw deck.Complain("generate.output", "there is no generate.file",
                        "Texts of generate.file go there: name one.");
  }
  options.stop = *stop;
  options.batch = options.file.empty() ? 1 : options.texts;
  return options;
}

void DeclareEvaluate(deck::Schema& schema) { deck::Declare(schema, BindEvaluate); }

EvaluateOptions ReadEvaluate(const deck::Deck& deck) { return deck::Read(deck, BindEvaluate); }

void CheckPairs(const EvaluateOptions& options, const deck::Deck& deck) {
  RefuseAny({{"evaluate.stride", options.stride != 0},
             {"evaluate.text", !options.text.empty()},
             {"evaluate.baselines", options.baselines},
             {"evaluate.documents", !options.documents.empty()},
             {"evaluate.choices", !options.choices.empty()}},
            "a model that translates is evaluated on pairs alone", "Leave this key out.", deck);
  CheckTargets(options, deck);
}

void CheckEvaluate(const EvaluateOptions& options, const deck::Deck& deck, std::int64_t length) {
  if (options.stride > length) {
    throw deck.Complain("evaluate.stride",
                        fmt::format("windows of {} tokens would skip some", length),
                        "It may not exceed data.sequence_length.");
  }
  if (options.detokenise != Detokenise::kNone && options.text.empty()) {
    throw deck.Complain("evaluate.detokenise", "there is no text to change",
                        "Name WikiText's file with evaluate.text.");
  }
  if (!options.output.empty() && options.choices.empty()) {
    throw deck.Complain("evaluate.output", "there are no questions to score",
                        "Name their file with evaluate.choices.");
  }
  CheckInput("evaluate.text", options.text, deck);
  CheckInput("evaluate.choices", options.choices, deck);
  CheckTargets(options, deck);
}

const char* NameOf(ScalingKind kind) { return kind == ScalingKind::kStrong ? "strong" : "weak"; }

void DeclareScaling(deck::Schema& schema) { deck::Declare(schema, BindScaling); }

ScalingOptions ReadScaling(const deck::Deck& deck) {
  AskedScaling options = deck::Read(deck, BindScaling);
  options.ranks = ReadRanks(options.ranks_text, deck);
  options.kinds = ReadKinds(options.kind_text, deck);
  return options;
}

}  // namespace trireme::tasks
