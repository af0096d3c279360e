// TrainSentencePiece, by the library.
#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <string_view>
#include <unordered_map>

#include "sentencepiece.hpp"
#include "sentencepiece_facts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/train.hpp"

namespace trireme::data {

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

// `required`: characters that are pieces, however seldom they are.
std::string TrainModel(const std::vector<std::string>& sentences, ModelType type,
                       std::int64_t vocabulary, const std::string& required) {
  std::unordered_map<std::string, std::string> settings = {
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
  if (!required.empty()) settings["required_chars"] = required;
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
  return model;
}

// Text comes back from its tokens as it was. U+2581 does not: to a model it is a blank.
void CheckRoundTrip(Tokenizer& made, const std::vector<std::string>& sentences) {
  std::vector<std::int32_t> ids;
  for (const std::string& sentence : sentences) {
    if (sentence.find(kBlank) != std::string::npos) continue;
    ids.clear();
    made.Encode(sentence, ids);
    if (made.Decode(ids) == sentence) continue;
    constexpr std::size_t kShown = 60;
    throw InputError(fmt::format("the trained tokenizer does not give this text back: \"{}{}\"",
                                 sentence.substr(0, kShown), sentence.size() > kShown ? "..." : ""),
                     "Take it out of the texts, or train with another tokenize.vocabulary_size.");
  }
}

}  // namespace

Files TrainSentencePiece(const std::vector<std::string>& sentences, ModelType type,
                         std::int64_t vocabulary) {
  if (sentences.empty()) throw InputError("there is no text to train a tokenizer on");
  const std::string blank(kBlank);
  Files files = {{kSentencePieceFile, TrainModel(sentences, type, vocabulary, "")}};
  std::unique_ptr<Tokenizer> made = MakeSentencePiece(files, "the trained model");
  // The blank before every text has to be a piece. In texts with few blanks (code, DNA) it is too
  // seldom to become one unless it is asked for.
  if (!made->IdOf(blank)) {
    files = {{kSentencePieceFile, TrainModel(sentences, type, vocabulary, blank)}};
    made = MakeSentencePiece(files, "the trained model");
  }
  CheckRoundTrip(*made, sentences);
  return files;
}

}  // namespace trireme::data
