// Tokens in memory on all ranks.
#include "tokens_in_memory.hpp"

#include <string>

namespace trireme::tasks {

namespace {

template <typename T>
void ShareNumbers(const comm::Communicator& world, std::vector<T>& numbers) {
  auto count = static_cast<std::int64_t>(numbers.size());
  world.Broadcast(&count, sizeof count);
  numbers.resize(static_cast<std::size_t>(count));
  world.Broadcast(numbers.data(), count * static_cast<std::int64_t>(sizeof(T)));
}

}  // namespace

void Share(const comm::Communicator& world, Tokens& tokens) {
  ShareNumbers(world, tokens.ids);
  ShareNumbers(world, tokens.documents);
  ShareNumbers(world, tokens.counted);
}

data::TokenFile AsFile(const comm::Communicator& world, const data::TokenFile& like,
                       const Tokens& tokens) {
  data::TokenData data;
  data.vocabulary = like.Words();
  data.tokenizer = like.Tokenizer();
  data.source_sha256 = std::string(64, '0');
  const auto eos = static_cast<std::int32_t>(data.vocabulary.eos);
  // The splits that nobody reads have the least that a file may have.
  data.tokens = {std::vector{eos, eos}, tokens.ids, std::vector{eos, eos}};
  data.documents[1] = tokens.documents;
  data.counted[1] = tokens.counted;
  return data::TokenFile(world, data);
}

}  // namespace trireme::tasks
