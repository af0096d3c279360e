// The [generate] section.
#ifndef TRIREME_TASKS_OPTIONS_HPP_
#define TRIREME_TASKS_OPTIONS_HPP_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::tasks {

// Whether weights lie in memory a second time, in the order in which several texts read them.
enum class PackWeights { kNo, kYes, kAuto };

struct GenerateOptions {
  std::string prompt;       // text to continue; empty: generation starts after an <eos>; "-": stdin
  std::int64_t tokens = 0;  // to add
  double temperature = 1;   // 0: greedy
  std::int64_t top_k = 0;   // 0: all
  double top_p = 1;         // nucleus (Holtzman et al. 2020)
  std::uint32_t seed = 1;   // of the draws
  double repetition_penalty = 1;       // Keskar et al. 2019
  std::vector<std::string> stop = {};  // strings that end a text
  bool stop_at_eos = false;
  bool start_with_eos = true;          // the model sees an <eos> before the prompt
  std::string file = {}, output = {};  // JSONL of prompts and of texts; empty: none
  std::int64_t batch = 1;              // prompts that a data rank continues at once
  std::int64_t texts = 8;              // that it translates at once in an evaluation
  PackWeights pack_weights = PackWeights::kNo;
  bool translates = false;  // prompts are source texts
  // Of a model that translates.
  std::int64_t beams = 1;
  double length_penalty = 0.6;
};

void DeclareGenerate(deck::Schema& schema);  // [generate]

GenerateOptions ReadGenerate(const deck::Deck& deck);  // InputError for a bad generate.stop

// Throws InputError with the deck's line for keys of the other kind of model. translates: of a
// model that does.
void CheckGenerate(const deck::Deck& deck, bool translates);

// Strings of a list with | between them; \n, \t, \\ and \| stand for a newline, a tab, a backslash
// and a bar. Nothing if another letter follows a backslash, or a string is empty.
std::optional<std::vector<std::string>> ReadStops(const std::string& list);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_OPTIONS_HPP_
