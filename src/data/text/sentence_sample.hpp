// Sentences for the training of a tokenizer: a sample of bounded size from the train texts.
#ifndef TRIREME_SRC_DATA_TEXT_SENTENCE_SAMPLE_HPP_
#define TRIREME_SRC_DATA_TEXT_SENTENCE_SAMPLE_HPP_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tokenize_texts.hpp"

namespace trireme::data {

inline constexpr std::int64_t kSampleBytes = std::int64_t{64} << 20;

// Lines of the train split's documents, long ones cut at blanks, at most about `most` bytes: of
// larger texts from units at even distances. A pure function of texts and plan. Serial. stop: asked
// now and then; true: RunError. Throws as TokenizeTexts does for faulty texts.
std::vector<std::string> SampleSentences(const TextPlan& plan, const std::function<bool()>& stop,
                                         std::int64_t most = kSampleBytes);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_SENTENCE_SAMPLE_HPP_
