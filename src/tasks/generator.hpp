// Continues many prompts at once, token by token, on all ranks of a grid.
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

// Uniform number in (0, 1] for the new token at `position` (counted from the first one added) of
// prompt number `prompt` (doc/reference/numerics.md, "Generation").
double DrawOf(std::uint32_t seed, std::int64_t prompt, std::int64_t position);

// Applies the repetition penalty once to each different token in `seen`: divides its logit by
// `penalty`, or multiplies a negative logit.
void Penalise(std::span<const std::int32_t> seen, double penalty, std::vector<double>& logits);

struct Prompt {
  std::int64_t number = 0;  // from 0, in the file's order; random draws depend on it
  std::string where;        // place named in messages: "prompts.jsonl:3", "generate.prompt"
  std::string text;
  nlohmann::json id;  // null: none
  GenerateOptions options;
  std::vector<std::int32_t> ids = {};  // tokens of `text`
};

enum class End { kLength, kStop, kEos };
const char* NameOf(End end);  // "length", "stop", "eos"

struct Continuation {
  std::vector<std::int32_t> tokens;  // all chosen tokens, also a final <eos> or stop string
  std::string text;                  // without the final <eos> and the stop string
  double log_probability = 0;        // sum over the tokens, nats, before penalties; 0 if shown
  End end = End::kLength;
};

// Parses prompts in JSONL; skips blank lines. Throws InputError "path:line: ..." for invalid JSON,
// an unknown member, a missing prompt or a value out of range.
std::vector<Prompt> ParsePrompts(std::string_view text, const std::string& path,
                                 const GenerateOptions& options);

// Collective. Rank 0 reads generate.file; the result is the same on all ranks. AgreedError (exit
// code 2) with the deck's line if the file cannot be read or has no prompt.
std::vector<Prompt> ReadPrompts(const app::Request& request, const comm::Communicator& world,
                                const GenerateOptions& options);

// One line of generate.output, with its newline.
std::string LineOf(const Prompt& prompt, const Continuation& continuation);

// A continuation's text while its tokens arrive: where it ends, and how much can be shown.
class GrowingText {
 public:
  // before: the prompt's tokens. `tokens` and `stops` must outlive this.
  GrowingText(const data::TokenFile& tokens, std::vector<std::int32_t> before,
              const std::vector<std::string>& stops);
  // Adds tokens. Returns whether the text now contains a stop string, at which it ends.
  bool Add(std::span<const std::int32_t> tokens);
  const std::string& Text() const { return text_; }
  // Text added since the last call, without an unfinished character or a possible beginning of a
  // stop string at its end. end: the text is complete; returns all of it.
  std::string Take(bool end);

 private:
  const data::TokenFile& tokens_;
  std::vector<std::int32_t> ids_;
  const std::vector<std::string>& stops_;
  std::size_t prompt_bytes_;
  std::string text_;
  std::size_t taken_ = 0;  // bytes of text_ returned by Take so far
};

// Length in bytes of `text` without an unfinished UTF-8 character at its end.
std::size_t WholeCharacters(const std::string& text);

// Writer: answers prompts with texts; a model either continues or translates them.
class Writer {
 public:
  virtual ~Writer() = default;

  // Sets prompt.ids. Throws InputError naming the prompt's place if the model cannot take it.
  virtual void Encode(Prompt& prompt) const = 0;
  // Called on replica 0's first rank with pieces of the first prompt's text as they come.
  using OnText = std::function<void(const std::string& piece)>;
  // Collective over the grid; all ranks pass the same prompts, with ids. Data rank i % D answers
  // prompt i; only its ranks get result i, unless Stopped(). AgreedError if a prediction is not
  // finite.
  virtual std::vector<std::optional<Continuation>> Run(std::span<const Prompt> prompts,
                                                       const OnText& on_text = {}) = 0;
  // Whether the last Run ended early because a rank was asked to stop.
  virtual bool Stopped() const = 0;
};

// Each data replica has slots and continues one prompt in each; a free slot takes the replica's
// next prompt. A turn adds one token to each: the model reads a new prompt as a whole and caches
// its keys and values, then one token per turn. Once a text is longer than the model's sequences,
// the model reads its last tokens as a whole in every turn, because their positions have moved.
class Generator : public Writer {
 public:
  struct Setup {
    model::ParallelModel& model;
    const data::TokenFile& tokens;
    std::int64_t slots = 1;         // per data rank; with a cache, as many as the cache has
    std::function<bool()> stopped;  // whether this rank was asked to stop
  };
  explicit Generator(Setup setup);

  // Throws InputError as Writer does, and for an empty text without generate.start_with_eos.
  void Encode(Prompt& prompt) const override;
  std::vector<std::optional<Continuation>> Run(std::span<const Prompt> prompts,
                                               const OnText& on_text = {}) override;
  bool Stopped() const override { return stopped_; }

 private:
  // A prompt that is being continued.
  struct Sequence {
    const Prompt* prompt = nullptr;
    std::size_t place = 0;  // index among the results
    std::int32_t slot = 0;
    std::vector<std::int32_t> ids = {};  // prompt and added tokens, newest last
    std::int64_t kept = 0;               // positions whose keys and values are cached
    std::vector<std::int32_t> added = {};
    double log_probability = 0;
    std::optional<GrowingText> text = {};  // if the prompt has stop strings or is shown
    bool shown = false;
  };
  // The passes of a turn: entries for the model, and the sequences whose next tokens they predict.
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
  std::size_t next_ = 0;                           // index of this replica's next waiting prompt
  std::vector<std::unique_ptr<Sequence>> active_;  // [slots]; null: free
  bool finite_ = true, stopped_ = false;
};

}  // namespace trireme::tasks
