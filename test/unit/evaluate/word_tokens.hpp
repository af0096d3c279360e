// Token files in memory for the tests of evaluation.
#ifndef TRIREME_TEST_UNIT_EVALUATE_WORD_TOKENS_HPP_
#define TRIREME_TEST_UNIT_EVALUATE_WORD_TOKENS_HPP_

#include <mpi.h>

#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::test {

inline comm::Communicator Self() { return comm::Communicator::Adopt(MPI_COMM_SELF); }

// Words as ids in their order; the first one is <eos>, the second one <unk>.
inline data::TokenData WordData(std::vector<std::string> words) {
  data::TokenData data;
  data.vocabulary.words = std::move(words);
  data.vocabulary.eos = 0;
  data.vocabulary.unk = 1;
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, '0');
  data.tokens = {std::vector{0, 0}, std::vector{0, 0}, std::vector{0, 0}};
  return data;
}

// The 256 bytes.
inline data::TokenData ByteData() {
  data::TokenData data = WordData({});
  for (int byte = 0; byte < 256; ++byte) {
    data.vocabulary.words.emplace_back(1, static_cast<char>(byte));
  }
  data.vocabulary.eos = '\n';
  data.vocabulary.unk = -1;
  data.tokenizer = "byte";
  return data;
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_UNIT_EVALUATE_WORD_TOKENS_HPP_
