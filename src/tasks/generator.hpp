// Texts for many prompts at once, token by token, on all ranks of a grid.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/tasks/evaluate.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::tasks {

// Text from a model, made safe to show.

// The text with control characters (but newline and tab) and bytes that are not UTF-8 replaced by
// U+FFFD: a byte-level model may write anything, and a terminal must survive it.
inline std::string Printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto character = FirstCharacter(text.substr(i));
    const char32_t code = character ? character->code : U'\0';
    if ((code >= 0x20 && code != 0x7F) || code == U'\n' || code == U'\t') {
      out.append(text.substr(i, character->bytes));
      i += character->bytes;
    } else {
      out.append(kReplacementCharacter);
      ++i;
    }
  }
  return out;
}

// The next token of a text: repetition penalty, the choice among the candidates, log-probability.

// Uniform of (0, 1] for the added token number `position` of prompt number `prompt`
// (doc/reference/numerics.md, "Generation").
double DrawOf(std::uint32_t seed, std::int64_t prompt, std::int64_t position);

// Divides the logits of the tokens in `seen` by `penalty`, or multiplies those below 0 by it, each
// once.
void Penalise(std::span<const std::int32_t> seen, double penalty, std::vector<double>& logits);

// Prompts of generate.file and the texts that go with them, as JSON lines.

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
std::vector<Prompt> ReadPrompts(const app::Request& request, const comm::Communicator& world,
                                const GenerateOptions& options);

// One line of generate.output, with its newline.
std::string LineOf(const Prompt& prompt, const Continuation& continuation);

// The text of a continuation while its tokens come: where it ends, and what of it can be shown.

class GrowingText {
 public:
  // before: tokens of the prompt. Both arguments outlive this.
  GrowingText(const data::TokenFile& tokens, std::vector<std::int32_t> before,
              const std::vector<std::string>& stops);
  // True if the text has a stop string now, at which it ends.
  bool Add(std::span<const std::int32_t> tokens);
  const std::string& Text() const { return text_; }
  // Text added since the last call, without an unfinished character and without what may be the
  // beginning of a stop string; all of it at the end.
  std::string Take(bool end);

 private:
  const data::TokenFile& tokens_;
  std::vector<std::int32_t> ids_;
  const std::vector<std::string>& stops_;
  std::size_t prompt_bytes_;
  std::string text_;
  std::size_t taken_ = 0;  // bytes
};

// Bytes of `text` without an unfinished UTF-8 character at its end.
std::size_t WholeCharacters(const std::string& text);

// Writer: an answer to prompts with texts, by a model that continues them, or one that translates.

class Writer {
 public:
  virtual ~Writer() = default;

  // Fills in the prompt's ids. Throws InputError naming the prompt's place for what the model
  // cannot take.
  virtual void Encode(Prompt& prompt) const = 0;
  // On the first rank of replica 0: pieces of the first prompt's text, as they come.
  using OnText = std::function<void(const std::string& piece)>;
  // Collective over the grid, whose ranks pass the same prompts, with ids. Prompt i is answered by
  // data rank i % D: on its ranks result i is there, unless Stopped(). AgreedError if a prediction
  // is not finite.
  virtual std::vector<std::optional<Continuation>> Run(std::span<const Prompt> prompts,
                                                       const OnText& on_text = {}) = 0;
  // Whether the last Run ended early, because a rank was asked to.
  virtual bool Stopped() const = 0;
};

// Each data replica has slots, in each of which it continues a prompt; a slot that is free takes
// the replica's next one. A turn is one more token of each: the model sees a new prompt as a whole
// and keeps its keys and values, and from then on one token. When a text is longer than the model's
// sequences, the model sees its last tokens as a whole, in every turn: positions have moved.
class Generator : public Writer {
 public:
  struct Setup {
    model::ParallelModel& model;
    const data::TokenFile& tokens;
    std::int64_t slots = 1;         // of a data rank; with a cache, as many as that has
    std::function<bool()> stopped;  // whether this rank was asked to stop
  };
  explicit Generator(Setup setup);

  // InputError also for nothing to begin with.
  void Encode(Prompt& prompt) const override;
  std::vector<std::optional<Continuation>> Run(std::span<const Prompt> prompts,
                                               const OnText& on_text = {}) override;
  bool Stopped() const override { return stopped_; }

 private:
  // A prompt that is being continued.
  struct Sequence {
    const Prompt* prompt = nullptr;
    std::size_t place = 0;  // among the results
    std::int32_t slot = 0;
    std::vector<std::int32_t> ids = {};  // all that the model has to see, the newest last
    std::int64_t kept = 0;               // positions in the cache
    std::vector<std::int32_t> added = {};
    double log_probability = 0;
    std::optional<GrowingText> text = {};  // if it has stop strings or is shown
    bool shown = false;
  };
  // The passes of a turn: entries for the model, and the sequences whose next tokens they give.
  struct Turn : TurnPasses {
    std::vector<Sequence*> order;
  };
  struct Chosen {
    double token = 0, log_probability = 0, finite = 1;
  };

  bool Caches() const { return setup_.model.Plan().cache_slots > 0; }
  void Fill();
  bool IsWhole(const Sequence& sequence) const;
  data::Entry WholeEntry(std::span<Sequence* const> sequences) const;
  void AddEntry(Turn& turn, data::Entry entry, std::span<Sequence* const> sequences) const;
  Turn MakeTurn();
  void RunTurn(Turn& turn, std::int64_t entries);
  void RunAlone(std::int64_t turns);  // without a cache
  Chosen ChosenFor(const Sequence& sequence, std::span<const double> logits) const;
  void Append(Sequence& sequence, const Chosen& chosen);
  void Finish(Sequence& sequence, End end);

  const Setup setup_;
  std::span<const Prompt> prompts_;
  OnText on_text_;
  std::vector<std::optional<Continuation>> results_;
  std::size_t next_ = 0;                           // prompt of this replica that waits
  std::vector<std::unique_ptr<Sequence>> active_;  // [slots]; null: free
  bool finite_ = true, stopped_ = false;
};

}  // namespace trireme::tasks
