// Reads byte-level BPE tokenizers: tokenizer.json of Hugging Face's `tokenizers`, component by
// component, or GPT-2's vocab.json and merges.txt.
#include <fmt/ranges.h>
#include <algorithm>
#include <sstream>

#include "bpe.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"

namespace trireme::data {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// A part of a tokenizer.json, with its path for messages. A view: the JSON must outlive it. A wrong
// type or a missing member is an InputError (exit code 2) that names the path.
class Component {
 public:
  // For messages: where names the file; path leads from the JSON's root to the part ("" at the
  // root).
  Component(const nlohmann::json& json, std::string where, std::string path)
      : json_(json), where_(std::move(where)), path_(std::move(path)) {}

  // "tokenizer.json: pre_tokenizer.pretokenizers[1]".
  std::string Where() const { return path_.empty() ? where_ : where_ + ": " + path_; }
  Error Complain(const std::string& what) const { return InputError(Where() + ": " + what); }

  // Whether there is such a member and it is not null.
  bool Has(const std::string& name) const {
    if (!json_.is_object()) throw Complain("no object");
    const auto member = json_.find(name);
    return member != json_.end() && !member->is_null();
  }
  Component At(const std::string& name) const {
    const std::string path = path_.empty() ? name : path_ + "." + name;
    if (!Has(name)) throw InputError(fmt::format("{}: {} is missing", where_, path));
    return {json_.at(name), where_, path};
  }
  std::vector<Component> Elements() const {
    if (!json_.is_array()) throw Complain("no list");
    std::vector<Component> elements;
    elements.reserve(json_.size());
    for (std::size_t i = 0; i < json_.size(); ++i) {
      elements.emplace_back(json_[i], where_, fmt::format("{}[{}]", path_, i));
    }
    return elements;
  }
  std::vector<std::pair<std::string, Component>> Members() const {
    if (!json_.is_object()) throw Complain("no object");
    std::vector<std::pair<std::string, Component>> members;
    members.reserve(json_.size());
    for (const auto& [name, value] : json_.items()) {
      members.emplace_back(name, Component(value, where_, fmt::format("{}['{}']", path_, name)));
    }
    return members;
  }

  bool IsText() const { return json_.is_string(); }
  std::string Text() const { return Value<std::string>(json_.is_string(), "no text"); }
  std::int64_t Integer() const {
    return Value<std::int64_t>(json_.is_number_integer(), "no integer");
  }
  double Number() const { return Value<double>(json_.is_number(), "no number"); }
  // A boolean member, or `otherwise` if there is none.
  bool Flag(const std::string& name, bool otherwise) const {
    if (!Has(name)) return otherwise;
    const Component member = At(name);
    return member.Value<bool>(member.json_.is_boolean(), "neither true nor false");
  }
  // The member's text. Throws unless it is one of the supported ones.
  std::string TextAmong(const std::string& name, const std::vector<std::string>& supported) const {
    const Component member = At(name);
    std::string text = member.Text();
    if (std::find(supported.begin(), supported.end(), text) != supported.end()) return text;
    throw member.Complain(
        fmt::format("'{}' is not supported, only '{}'", text, fmt::join(supported, "', '")));
  }

 private:
  template <typename T>
  T Value(bool good, const char* fault) const {
    if (!good) throw Complain(fault);
    return json_.get<T>();
  }

  const nlohmann::json& json_;
  std::string where_, path_;
};

constexpr std::int64_t kMostIds = std::int64_t{1} << 24;

// Patterns of Llama 3 and Qwen2.
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::int32_t IdFrom(const Component& id) {
  const std::int64_t value = id.Integer();
  if (value < 0 || value >= kMostIds) {
    throw id.Complain(fmt::format("the id {} is not in [0, {})", value, kMostIds));
  }
  return static_cast<std::int32_t>(value);
}

void ReadVocabulary(const Component& entries, BpeVocabulary& vocabulary) {
  for (const auto& [name, id] : entries.Members()) vocabulary.ids[name] = IdFrom(id);
}

// Splits a merge, "a b", into its symbols.
std::pair<std::string, std::string> MergeOf(const std::string& line, const std::string& where) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string::npos || line.find(' ', blank + 1) != std::string::npos) {
    throw InputError(fmt::format("{}: '{}' is not a merge of two symbols", where, line));
  }
  return {line.substr(0, blank), line.substr(blank + 1)};
}

void ReadModel(const Component& model, BpeVocabulary& vocabulary) {
  const bool unigram = model.Has("type") && model.At("type").Text() == "Unigram";
  if (unigram || model.Flag("byte_fallback", false)) {
    throw InputError(model.Where() + (unigram ? ".type: 'Unigram'" : ".byte_fallback: true") +
                         ": this is a SentencePiece model in another form (as T5's and Llama 2's)",
                     "Name the tokenizer.model or spiece.model that is published with it, and set "
                     "tokenize.kind = sentencepiece.");
  }
  // Old files have no type.
  if (model.Has("type")) model.TextAmong("type", {"BPE"});
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.Has(name)) model.TextAmong(name, {""});
  }
  if (model.Has("dropout") && model.At("dropout").Number() != 0) {
    throw model.At("dropout").Complain("dropout of merges is not supported");
  }
  vocabulary.ignore_merges = model.Flag("ignore_merges", false);
  vocabulary.fuse_unk = model.Flag("fuse_unk", false);
  ReadVocabulary(model.At("vocab"), vocabulary);
  for (const Component& merge : model.At("merges").Elements()) {
    if (merge.IsText()) {
      vocabulary.merges.push_back(MergeOf(merge.Text(), merge.Where()));
      continue;
    }
    const std::vector<Component> pair = merge.Elements();
    if (pair.size() != 2) throw merge.Complain("no pair");
    vocabulary.merges.emplace_back(pair[0].Text(), pair[1].Text());
  }
  if (!model.Has("unk_token")) return;
  const auto unk = vocabulary.ids.find(model.At("unk_token").Text());
  if (unk != vocabulary.ids.end()) {
    vocabulary.unk = unk->second;
    return;
  }
  // If every byte has an entry, unk is never needed.
  for (const std::string& byte : ByteAlphabet()) {
    if (vocabulary.ids.contains(byte)) continue;
    throw model.At("unk_token")
        .Complain(fmt::format("'{}' is not in the vocabulary, and byte '{}' has no entry there",
                              model.At("unk_token").Text(), byte));
  }
}

void ReadNormalizer(const Component& normalizer, BpeDefinition& definition) {
  if (normalizer.TextAmong("type", {"NFC", "Sequence"}) == "NFC") {
    definition.form_c = true;
    return;
  }
  for (const Component& step : normalizer.At("normalizers").Elements()) {
    ReadNormalizer(step, definition);
  }
}

PatternSplit SplitOf(const Component& step) {
  const Component pattern = step.At("pattern");
  const bool regex = pattern.Has("Regex");
  const Component text = pattern.At(regex ? "Regex" : "String");
  const bool removed = step.TextAmong("behavior", {"Isolated", "Removed"}) == "Removed";
  const bool invert = step.Flag("invert", false);
  return {.pattern = Pattern(regex ? text.Text() : QuotePattern(text.Text()), text.Where()),
          .matches = !removed || invert,
          .between = !removed || !invert};
}

// Reads a pre-tokenizer. Returns true once ByteLevel was read, which must come last.
bool ReadPreTokenizer(const Component& step, BpeDefinition& definition) {
  const std::string type = step.TextAmong("type", {"ByteLevel", "Split", "Digits", "Sequence"});
  if (type == "Split") {
    definition.splits.push_back(SplitOf(step));
    return false;
  }
  if (type == "Digits") {
    const bool single = step.Flag("individual_digits", false);
    definition.splits.push_back({.pattern = Pattern(single ? "\\p{N}" : "\\p{N}+", step.Where())});
    return false;
  }
  if (type == "ByteLevel") {
    definition.add_prefix_space = step.Flag("add_prefix_space", true);
    definition.prefix_space_before = definition.splits.size();
    if (step.Flag("use_regex", true)) {
      definition.splits.push_back({.pattern = Pattern(kGpt2Pattern, step.Where())});
    }
    return true;
  }
  bool bytes = false;
  for (const Component& part : step.At("pretokenizers").Elements()) {
    if (bytes) throw part.Complain("nothing is supported after ByteLevel");
    bytes = ReadPreTokenizer(part, definition);
  }
  return bytes;
}

void AppendIds(const Component& ids, std::vector<std::int32_t>& list) {
  for (const Component& id : ids.Elements()) list.push_back(IdFrom(id));
}

void ReadPostProcessor(const Component& step, BpeDefinition& definition) {
  const std::string type = step.TextAmong("type", {"ByteLevel", "TemplateProcessing", "Sequence"});
  if (type == "Sequence") {
    for (const Component& part : step.At("processors").Elements()) {
      ReadPostProcessor(part, definition);
    }
  }
  if (type != "TemplateProcessing") return;
  bool after = false;
  for (const Component& part : step.At("single").Elements()) {
    if (part.Has("Sequence")) {
      after = true;
      continue;
    }
    const std::string name = part.At("SpecialToken").At("id").Text();
    AppendIds(step.At("special_tokens").At(name).At("ids"),
              after ? definition.suffix : definition.prefix);
  }
}

void RequireByteLevelDecoder(const Component& decoder) {
  if (decoder.TextAmong("type", {"ByteLevel", "Sequence"}) == "ByteLevel") return;
  for (const Component& part : decoder.At("decoders").Elements()) RequireByteLevelDecoder(part);
}

// Id that `tokenizers` gives to an added token: that of a vocabulary entry or an earlier token with
// the same content, otherwise the next one after all ids.
std::int32_t IdOfAdded(const std::string& content, const BpeDefinition& definition) {
  const auto entry = definition.vocabulary.ids.find(content);
  if (entry != definition.vocabulary.ids.end()) return entry->second;
  auto next = static_cast<std::int32_t>(definition.vocabulary.ids.size());
  for (const AddedToken& token : definition.added) {
    if (token.content == content) return token.id;
    next = std::max(next, token.id + 1);
  }
  return next;
}

void ReadAdded(const Component& token, BpeDefinition& definition) {
  if (token.Flag("single_word", false)) {
    throw token.At("single_word").Complain("it is not supported");
  }
  AddedToken added{.id = IdFrom(token.At("id")),
                   .content = token.At("content").Text(),
                   .lstrip = token.Flag("lstrip", false),
                   .rstrip = token.Flag("rstrip", false),
                   .normalized = token.Flag("normalized", true)};
  if (added.content.empty()) throw token.At("content").Complain("an added token is empty");
  const std::int32_t id = IdOfAdded(added.content, definition);
  if (id != added.id) {
    throw token.At("id").Complain(
        fmt::format("'{}' has id {} here, but {} by the vocabulary and the tokens before it",
                    added.content, added.id, id));
  }
  definition.added.push_back(std::move(added));
}

nlohmann::json Parsed(const Files& files, const std::string& name, const std::string& where) {
  nlohmann::json json = nlohmann::json::parse(files.at(name), nullptr, false);
  if (!json.is_discarded()) return json;
  throw InputError(fmt::format("{}: {} is not valid JSON", where, name));
}

BpeDefinition FromJson(const Files& files, const std::string& where) {
  const nlohmann::json json = Parsed(files, "tokenizer.json", where);
  const Component root(json, where, "");
  BpeDefinition definition;
  ReadModel(root.At("model"), definition.vocabulary);
  if (root.Has("normalizer")) ReadNormalizer(root.At("normalizer"), definition);
  if (!root.Has("pre_tokenizer") || !ReadPreTokenizer(root.At("pre_tokenizer"), definition)) {
    throw InputError(where + ": pre_tokenizer has no ByteLevel; only byte-level BPE is supported");
  }
  if (root.Has("post_processor")) ReadPostProcessor(root.At("post_processor"), definition);
  if (root.Has("decoder")) RequireByteLevelDecoder(root.At("decoder"));
  if (!root.Has("added_tokens")) return definition;
  for (const Component& token : root.At("added_tokens").Elements()) ReadAdded(token, definition);
  return definition;
}

BpeDefinition FromVocabularyAndMerges(const Files& files, const std::string& where) {
  const nlohmann::json json = Parsed(files, "vocab.json", where);
  BpeDefinition definition;
  ReadVocabulary(Component(json, where, ""), definition.vocabulary);
  std::istringstream lines(files.at("merges.txt"));
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;
    definition.vocabulary.merges.push_back(
        MergeOf(line, fmt::format("{}: line {} of merges.txt", where, number)));
  }
  definition.splits.push_back({.pattern = Pattern(kGpt2Pattern, where)});
  // GPT-2's only special token, which these files do not mark as special.
  const auto end = definition.vocabulary.ids.find("<|endoftext|>");
  if (end != definition.vocabulary.ids.end()) {
    definition.added.push_back({.id = end->second, .content = end->first});
  }
  return definition;
}

}  // namespace

bool CutsAtSpaces(const std::string& expression) {
  return expression == kGpt2Pattern || expression == kLlama3Pattern || expression == kQwen2Pattern;
}

BpeDefinition ReadBpe(const Files& files, const std::string& where) {
  if (files.contains("tokenizer.json")) return FromJson(files, where);
  for (const char* name : {"vocab.json", "merges.txt"}) {
    if (!files.contains(name)) throw InputError(fmt::format("{}: there is no {}", where, name));
  }
  return FromVocabularyAndMerges(files, where);
}

}  // namespace trireme::data
