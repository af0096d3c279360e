// RankedWords, ByteVocabulary.
#include "codec_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "words.hpp"

namespace trireme::data {

Vocabulary RankedWords(const std::unordered_map<std::string, std::int64_t>& counts,
                       std::int64_t least) {
  std::vector<std::pair<std::string, std::int64_t>> words;
  for (const auto& [word, count] : counts) {
    if (count >= least && word != kEndOfSentence && word != kUnknown)
      words.emplace_back(word, count);
  }
  std::ranges::sort(words, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  Vocabulary vocabulary{
      .words = {std::string(kEndOfSentence), std::string(kUnknown)}, .eos = 0, .unk = 1};
  for (auto& [word, count] : words) vocabulary.words.push_back(std::move(word));
  return vocabulary;
}

Vocabulary ByteVocabulary() {
  Vocabulary vocabulary{.words = {}, .eos = '\n', .unk = -1};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.words.emplace_back(1, static_cast<char>(byte));
  }
  return vocabulary;
}

}  // namespace trireme::data
