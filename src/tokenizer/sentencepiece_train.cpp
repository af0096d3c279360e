// TrainSentencePiece, by the library.
#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <string_view>
#include <unordered_map>

#include "sentencepiece.hpp"
#include "trireme/base/error.hpp"
#include "trireme/tokenizer/train.hpp"

namespace trireme::tokenizer {

namespace {

class Sentences : public ::sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& sentences) : sentences_(sentences) {}
  bool done() const override { return next_ == sentences_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return sentences_[next_]; }
  ::sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  std::size_t next_ = 0;
};

}  // namespace

Files TrainSentencePiece(const std::vector<std::string>& sentences, ModelType type,
                         std::int64_t vocabulary) {
  if (sentences.empty()) throw InputError("there is no text to train a tokenizer on");
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", type == ModelType::kBpe ? "bpe" : "unigram"},
      {"vocab_size", std::to_string(vocabulary)},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"character_coverage", "0.9995"},
      {"max_sentence_length", std::to_string(kLongestSentence)},
      // Sums over threads depend on their number: always the same one.
      {"num_threads", "4"},
      {"minloglevel", "2"}};
  Sentences iterator(sentences);
  std::string model;
  const auto status = ::sentencepiece::SentencePieceTrainer::Train(settings, &iterator, &model);
  if (!status.ok()) {
    // The library's own place and condition come before its words: "file(line) [condition] words".
    std::string_view words = status.message();
    if (const std::size_t end = words.rfind("] "); end != std::string_view::npos) {
      words.remove_prefix(end + 2);
    }
    throw InputError(
        fmt::format("no model of {} tokens can be trained on these texts: {}", vocabulary, words));
  }
  return {{kSentencePieceFile, std::move(model)}};
}

}  // namespace trireme::tokenizer
