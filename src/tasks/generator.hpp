// Texts for many prompts at once, token by token, on all ranks of a grid.
#ifndef TRIREME_SRC_TASKS_GENERATOR_HPP_
#define TRIREME_SRC_TASKS_GENERATOR_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "growing_text.hpp"
#include "prompts.hpp"
#include "trireme/tasks/turns.hpp"
#include "trireme/model/parallel_model.hpp"
#include "writer.hpp"

namespace trireme::tasks {

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
  ~Generator() override;
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  void Encode(Prompt& prompt) const override { EncodePrompt(setup_.tokens, prompt); }
  // Collective over the grid, whose ranks pass the same prompts, with ids. Prompt i is continued by
  // data rank i % D: on its ranks result i is there, unless Stopped(). AgreedError if a prediction
  // is not finite.
  std::vector<std::optional<Continuation>> Run(std::span<const Prompt> prompts,
                                               const OnText& on_text = {}) override;
  bool Stopped() const override { return stopped_; }

 private:
  struct Sequence;
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
  void RunTurn(const Turn& turn, std::int64_t entries);
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

#endif  // TRIREME_SRC_TASKS_GENERATOR_HPP_
