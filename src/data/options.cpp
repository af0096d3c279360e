// The keys of [data] and [tokenize].
#include "trireme/data/options.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <string_view>

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
constexpr double kMostTypes = 1 << 24, kMostReadAhead = 1000;  // types of a vocabulary; steps
constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
constexpr double kLargestCorpus = 0x1p40;  // tokens: more than a node's memory holds

// The options, and the texts of the keys that hold lists.
struct Asked : Options {
  std::string mixture_text, validation_text;
};

void BindData(deck::Keys keys, Asked& o) {
  keys.Section("data", "the token file and how training takes windows from it")
      .Path("data.file", o.file,
            "Token file (HDF5): task = tokenize writes it, the other tasks read it.")
      .Path("data.mixture", o.mixture_text,
            "Token files of one vocabulary to train on together, in place of data.file: "
            "books.h5:0.7, code.h5:0.3 (weights: an epoch has as many windows as all files "
            "together) or books.h5*2, code.h5*0.5 (uses of each window in an epoch). The first "
            "file gives the valid and test splits.")
      .Exclusive({"data.file", "data.mixture"})
      .Path("data.validation", o.validation_text,
            "Sets to validate on in place of the token file's own valid split: books:books.h5, "
            "code:code.h5 (a name and a token file, whose valid split counts). Each has its line; "
            "the first one decides on the best checkpoint.")
      .Integer("data.sequence_length", o.sequence_length, deck::Between(1, kLargestCount), "tokens",
               "Targets of one window: how far a prediction looks back. Pairs: the longest text.")
      .Integer(
          "data.stride", o.stride, deck::Between(0, kLargestCount), "tokens",
          "Distance between the beginnings of neighbouring windows; 0: the sequence length, so "
          "that each target is used once an epoch.")
      .Integer("data.batch", o.batch, deck::Between(1, kLargestCount), "windows",
               "Windows a step, over all ranks; need not divide by anything. Pairs: the most.")
      .Integer("data.batch_tokens", o.batch_tokens, deck::Between(0, kLargestCount), "tokens",
               "Pairs: most tokens of a step, of source and of target, with padding; 0: any.")
      .Integer("data.micro_batch", o.micro_batch, deck::Between(0, kLargestCount), "windows",
               "Windows, or pairs, that a rank takes at once; 0: chosen by the program.")
      .Choice("data.long_pairs", o.long_pairs, kLongPairs,
              "Pairs with longer texts than data.sequence_length: an error, or left out.")
      .Choice(
          "data.staging", o.staging, kStagings,
          "Where the tokens are kept: none: a copy a rank; shared_memory: one a node; stream: "
          "in the file alone, of which windows are read ahead of their use; node: likewise, in a "
          "copy in a folder of each node.")
      .Path("data.staging_path", o.staging_path,
            "Folder of the copies, with data.staging = node; empty: /dev/shm or, if a node has no "
            "room for them there, $TMPDIR.")
      .Integer(
          "data.read_ahead", o.read_ahead, deck::Between(1, kMostReadAhead), "steps",
          "Steps whose windows are read before their use, with data.staging = stream and node.")
      .Switch("data.document_mask", o.document_mask,
              "yes: attention does not cross the ends of documents, positions restart in each, and "
              "its first token is no target; needs /train/documents in the token file.");
}

void BindText(deck::Keys keys, TokenizeOptions& o) {
  keys.Section("tokenize", "job.task = tokenize: from texts to the token file")
      .Choice("tokenize.kind", o.kind, kKinds,
              "word: blanks separate tokens, <eos> ends each line. byte: the 256 bytes. harbour: a "
              "built-in corpus of known entropy, made from a grammar. numerals: built-in pairs to "
              "translate, numbers as digits and as English and German words. bpe: byte-level, by "
              "the files of "
              "tokenize.tokenizer, on all ranks. sentencepiece: likewise, by a model, which can be "
              "trained.")
      .Path("tokenize.train", o.texts[0],
            "Texts of the train split: files and globs, with commas, of which .jsonl holds a "
            "record a line; gzip and zstd are unpacked. - is standard input.")
      .Path("tokenize.valid", o.texts[1], "Text of the valid split, likewise.")
      .Path("tokenize.test", o.texts[2], "Text of the test split, likewise.")
      .Switch("tokenize.lowercase", o.lowercase, "Fold the text to lower case (word).")
      .Integer("tokenize.min_count", o.min_count, deck::AtLeast(1), "occurrences",
               "Rarer words of the train split become <unk> (word).")
      .Switch("tokenize.overwrite", o.overwrite,
              "Replace data.file where it exists; else that is refused.")
      .Integer("tokenize.harbour_tokens", o.harbour_tokens, deck::Between(2, kLargestCorpus),
               "tokens", "Size of the train split (harbour); valid and test get a tenth each.")
      .Integer("tokenize.harbour_seed", o.harbour_seed, deck::Between(0, kLargestSeed), "",
               "Another seed is another corpus of the same language (harbour).");
}

void BindSubword(deck::Keys keys, TokenizeOptions& o) {
  keys.Path(
          "tokenize.tokenizer", o.tokenizer,
          "A tokenizer.json, or a folder with it or with vocab.json and merges.txt (bpe); a "
          "model or a folder with a tokenizer.model (sentencepiece); or a token file (.h5), whose "
          "tokenizer is taken.")
      .Integer("tokenize.vocabulary_size", o.vocabulary_size, deck::Between(0, kMostTypes),
               "tokens",
               "Size of the model to train on the train texts, in place of tokenize.tokenizer; 0: "
               "none is trained (sentencepiece).")
      .Choice("tokenize.model_type", o.model_type, kModelTypes,
              "Kind of the model to train (sentencepiece).")
      .Text("tokenize.text_key", o.text_key,
            "Member of a JSON record that holds the document's text; a.b is b within a.")
      .Choice("tokenize.missing", o.skip_missing, kMissing,
              "A JSON record without such a text, or with null: an error, or left out.")
      .Text("tokenize.prompt_key", o.prompt_key,
            "Member of a JSON record that comes before the text; its tokens do not count as "
            "targets. Empty: none.")
      .Choice("tokenize.document", o.document, kDocuments,
              "Documents of plain text: the file, each line, or what blank lines separate.")
      .Text("tokenize.eos", o.eos,
            "Name of the token that ends each document; empty: the one that the tokenizer names.")
      .Choice("tokenize.invalid", o.replace_invalid, kInvalid,
              "Bytes that are not UTF-8: an error, or replaced by U+FFFD.")
      .Real("tokenize.valid_fraction", o.valid_fraction, deck::HalfOpen(0, 1), "",
            "Share of the train documents that a hash of their text puts into the valid split, "
            "where tokenize.valid is not given.")
      .Real("tokenize.test_fraction", o.test_fraction, deck::HalfOpen(0, 1), "",
            "The same of the test split.");
}

void BindPairs(deck::Keys keys, PairOptions& o) {
  constexpr double kMostPairs = 0x1p32;
  keys.Path(
          "tokenize.source", o.texts[0].source,
          "Source texts of the train split's pairs, for a file of pairs: plain text, .gz or .zst, "
          "files and globs with commas; line k belongs to line k of tokenize.target.")
      .Path("tokenize.target", o.texts[0].target,
            "Target texts of the train split's pairs, in the same order.")
      .Path("tokenize.valid_source", o.texts[1].source, "Source texts of the valid split's pairs.")
      .Path("tokenize.valid_target", o.texts[1].target, "Target texts of the valid split's pairs.")
      .Path("tokenize.test_source", o.texts[2].source, "Source texts of the test split's pairs.")
      .Path("tokenize.test_target", o.texts[2].target, "Target texts of the test split's pairs.")
      .Switch("tokenize.shared_vocabulary", o.shared_vocabulary,
              "One vocabulary for source and target; no: each has its own.")
      .Path("tokenize.source_tokenizer", o.source_tokenizer,
            "As tokenize.tokenizer, of the source alone, without a shared vocabulary (bpe, "
            "sentencepiece).")
      .Integer("tokenize.numerals_pairs", o.numerals_pairs, deck::Between(1, kMostPairs), "pairs",
               "Size of the train split (numerals); valid and test get a hundredth each.")
      .Integer("tokenize.numerals_seed", o.numerals_seed, deck::Between(0, kLargestSeed), "",
               "Another seed draws other pairs (numerals).");
}

void BindTokenize(deck::Keys keys, TokenizeOptions& o) {
  BindText(keys, o);
  BindSubword(keys, o);
  BindPairs(keys, o.pairs);
}

// Throws if one of these keys is given, since it has no effect; why: the reason.
void RefuseKeys(const deck::Deck& deck, std::initializer_list<const char*> names,
                const std::string& why) {
  const auto given =
      std::find_if(names.begin(), names.end(), [&](const char* name) { return deck.Given(name); });
  if (given != names.end()) throw deck.Complain(*given, why, "Remove this key.");
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

namespace {

// Throws unless every split gets documents. texts: those named for valid and test. suffix: ending
// of the keys that name them, "" or "_source".
void CheckFractions(const TokenizeOptions& options, const deck::Deck& deck,
                    const std::array<std::string, 2>& texts, const std::string& suffix) {
  if (!texts[0].empty()) {
    RefuseKeys(deck, {"tokenize.valid_fraction"},
               "tokenize.valid" + suffix + " names the texts of this split");
  }
  if (!texts[1].empty()) {
    RefuseKeys(deck, {"tokenize.test_fraction"},
               "tokenize.test" + suffix + " names the texts of this split");
  }
  const auto require = [&](const std::string& split, const std::string& given, double fraction) {
    if (fraction > 0 || !given.empty()) return;
    throw deck.Complain("tokenize." + split + "_fraction",
                        "a token file needs a " + split + " split, for which nothing is left",
                        "Raise it, or name texts: tokenize." + split + suffix + ".");
  };
  require("valid", texts[0], options.valid_fraction);
  require("test", texts[1], options.test_fraction);
  if (options.valid_fraction + options.test_fraction >= 1) {
    throw deck.Complain("tokenize.valid_fraction",
                        "nothing is left for the train split beside it and tokenize.test_fraction");
  }
}

void CheckTextKeys(const TokenizeOptions& options, const deck::Deck& deck) {
  RefuseKeys(deck,
             {"tokenize.valid_source", "tokenize.valid_target", "tokenize.test_source",
              "tokenize.test_target", "tokenize.shared_vocabulary", "tokenize.source_tokenizer"},
             "belongs to files of pairs, which tokenize.source and tokenize.target make");
  if (options.kind == TokenizeKind::kHarbour) {
    RefuseKeys(deck, {"tokenize.train", "tokenize.valid", "tokenize.test"},
               "tokenize.kind = harbour makes its own text and reads none");
  }
  if (!IsSubword(options.kind)) {
    RefuseKeys(deck,
               {"tokenize.tokenizer", "tokenize.prompt_key", "tokenize.document", "tokenize.eos",
                "tokenize.invalid", "tokenize.valid_fraction", "tokenize.test_fraction"},
               "belongs to tokenize.kind = bpe and sentencepiece");
    if (options.kind == TokenizeKind::kHarbour) {
      RefuseKeys(deck, {"tokenize.text_key", "tokenize.missing"},
                 "tokenize.kind = harbour reads no text");
    }
    return;
  }
  CheckFractions(options, deck, {options.texts[1], options.texts[2]}, "");
}

void CheckPairKeys(const TokenizeOptions& options, const deck::Deck& deck) {
  RefuseKeys(deck,
             {"tokenize.train", "tokenize.valid", "tokenize.test", "tokenize.text_key",
              "tokenize.missing", "tokenize.prompt_key", "tokenize.document"},
             "belongs to files of single texts, not of pairs");
  if (!IsSubword(options.kind)) {
    RefuseKeys(deck, {"tokenize.tokenizer", "tokenize.source_tokenizer", "tokenize.eos"},
               "belongs to tokenize.kind = bpe and sentencepiece");
  }
  if (options.kind == TokenizeKind::kNumerals) {
    RefuseKeys(
        deck,
        {"tokenize.source", "tokenize.target", "tokenize.valid_source", "tokenize.valid_target",
         "tokenize.test_source", "tokenize.test_target", "tokenize.invalid",
         "tokenize.valid_fraction", "tokenize.test_fraction", "tokenize.shared_vocabulary"},
        "tokenize.kind = numerals makes its own pairs and reads none");
    return;
  }
  if (options.kind == TokenizeKind::kHarbour) {
    RefuseKeys(deck, {"tokenize.source", "tokenize.target"},
               "tokenize.kind = harbour makes no pairs");
  }
  if (options.kind == TokenizeKind::kByte) {
    RefuseKeys(deck, {"tokenize.shared_vocabulary"}, "bytes are one vocabulary");
  }
  if (options.pairs.shared_vocabulary) {
    RefuseKeys(deck, {"tokenize.source_tokenizer"},
               "tokenize.shared_vocabulary = no gives the source a tokenizer of its own");
  }
  for (const Split split : kSplits) {
    const PairTexts& texts = options.pairs.texts.at(static_cast<std::size_t>(split));
    if (texts.source.empty() == texts.target.empty()) continue;
    const std::string prefix = split == Split::kTrain   ? "tokenize."
                               : split == Split::kValid ? "tokenize.valid_"
                                                        : "tokenize.test_";
    const bool lacks_source = texts.source.empty();
    throw deck.Complain(prefix + (lacks_source ? "target" : "source"),
                        "its texts need those of " + prefix + (lacks_source ? "source" : "target"));
  }
  CheckFractions(options, deck, {options.pairs.texts[1].source, options.pairs.texts[2].source},
                 "_source");
}

}  // namespace

void CheckTokenizeKeys(const TokenizeOptions& options, const deck::Deck& deck) {
  if (options.kind != TokenizeKind::kHarbour) {
    RefuseKeys(deck, {"tokenize.harbour_tokens", "tokenize.harbour_seed"},
               "belongs to tokenize.kind = harbour");
  }
  if (options.kind != TokenizeKind::kWord) {
    RefuseKeys(deck, {"tokenize.lowercase", "tokenize.min_count"},
               options.kind == TokenizeKind::kByte
                   ? "belongs to tokenize.kind = word; bytes are taken as they are"
                   : "belongs to tokenize.kind = word");
  }
  if (options.kind != TokenizeKind::kNumerals) {
    RefuseKeys(deck, {"tokenize.numerals_pairs", "tokenize.numerals_seed"},
               "belongs to tokenize.kind = numerals");
  }
  if (options.kind != TokenizeKind::kSentencePiece) {
    RefuseKeys(deck, {"tokenize.vocabulary_size", "tokenize.model_type"},
               "belongs to tokenize.kind = sentencepiece");
  }
  if (!options.tokenizer.empty()) {
    RefuseKeys(deck, {"tokenize.vocabulary_size", "tokenize.model_type"},
               "tokenize.tokenizer names a model, and none is trained");
  }
  if (options.WritesPairs()) {
    CheckPairKeys(options, deck);
  } else {
    CheckTextKeys(options, deck);
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
                          fmt::format("'{}' is no name of letters, digits, '_', '-' and '.'",
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
