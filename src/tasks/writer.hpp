// Writer: an answer to prompts with texts, by a model that continues them, or one that translates.
#ifndef TRIREME_SRC_TASKS_WRITER_HPP_
#define TRIREME_SRC_TASKS_WRITER_HPP_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "prompts.hpp"

namespace trireme::tasks {

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

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_WRITER_HPP_
