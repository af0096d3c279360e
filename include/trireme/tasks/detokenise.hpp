// WikiText's tokenisation undone, as for GPT-2 (Radford et al. 2019, section 3.1): a reversible
// change of its word-level text into text as people write it.
#ifndef TRIREME_TASKS_DETOKENISE_HPP_
#define TRIREME_TASKS_DETOKENISE_HPP_

#include <string>

namespace trireme::tasks {

// Follows, rule by rule and in their order, the function that Megatron-LM and the Language Model
// Evaluation Harness use, on the whole text.
std::string DetokeniseWikitext(std::string text);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_DETOKENISE_HPP_
