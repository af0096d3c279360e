// SentencePiece models as a Tokenizer: reading, encoding, and training.
#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <charconv>
#include <filesystem>

#include "bpe.hpp"
#include "sentencepiece_model.pb.h"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"

namespace trireme::data {

namespace {

constexpr const char* kSentencePieceFile = "tokenizer.model";  // its name in Files
// U+2581, which stands for a blank within pieces
constexpr std::string_view kBlank = "\xE2\x96\x81";

// Whether the piece has a blank after another character.
bool BlankInside(std::string_view piece) {
  while (piece.starts_with(kBlank)) piece.remove_prefix(kBlank.size());
  return piece.find(kBlank) != std::string_view::npos || piece.find(' ') != std::string_view::npos;
}

// Whether this is a tiktoken file: each line has a token in base64, a blank and the token's number.
bool IsTiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  const std::size_t blank = line.find(' ');
  if (blank == 0 || blank == std::string_view::npos || blank + 1 == line.size()) return false;
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::string_view kBase64 =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  return line.substr(0, blank).find_first_not_of(kBase64) == std::string_view::npos &&
         line.substr(blank + 1).find_first_not_of(kDigits) == std::string_view::npos;
}

std::string WithBlanks(std::string text) {
  for (std::size_t at = text.find(kBlank); at != std::string::npos; at = text.find(kBlank, at)) {
    text.replace(at, kBlank.size(), " ");
  }
  return text;
}

class SentencePiece : public Tokenizer {
 public:
  // Throws InputError naming `where` if the file is not a model.
  SentencePiece(const Files& source, const std::string& where)
      : files_{{kSentencePieceFile, source.at(kSentencePieceFile)}} {
    const std::string& bytes = files_.at(kSentencePieceFile);
    // The library accepts some damaged files, and an empty one, as a model without pieces.
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (IsTiktoken(bytes)) {
      throw InputError(
          where + ": this is a file of tiktoken (Llama 3's, for one), not a SentencePiece model",
          "tokenize.kind = bpe reads the tokenizer.json that is published with it.");
    }
    if (!status.ok() || processor_.GetPieceSize() == 0) {
      throw InputError(where + ": this is not a SentencePiece model",
                       status.ok() ? "It has no pieces." : status.message());
    }
    FindCuts();
  }

  const char* Kind() const override { return "sentencepiece"; }
  const Files& Source() const override { return files_; }
  std::int64_t VocabularySize() const override { return processor_.GetPieceSize(); }

  std::string Piece(std::int32_t id) const override {
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id)) return std::string(1, ByteOf(piece));
    if (processor_.IsControl(id) || processor_.IsUnknown(id) || processor_.IsUnused(id)) {
      return piece;
    }
    return WithBlanks(piece);
  }

  std::optional<std::int32_t> IdOf(std::string_view name) const override {
    const int id = processor_.PieceToId(name);
    // The library returns <unk> for unknown names.
    if (processor_.IdToPiece(id) != name) return std::nullopt;
    return id;
  }
  std::optional<std::int32_t> Eos() const override { return Known(processor_.eos_id()); }
  std::optional<std::int32_t> Unk() const override { return Known(processor_.unk_id()); }

  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const auto status = processor_.Encode(text, &found_);
    if (!status.ok()) throw RunError(fmt::format("SentencePiece: {}", status.message()));
    ids.insert(ids.end(), found_.begin(), found_.end());
  }
  // Drops the blank at the cut if the library puts one before each text anyway.
  void EncodeRest(std::string_view text, std::vector<std::int32_t>& ids) override {
    Encode(blank_first_ && text.starts_with(' ') ? text.substr(1) : text, ids);
  }

  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) throw RunError(fmt::format("SentencePiece: {}", status.message()));
    return text;
  }
  // 0 unless cuts_before_blanks_: normalisation or pieces of several words may cross any place.
  std::size_t SafeCut(std::string_view text) const override {
    if (!cuts_before_blanks_ || text.size() < 3) return 0;
    const auto is_blank = [&](std::size_t at) { return text[at] == ' '; };
    for (std::size_t cut = text.size() - 1; --cut > 0;) {
      if (!is_blank(cut) || is_blank(cut - 1) || is_blank(cut + 1)) continue;
      if (text.substr(0, cut).ends_with(kBlank) || text.substr(cut + 1).starts_with(kBlank)) {
        continue;
      }
      // What follows the blank may be the beginning of U+2581.
      if (text.size() - cut - 1 < kBlank.size() && kBlank.starts_with(text.substr(cut + 1)))
        continue;
      return cut;
    }
    return 0;
  }

 private:
  // Finds where texts may be cut, from facts in the model's bytes that the library does not tell.
  void FindCuts() {
    constexpr int kBpe = 2;
    proto::SentencePieceModel model;
    if (!model.ParseFromString(files_.at(kSentencePieceFile))) return;
    const auto& trainer = model.trainer_spec();
    const auto& normalizer = model.normalizer_spec();
    bool inside = false, blank = false;
    for (const auto& piece : model.pieces()) {
      inside = inside || BlankInside(piece.piece());
      blank = blank || piece.piece() == kBlank;
    }
    cuts_before_blanks_ = trainer.model_type() == kBpe && !trainer.treat_whitespace_as_suffix() &&
                          !normalizer.remove_extra_whitespaces() &&
                          normalizer.escape_whitespaces() &&
                          normalizer.precompiled_charsmap().empty() && !inside && blank;
    blank_first_ = normalizer.add_dummy_prefix();
  }

  static std::optional<std::int32_t> Known(int id) {
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }
  // The byte of a piece "<0xAB>".
  static char ByteOf(const std::string& piece) {
    unsigned value = 0;
    if (piece.size() == 6) std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    return static_cast<char>(value);
  }

  ::sentencepiece::SentencePieceProcessor processor_;
  Files files_;
  // Whether a text may be cut before a blank between two other characters: the model is BPE, takes
  // text unchanged, and has no piece with a blank after another character.
  bool cuts_before_blanks_ = false;
  bool blank_first_ = true;  // the model puts a blank before each text (add_dummy_prefix)
  std::vector<int> found_;   // ids of the last text; the memory is reused
};

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;  // of a tokenizer's file

std::string Contents(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw InputError(path.string() + ": there is no such file", AdviceOnMissing(path.string()));
  }
  RefuseForeignFile(path.string());
  return ReadText(path.string(), kMostBytes);
}

// Throws InputError for files whose names show that they are something else.
void RefuseOthers(const std::filesystem::path& path, TokenizerKind kind) {
  const std::string name = path.filename().string();
  if (kind == TokenizerKind::kSentencePiece) {
    if (!name.ends_with(".json")) return;
    throw InputError(path.string() + ": is not a SentencePiece model",
                     "tokenize.kind = bpe reads a tokenizer.json.");
  }
  if (name == "vocab.json" || name == "merges.txt") {
    throw InputError(path.string() + ": is one half of a tokenizer",
                     "Name the folder that holds vocab.json and merges.txt.");
  }
  if (name.ends_with(".model") || name.ends_with(".tiktoken")) {
    throw InputError(
        path.string() + ": is not a tokenizer.json",
        "tokenize.kind = sentencepiece reads SentencePiece's models; of a tiktoken file "
        "use the tokenizer.json that is published with it.");
  }
}

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

// required: characters that become pieces, however rare they are.
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
      // The model depends on the number of threads (order of sums), so that number is fixed.
      {"num_threads", "4"},
      {"minloglevel", "2"}};
  if (!required.empty()) settings["required_chars"] = required;
  Sentences iterator(sentences);
  std::string model;
  const auto status = ::sentencepiece::SentencePieceTrainer::Train(settings, &iterator, &model);
  if (!status.ok()) {
    // The message has the form "file(line) [condition] words"; only the words are kept.
    std::string_view words = status.message();
    if (const std::size_t end = words.rfind("] "); end != std::string_view::npos) {
      words.remove_prefix(end + 2);
    }
    throw InputError(
        fmt::format("no model of {} tokens can be trained on these texts: {}", vocabulary, words));
  }
  return model;
}

// Throws InputError unless each sentence is decoded to itself. Those with U+2581 are skipped: to a
// model it is a blank.
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

Files ReadFiles(const std::string& path, TokenizerKind kind) {
  namespace fs = std::filesystem;
  std::error_code error;
  const char* const own =
      kind == TokenizerKind::kSentencePiece ? kSentencePieceFile : "tokenizer.json";
  if (!fs::is_directory(path, error)) {
    std::string contents = Contents(path);
    RefuseOthers(path, kind);
    return {{own, std::move(contents)}};
  }
  const fs::path folder(path);
  if (fs::exists(folder / own, error)) return {{own, Contents(folder / own)}};
  if (kind == TokenizerKind::kSentencePiece) {
    throw InputError(fmt::format("{}: there is no {} in this folder", path, own),
                     "Name the model's file.");
  }
  Files files;
  for (const char* name : {"vocab.json", "merges.txt"}) {
    if (!fs::exists(folder / name, error)) {
      throw InputError(path + ": neither tokenizer.json nor " + name + " lies in this folder");
    }
    files[name] = Contents(folder / name);
  }
  return files;
}

std::unique_ptr<Tokenizer> Make(const Files& files, const std::string& where) {
  if (!files.contains(kSentencePieceFile)) return MakeBpe(files, where);
  return std::make_unique<SentencePiece>(files, where);
}

Files TrainSentencePiece(const std::vector<std::string>& sentences, ModelType type,
                         std::int64_t vocabulary) {
  if (sentences.empty()) throw InputError("there is no text to train a tokenizer on");
  const std::string blank(kBlank);
  Files files = {{kSentencePieceFile, TrainModel(sentences, type, vocabulary, "")}};
  std::unique_ptr<Tokenizer> made = Make(files, "the trained model");
  // The blank before every text must be a piece. In texts with few blanks (code, DNA) it is too
  // rare to become one unless it is required.
  if (!made->IdOf(blank)) {
    files = {{kSentencePieceFile, TrainModel(sentences, type, vocabulary, blank)}};
    made = Make(files, "the trained model");
  }
  CheckRoundTrip(*made, sentences);
  return files;
}

}  // namespace trireme::data
