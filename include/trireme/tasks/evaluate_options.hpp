// The [evaluate] section.
#ifndef TRIREME_TASKS_EVALUATE_OPTIONS_HPP_
#define TRIREME_TASKS_EVALUATE_OPTIONS_HPP_

#include <cstdint>
#include <string>

#include "trireme/deck/deck.hpp"

namespace trireme::tasks {

// Changes to a text before it is tokenised.
enum class Detokenise { kNone, kWikitext };

struct EvaluateOptions {
  std::int64_t stride = 0;  // tokens between the beginnings of windows; 0: their length
  std::string text;         // path; empty: no text but the token file's
  Detokenise detokenise = Detokenise::kNone;
  bool baselines = false;
  // Paths; empty: none.
  std::string documents;  // HDF5, written
  std::string choices;    // JSONL, read
  std::string output;     // JSONL, written
  std::string results;    // JSON, written
  bool overwrite = false;
};

void DeclareEvaluate(deck::Schema& schema);  // [evaluate]

EvaluateOptions ReadEvaluate(const deck::Deck& deck);

// Throws InputError with the deck's line for keys that do not fit together, files that are not
// there and files that cannot be written. Serial. length: data.sequence_length.
void CheckEvaluate(const EvaluateOptions& options, const deck::Deck& deck, std::int64_t length);
// The same of a model that translates, and for keys that it has no part in.
void CheckPairs(const EvaluateOptions& options, const deck::Deck& deck);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_EVALUATE_OPTIONS_HPP_
