// The keys of [generate].
#include "trireme/tasks/options.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "trireme/deck/choice.hpp"

namespace trireme::tasks {

namespace {

constexpr deck::Names<3> kPackings = {"no", "yes", "auto"};

}  // namespace

void DeclareGenerate(deck::Schema& schema) {
  using deck::AtLeast, deck::Between;
  constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
  schema
      .Section("generate",
               "Continuing or, with model.kind = encoder_decoder, translating a prompt (job.task = "
               "generate).")
      .Text("generate.prompt", "",
            "Text to continue. Empty: start after an <eos>. -: interactive, each line of standard "
            "input is a prompt; ends at its end (Ctrl-D).")
      .Path("generate.file", "",
            "Prompts, one JSON object a line: prompt (text), and as one likes id (a string or an "
            "integer), tokens, temperature, top_k, top_p, seed, repetition_penalty, stop (a string "
            "or a list), in place of the deck's.")
      .Path(
          "generate.output", "",
          "Texts of generate.file, one JSON object a line, in the order of the prompts: id, "
          "prompt, text, tokens (ids), reason (length, stop, eos), log_probability (nats). A file "
          "that exists is refused. Empty: standard output.")
      .Integer("generate.batch", 8, AtLeast(1), "prompts",
               "Prompts of generate.file that each data rank continues at once, and texts that an "
               "evaluation translates at once; their keys and values are planned memory.")
      .Choice(
          "generate.pack_weights", "auto", deck::Choices(kPackings),
          "yes: on CPUs the weights lie in memory a second time, in the order in which products "
          "of 2 to 32 texts at once read them: faster, with the same numbers. auto: where nodes "
          "have the memory.")
      .Integer("generate.tokens", 100, AtLeast(1), "tokens",
               "How many to add; of a translation, the most it has.")
      .Integer("generate.beams", 1, AtLeast(1), "texts",
               "Of a translation: the likeliest of these many beginnings go on from token to token "
               "(beam search). 1: greedy.")
      .Real("generate.length_penalty", 0.6, AtLeast(0), "",
            "Of translations of n tokens found by beams the one with the largest log-probability / "
            "((5 + n) / 6)^length_penalty is taken (Wu et al. 2016). 0: the likeliest one.")
      .Real(
          "generate.temperature", 0.8, AtLeast(0), "",
          "0: greedy, always the likeliest. Translations are not drawn: of no meaning there, like "
          "generate.seed.")
      .Integer("generate.top_k", 0, AtLeast(0), "tokens", "Draw from the k likeliest. 0: from all.")
      .Real("generate.top_p", 1, {0, 1, true, false}, "",
            "Draw from the fewest tokens that hold this much probability.")
      .Integer("generate.seed", 1, Between(0, kLargestSeed), "", "Of the draws.")
      .Real("generate.repetition_penalty", 1, deck::Above(0), "",
            "Logits of tokens that prompt and text have are divided by this, negative ones "
            "multiplied (Keskar et al. 2019). 1: none.")
      .Text("generate.stop", "",
            "Strings that end a text and are left out of it, with | between them; \\n, \\t, \\\\, "
            "\\| are a newline, a tab, a backslash, a bar.")
      .Switch("generate.stop_at_eos", false, "A text ends at an <eos>, which is left out of it.")
      .Switch("generate.start_with_eos", true,
              "The model sees an <eos> before a prompt, as before each document in training.")
      .Exclusive({"generate.prompt", "generate.file"});
}

// Values, not whether they were given: the deck of a run gives all keys.
void CheckGenerate(const deck::Deck& deck, bool translates) {
  if (!translates) {
    if (deck.Integer("generate.beams") == 1) return;
    throw deck.Complain("generate.beams", "this model continues texts, it does not translate",
                        "Leave this key out.");
  }
  const std::array<std::pair<const char*, bool>, 5> of_decoders = {
      {{"generate.top_k", deck.Integer("generate.top_k") != 0},
       {"generate.top_p", deck.Real("generate.top_p") != 1},
       {"generate.repetition_penalty", deck.Real("generate.repetition_penalty") != 1},
       {"generate.stop", !deck.Text("generate.stop").empty()},
       {"generate.start_with_eos", !deck.Switch("generate.start_with_eos")}}};
  for (const auto& [key, asked] : of_decoders) {
    if (!asked) continue;
    throw deck.Complain(key, "translations are searched for, not drawn",
                        "Leave this key out; generate.beams and generate.length_penalty are what a "
                        "search has.");
  }
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
  const std::optional<std::vector<std::string>> stop = ReadStops(deck.Text("generate.stop"));
  if (!stop) {
    throw deck.Complain("generate.stop", "not a list of strings",
                        "Separate strings by |, leave none empty, and write \\n, \\t, \\\\ or \\| "
                        "for a newline, a tab, a backslash or a bar.");
  }
  if (!deck.Text("generate.output").empty() && deck.Text("generate.file").empty()) {
    throw deck.Complain("generate.output", "there is no generate.file",
                        "Texts of generate.file go there: name one.");
  }
  return {.prompt = deck.Text("generate.prompt"),
          .tokens = deck.Integer("generate.tokens"),
          .temperature = deck.Real("generate.temperature"),
          .top_k = deck.Integer("generate.top_k"),
          .top_p = deck.Real("generate.top_p"),
          .seed = static_cast<std::uint32_t>(deck.Integer("generate.seed")),
          .repetition_penalty = deck.Real("generate.repetition_penalty"),
          .stop = *stop,
          .stop_at_eos = deck.Switch("generate.stop_at_eos"),
          .start_with_eos = deck.Switch("generate.start_with_eos"),
          .file = deck.Text("generate.file"),
          .output = deck.Text("generate.output"),
          .batch = deck.Text("generate.file").empty() ? 1 : deck.Integer("generate.batch"),
          .texts = deck.Integer("generate.batch"),
          .pack_weights = deck::Pick<PackWeights>(deck.Text("generate.pack_weights"), kPackings),
          .beams = deck.Integer("generate.beams"),
          .length_penalty = deck.Real("generate.length_penalty")};
}

}  // namespace trireme::tasks
