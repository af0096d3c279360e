// Tokens that come from no token file: those of a text, or of questions.
#ifndef TRIREME_SRC_TASKS_EVALUATE_TOKENS_IN_MEMORY_HPP_
#define TRIREME_SRC_TASKS_EVALUATE_TOKENS_IN_MEMORY_HPP_

#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::tasks {

struct Tokens {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> documents;  // offsets of their beginnings, ascending from 0
  std::vector<std::uint8_t> counted;    // [ids]: 0: no target
};

// Collective. Hands root's numbers to all ranks.
void Share(const comm::Communicator& world, Tokens& tokens);

// Collective. Tokens as the valid split of a file without a path, with the vocabulary of `like`.
// All ranks pass the same ones, at least 2.
data::TokenFile AsFile(const comm::Communicator& world, const data::TokenFile& like,
                       const Tokens& tokens);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_EVALUATE_TOKENS_IN_MEMORY_HPP_
