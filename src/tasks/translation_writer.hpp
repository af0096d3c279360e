// Translations of prompts.
#ifndef TRIREME_SRC_TASKS_TRANSLATION_WRITER_HPP_
#define TRIREME_SRC_TASKS_TRANSLATION_WRITER_HPP_

#include "trireme/tasks/pair_evaluator.hpp"
#include "writer.hpp"

namespace trireme::tasks {

// A translation is shown when it is complete: until then another beam may win.
class TranslationWriter : public Writer {
 public:
  // All arguments outlive this.
  TranslationWriter(model::ParallelModel& model, const data::PairFile& pairs,
                    const TranslationOptions& options);

  // InputError also for a text without tokens, and for one that is longer than the model takes.
  void Encode(Prompt& prompt) const override;
  std::vector<std::optional<Continuation>> Run(std::span<const Prompt> prompts,
                                               const OnText& on_text = {}) override;
  bool Stopped() const override { return translator_.Stopped(); }

 private:
  const model::ParallelModel& model_;
  const data::PairFile& pairs_;
  Translator translator_;
};

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_TRANSLATION_WRITER_HPP_
