// Training of SentencePiece models: Kudo and Richardson 2018, arXiv:1808.06226.
#ifndef TRIREME_DATA_TRAIN_HPP_
#define TRIREME_DATA_TRAIN_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

enum class ModelType { kBpe, kUnigram };

// Longest sentence that training takes, in bytes.
inline constexpr std::size_t kLongestSentence = 4192;

// Trains a model of `vocabulary` tokens, those for single bytes, <unk>, <s> and </s> among them, on
// sentences of valid UTF-8; the same sentences give the same bytes. Text stays as it is: no
// normalisation, no blanks removed. Serial. Throws InputError, without naming a key, if the
// sentences do not yield such a model.
Files TrainSentencePiece(const std::vector<std::string>& sentences, ModelType type,
                         std::int64_t vocabulary);

}  // namespace trireme::data

#endif  // TRIREME_DATA_TRAIN_HPP_
