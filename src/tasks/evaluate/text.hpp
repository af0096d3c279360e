// evaluate.text: a text file as one document of tokens.
#ifndef TRIREME_SRC_TASKS_EVALUATE_TEXT_HPP_
#define TRIREME_SRC_TASKS_EVALUATE_TEXT_HPP_

#include "tokens_in_memory.hpp"
#include "trireme/data/text_units.hpp"
#include "trireme/tasks/evaluate_options.hpp"

namespace trireme::tasks {

struct Text {
  Tokens tokens;             // the tokenizer's template or an <eos>, then the text
  data::TextUnits original;  // of the file as it is; unknown: tokens <unk>
  std::int64_t bytes = 0;    // tokenised
};

// Ids of a text after what begins a document: the tokenizer's template, or an <eos> if it has none.
// Returns how many begin it.
std::int64_t EncodeDocument(const data::TokenFile& tokens, std::string_view text,
                            std::vector<std::int32_t>& ids);

// Serial. Throws InputError with the path for a file that cannot be read, is empty, or is not
// UTF-8.
Text ReadEvaluatedText(const EvaluateOptions& options, const data::TokenFile& tokens);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_EVALUATE_TEXT_HPP_
