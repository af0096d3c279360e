// Prompts of generate.file and the texts that go with them, as JSON lines.
#ifndef TRIREME_SRC_TASKS_PROMPTS_HPP_
#define TRIREME_SRC_TASKS_PROMPTS_HPP_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/tasks/options.hpp"
#include "trireme/app/job.hpp"

namespace trireme::tasks {

struct Prompt {
  std::int64_t number = 0;  // from 0, in the order of the file: a coordinate of the draws
  std::string where;        // "prompts.jsonl:3", "generate.prompt"
  std::string text;
  nlohmann::json id;  // null: none
  GenerateOptions options;
  std::vector<std::int32_t> ids = {};  // of the text
};

enum class End { kLength, kStop, kEos };
const char* NameOf(End end);  // "length", "stop", "eos"

struct Continuation {
  std::vector<std::int32_t> tokens;  // all that were chosen, an <eos> or a stop string's included
  std::string text;                  // without <eos> at the end and stop string
  double log_probability = 0;        // of the tokens, in nats, by the model's own distribution
  End end = End::kLength;
};

// Prompts of a JSONL text. Blank lines are passed over. Throws InputError "path:line: ..." for what
// is not JSON, an unknown member, a missing prompt, a value out of its range.
std::vector<Prompt> ParsePrompts(std::string_view text, const std::string& path,
                                 const GenerateOptions& options);

// Collective. Reads generate.file on rank 0; the same on all ranks. AgreedError (exit code 2) with
// the deck's line for a file that cannot be read or has no prompt.
std::vector<Prompt> ReadPrompts(const app::Job& job, const GenerateOptions& options);

// Fills in the prompt's ids. Throws InputError naming the prompt's place for text that the
// tokenizer refuses, and for nothing to begin with.
void EncodePrompt(const data::TokenFile& tokens, Prompt& prompt);

// One line of generate.output, with its newline.
std::string LineOf(const Prompt& prompt, const Continuation& continuation);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_PROMPTS_HPP_
