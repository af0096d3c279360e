// The keys of [data] and [tokenize].
#include "trireme/data/options.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/deck/keys.hpp"

namespace trireme::data {

namespace {

constexpr deck::Names<4> kStagings = {"none", "shared_memory", "stream", "node"};
constexpr deck::Names<6> kKinds = {"word", "byte", "harbour", "numerals", "bpe", "sentencepiece"};
constexpr deck::Names<2> kModelTypes = {"bpe", "unigram"};
constexpr deck::Names<3> kDocuments = {"file", "line", "blank_line"};
constexpr deck::Names<2> kInvalid = {"error", "replace"};
constexpr deck::Names<2> kMissing = {"error", "skip"};
constexpr deck::Names<2> kLongPairs = {"refuse", "leave_out"};

// Limit for lengths and counts of windows: the product of two stays below 2^63.
constexpr double kLargestCount = std::numeric_limits<std::int32_t>::max();
constexpr double kMostTypes = 1 << 24, kMostReadAhead = 1000;  // types in a vocabulary; steps
constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
constexpr double kLargestCorpus = 0x1p40;  // tokens: more than a node's memory holds

// The options, and the texts of the keys that hold lists.
struct Asked : Options {
  std::string mixture_text, validation_text;
};

void BindData(deck::Keys keys, Asked& o) {
  keys.Section("data", "The token file, and how training takes windows from it.")
      .Path("data.file", o.file,
            "Token file (HDF5): task = tokenize writes it, the other tasks read it.")
      .Path("data.mixture", o.mixture_text,
            "Token files of one vocabulary to train on together: books.h5:0.7, code.h5:0.3 "
            "(weights; an epoch has as many windows as all files together) or books.h5*2, "
            "code.h5*0.5 (how often an epoch uses each window). The first file gives the valid and "
            "test splits. Empty: data.file alone.")
      .Exclusive({"data.file", "data.mixture"})
      .Path("data.validation", o.validation_text,
            "Sets to validate on in place of the token file's own valid split: books:books.h5, "
            "code:code.h5 (a name and a token file, whose valid split is used). Each has its own "
            "line; the first one decides on the best checkpoint. Empty: that split.")
      .Integer(
          "data.sequence_length", o.sequence_length, deck::Between(1, kLargestCount), "tokens",
          "Targets per window: how far back a prediction can look. For pairs: the longest text.")
      .Integer("data.stride", o.stride, deck::Between(0, kLargestCount), "tokens",
               "Distance between the beginnings of neighbouring windows. 0: the sequence length, "
               "so that each target is used once per epoch.")
      .Integer("data.batch", o.batch, deck::Between(1, kLargestCount), "windows",
               "Windows per step, over all ranks; any number. For pairs: the upper limit.")
      .Integer("data.batch_tokens", o.batch_tokens, deck::Between(0, kLargestCount), "tokens",
               "For pairs: limit of source tokens and of target tokens per step, with padding. 0: "
               "no limit.")
      .Integer("data.micro_batch", o.micro_batch, deck::Between(0, kLargestCount), "windows",
               "Windows or pairs that a rank computes at once. 0: chosen by the program.")
      .Choice(
          "data.long_pairs", o.long_pairs, kLongPairs,
          "Pairs with a text beyond data.sequence_length. refuse: an error; leave_out: dropped.")
      .Choice("data.staging", o.staging, kStagings,
              "Where the tokens are kept. none: one copy per rank in memory; shared_memory: one "
              "copy per node; stream: only in the file, from which windows are read ahead of their "
              "use; node: likewise, from a copy in a folder of each node.")
      .Path("data.staging_path", o.staging_path,
            "Folder for the copies of data.staging = node. Empty: /dev/shm or, if a node has no "
            "room for them there, $TMPDIR.")
      .Integer("data.read_ahead", o.read_ahead, deck::Between(1, kMostReadAhead), "steps",
               "How many steps ahead windows are read with data.staging = stream or node.")
      .Switch("data.document_mask", o.document_mask,
              "yes: attention does not cross the ends of documents, positions restart in each, and "
              "its first token is not a target; needs /train/documents in the token file.");
}

void BindText(deck::Keys keys, TokenizeOptions& o) {
  keys.Section("tokenize", "Making the token file from texts (job.task = tokenize).")
      .Choice("tokenize.kind", o.kind, kKinds,
              "word: blanks separate tokens, <eos> ends each line. byte: the 256 bytes. harbour: a "
              "built-in corpus of known entropy, made from a grammar. numerals: built-in pairs to "
              "translate, numbers as digits and as English and German words. bpe: byte-level BPE "
              "by the files of tokenize.tokenizer, on all ranks. sentencepiece: the same by a "
              "SentencePiece model, which can be trained.")
      .Path("tokenize.train", o.texts[0],
            "Texts of the train split: files and globs, with commas between them. A .jsonl file "
            "holds one record per line; gzip and zstd files are unpacked. -: standard input.")
      .Path("tokenize.valid", o.texts[1],
            "Texts of the valid split, likewise. Empty: see tokenize.valid_fraction.")
      .Path("tokenize.test", o.texts[2], "Texts of the test split, likewise.")
      .Switch("tokenize.lowercase", o.lowercase, "For kind = word: folds the text to lower case.")
      .Integer("tokenize.min_count", o.min_count, deck::AtLeast(1), "occurrences",
               "For kind = word: rarer words of the train split become <unk>.")
      .Switch("tokenize.overwrite", o.overwrite,
              "Replaces data.file if it exists. no: an existing file is refused.")
      .Integer(
          "tokenize.harbour_tokens", o.harbour_tokens, deck::Between(2, kLargestCorpus), "tokens",
          "For kind = harbour: size of the train split; valid and test get a tenth of it each.")
      .Integer("tokenize.harbour_seed", o.harbour_seed, deck::Between(0, kLargestSeed), "",
               "For kind = harbour: another seed gives another corpus of the same language.");
}

void BindSubword(deck::Keys keys, TokenizeOptions& o) {
  keys.Path("tokenize.tokenizer", o.tokenizer,
            "For bpe: a tokenizer.json, or a folder with it or with vocab.json and merges.txt. For "
            "sentencepiece: a model, or a folder with a tokenizer.model. For both: a token file "
            "(.h5), whose tokenizer is taken.")
      .Integer("tokenize.vocabulary_size", o.vocabulary_size, deck::Between(0, kMostTypes),
               "tokens",
               "For kind = sentencepiece: vocabulary of a model to train on the train texts, in "
               "place of tokenize.tokenizer. 0: none is trained.")
      .Choice("tokenize.model_type", o.model_type, kModelTypes,
              "For kind = sentencepiece: type of the model to train.")
      .Text("tokenize.text_key", o.text_key,
            "Member of a JSON record that holds the document's text; a.b: member b of member a.")
      .Choice("tokenize.missing", o.skip_missing, kMissing,
              "JSON records without tokenize.text_key, or with null there. error: the task fails; "
              "skip: they are left out.")
      .Text("tokenize.prompt_key", o.prompt_key,
            "Member of a JSON record whose text stands before the document's; its tokens do not "
            "count as targets. Empty: none.")
      .Choice("tokenize.document", o.document, kDocuments,
              "What one document is in plain text. file: a file; line: a line; blank_line: what "
              "stands between blank lines.")
      .Text("tokenize.eos", o.eos,
            "Name of the token that ends each document. Empty: the one that the tokenizer names.")
      .Choice("tokenize.invalid", o.replace_invalid, kInvalid,
              "Bytes that are not UTF-8. error: the task fails; replace: they become U+FFFD.")
      .Real("tokenize.valid_fraction", o.valid_fraction, deck::HalfOpen(0, 1), "",
            "Share of the train documents that goes to the valid split, chosen by a hash of their "
            "text, if no texts are named for it.")
      .Real("tokenize.test_fraction", o.test_fraction, deck::HalfOpen(0, 1), "",
            "The same for the test split.");
}

void BindPairs(deck::Keys keys, PairOptions& o) {
  constexpr double kMostPairs = 0x1p32;
  keys.Path(
          "tokenize.source", o.texts[0].source,
          "Source texts of the train split's pairs: plain text, .gz or .zst, files and globs with "
          "commas between them. Line k belongs to line k of tokenize.target. Empty: no pairs.")
      .Path("tokenize.target", o.texts[0].target,
            "Target texts of the train split's pairs, in the same order.")
      .Path("tokenize.valid_source", o.texts[1].source, "Source texts of the valid split's pairs.")
      .Path("tokenize.valid_target", o.texts[1].target, "Target texts of the valid split's pairs.")
      .Path("tokenize.test_source", o.texts[2].source, "Source texts of the test split's pairs.")
      .Path("tokenize.test_target", o.texts[2].target, "Target texts of the test split's pairs.")
      .Switch("tokenize.shared_vocabulary", o.shared_vocabulary,
              "yes: one vocabulary for source and target; no: each has its own.")
      .Path("tokenize.source_tokenizer", o.source_tokenizer,
            "Tokenizer of the source texts, given as tokenize.tokenizer, if "
            "tokenize.shared_vocabulary = no (bpe, sentencepiece).")
      .Integer("tokenize.numerals_pairs", o.numerals_pairs, deck::Between(1, kMostPairs), "pairs",
               "For kind = numerals: size of the train split; valid and test get a hundredth each.")
      .Integer("tokenize.numerals_seed", o.numerals_seed, deck::Between(0, kLargestSeed), "",
               "For kind = numerals: another seed draws other pairs.");
}

void BindTokenize(deck::Keys keys, TokenizeOptions& o) {
  BindText(keys, o);
  BindSubword(keys, o);
  BindPairs(keys, o.pairs);
}

// Keys of [tokenize] that have no effect, and why.
struct Refusal {
  bool applies;
  std::vector<const char*> names;  // without the section
  std::string why;
};

// The refusals for these options, in the order in which they are checked.
std::vector<Refusal> RefusalsOf(const TokenizeOptions& options) {
  using enum TokenizeKind;
  const TokenizeKind kind = options.kind;
  const bool pairs = options.WritesPairs(), subword = IsSubword(kind);
  const std::string belongs = "belongs to tokenize.kind = ";
  return {
      {kind != kHarbour, {"harbour_tokens", "harbour_seed"}, belongs + "harbour"},
      {kind != kWord,
       {"lowercase", "min_count"},
       belongs + (kind == kByte ? "word; bytes are taken as they are" : "word")},
      {kind != kNumerals, {"numerals_pairs", "numerals_seed"}, belongs + "numerals"},
      {kind != kSentencePiece, {"vocabulary_size", "model_type"}, belongs + "sentencepiece"},
      {!options.tokenizer.empty(),
       {"vocabulary_size", "model_type"},
       "tokenize.tokenizer names a model, and none is trained"},
      // Single texts.
      {!pairs,
       {"valid_source", "valid_target", "test_source", "test_target", "shared_vocabulary",
        "source_tokenizer"},
       "belongs to files of pairs, which tokenize.source and tokenize.target make"},
      {!pairs && kind == kHarbour,
       {"train", "valid", "test"},
       "tokenize.kind = harbour makes its own text and reads none"},
      {!pairs && !subword,
       {"tokenizer", "prompt_key", "document", "eos", "invalid", "valid_fraction", "test_fraction"},
       belongs + "bpe and sentencepiece"},
      {!pairs && kind == kHarbour,
       {"text_key", "missing"},
       "tokenize.kind = harbour reads no text"},
      // Pairs.
      {pairs,
       {"train", "valid", "test", "text_key", "missing", "prompt_key", "document"},
       "belongs to files of single texts, not of pairs"},
      {pairs && !subword,
       {"tokenizer", "source_tokenizer", "eos"},
       belongs + "bpe and sentencepiece"},
      {kind == kNumerals,
       {"source", "target", "valid_source", "valid_target", "test_source", "test_target", "invalid",
        "valid_fraction", "test_fraction", "shared_vocabulary"},
       "tokenize.kind = numerals makes its own pairs and reads none"},
      {pairs && kind == kHarbour, {"source", "target"}, "tokenize.kind = harbour makes no pairs"},
      {pairs && kind == kByte, {"shared_vocabulary"}, "bytes are one vocabulary"},
      {pairs && options.pairs.shared_vocabulary,
       {"source_tokenizer"},
       "tokenize.shared_vocabulary = no gives the source a tokenizer of its own"},
  };
}

void Check(const Refusal& refusal, const deck::Deck& deck) {
  for (const char* const key : refusal.names) {
    deck.RefuseUnused(refusal.applies, fmt::format("tokenize.{}", key), refusal.why,
                      "Remove this key.");
  }
}

}  // namespace

const char* NameOf(TokenizeKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

void Declare(deck::Schema& schema) {
  Asked defaults;
  defaults.stride = 0;  // 0: same as sequence_length
  deck::Declare(schema, BindData, defaults);
  deck::Declare(schema, BindTokenize);
}

void Resolve(deck::Deck& deck) {
  const Options options = deck::Read(deck, BindData);
  if (options.stride != 0) return;
  deck.Supply("data.stride", std::to_string(options.sequence_length), "data.sequence_length");
}

Options Read(const deck::Deck& deck) {
  Asked options = deck::Read(deck, BindData);
  if (deck.Given("data.mixture")) {
    options.mixture = ReadMixture(options.mixture_text, deck);
    options.file = options.mixture.front().path;
  }
  if (!options.validation_text.empty()) {
    options.validation = ReadValidation(options.validation_text, deck);
  }
  if (options.stride == 0) options.stride = options.sequence_length;
  return options;
}

TokenizeOptions ReadTokenize(const deck::Deck& deck) { return deck::Read(deck, BindTokenize); }

std::string KeyOfTexts(Split split, Side side) {
  if (side == Side::kText) return fmt::format("tokenize.{}", NameOf(split));
  const char* const name = side == Side::kSource ? "source" : "target";
  if (split == Split::kTrain) return fmt::format("tokenize.{}", name);
  return fmt::format("tokenize.{}_{}", NameOf(split), name);
}

void CheckTokenizeKeys(const TokenizeOptions& options, const deck::Deck& deck) {
  for (const Refusal& refusal : RefusalsOf(options)) Check(refusal, deck);
  const bool pairs = options.WritesPairs();
  if (options.kind == TokenizeKind::kNumerals || (!pairs && !IsSubword(options.kind))) return;
  for (const Split split : kSplits) {
    const PairTexts& texts = options.pairs.texts.at(static_cast<std::size_t>(split));
    if (texts.source.empty() == texts.target.empty()) continue;
    const std::string source = KeyOfTexts(split, Side::kSource);
    const std::string target = KeyOfTexts(split, Side::kTarget);
    const bool lacks_source = texts.source.empty();
    throw deck.Complain(lacks_source ? target : source,
                        "its texts need those of " + (lacks_source ? source : target));
  }
  // Every split must get documents.
  for (const Split split : {Split::kValid, Split::kTest}) {
    const auto s = static_cast<std::size_t>(split);
    const bool named = !(pairs ? options.pairs.texts.at(s).source : options.texts.at(s)).empty();
    const std::string key = KeyOfTexts(split, pairs ? Side::kSource : Side::kText);
    const std::string fraction = fmt::format("{}_fraction", NameOf(split));
    Check({named, {fraction.c_str()}, key + " names the texts of this split"}, deck);
    const bool some = (split == Split::kValid ? options.valid_fraction : options.test_fraction) > 0;
    if (named || some) continue;
    throw deck.Complain(
        "tokenize." + fraction,
        fmt::format("a token file needs a {} split, for which nothing is left", NameOf(split)),
        fmt::format("Raise it, or name texts: {}.", key));
  }
  if (options.valid_fraction + options.test_fraction >= 1) {
    throw deck.Complain("tokenize.valid_fraction",
                        "nothing is left for the train split beside it and tokenize.test_fraction");
  }
}

std::vector<std::string_view> DeckList(std::string_view text, const char* key, const char* forms,
                                       const deck::Deck& deck) {
  std::vector<std::string_view> entries = deck::SplitList(text);
  for (const std::string_view entry : entries) {
    if (entry.empty()) throw deck.Complain(key, "an entry of the list is empty", forms);
  }
  return entries;
}

namespace {

constexpr const char* kSharedMemory = "/dev/shm";

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "this host";
  return name.data();
}

// Why a folder cannot take `bytes`; empty if it can.
std::string Lack(const std::string& folder, std::int64_t bytes) {
  struct stat status = {};
  if (::stat(folder.c_str(), &status) != 0) return ErrorText(errno);
  if (!S_ISDIR(status.st_mode)) return ErrorText(ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return ErrorText(errno);
  const std::int64_t left = FreeBytes(folder);
  if (left < 0 || left >= bytes) return {};
  return Mebibytes(left) + " are free";
}

}  // namespace

bool TakesMemory(const std::string& folder) {
  struct statfs status = {};
  if (Retry([&] { return ::statfs(folder.c_str(), &status); }) != 0) return false;
  const FileSystemType* const type = FindFileSystem(FileSystemNumber(status.f_type));
  return type != nullptr && type->memory;
}

std::vector<std::string> StagingPlace::Candidates(const std::string& staging_path) {
  if (!staging_path.empty()) return {staging_path};
  const char* const temporary = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  return {kSharedMemory, temporary != nullptr ? temporary : ""};
}

void StagingPlace::Add(const StagedCopies& copies) {
  total_.files += copies.files;
  total_.bytes += copies.bytes;
  total_.nodes = std::max(total_.nodes, copies.nodes);
  total_.seconds += copies.seconds;
}

void StagingPlace::Choose(const comm::Communicator& world, const comm::Communicator& node,
                          const std::vector<std::string>& candidates, std::int64_t bytes) {
  folder_.clear();
  total_ = {};
  std::string lacks;  // on this node, per folder
  for (const std::string& candidate : candidates) {
    std::string lack;
    if (node.IsRoot()) lack = candidate.empty() ? "$TMPDIR is not set" : Lack(candidate, bytes);
    if (!lack.empty()) {
      lacks += lacks.empty() ? "" : "; ";
      lacks += candidate.empty() ? lack : fmt::format("{}: {}", candidate, lack);
    }
    if (world.Min(std::int64_t{lack.empty()}) == 0) continue;
    folder_ = candidate;
    break;
  }
  world.Together([&] {
    if (!folder_.empty() || lacks.empty()) return;
    throw InputError(
        fmt::format("data.staging = node: {} has no room for {} of tokens: {}", HostName(),
                    Mebibytes(bytes), lacks),
        "data.staging_path names another folder of the nodes; data.staging = stream needs none.");
  });
  in_memory_ = world.Max(std::int64_t{node.IsRoot() && TakesMemory(folder_)}) > 0;
}

namespace {

constexpr const char* kValidationKey = "data.validation";
constexpr const char* kForm = "Write data.validation = books:books.h5, code:code.h5.";

bool IsName(std::string_view text) {
  constexpr std::string_view kMarks = "_-.";
  const auto fits = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), fits);
}

}  // namespace

std::vector<ValidationFile> ReadValidation(const std::string& text, const deck::Deck& deck) {
  std::vector<ValidationFile> sets;
  for (const std::string_view entry : DeckList(text, kValidationKey, kForm, deck)) {
    const std::string shown = deck::Shown(std::string(entry));
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      throw deck.Complain(kValidationKey, fmt::format("'{}' has no name", shown), kForm);
    }
    ValidationFile set{std::string(deck::Trimmed(entry.substr(0, colon))),
                       std::string(deck::Trimmed(entry.substr(colon + 1)))};
    if (!IsName(set.name)) {
      throw deck.Complain(kValidationKey,
                          fmt::format("'{}' is not a name of letters, digits, '_', '-' and '.'",
                                      deck::Shown(set.name)),
                          kForm);
    }
    if (set.path.empty()) {
      throw deck.Complain(kValidationKey, fmt::format("'{}' names no file", shown), kForm);
    }
    if (std::any_of(sets.begin(), sets.end(),
                    [&](const auto& each) { return each.name == set.name; })) {
      throw deck.Complain(kValidationKey, fmt::format("{} is there twice", set.name),
                          "Give each set a name of its own.");
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

}  // namespace trireme::data
