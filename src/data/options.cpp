// The keys of [data] and [tokenize].
#include "trireme/data/options.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "trireme/input/choice.hpp"

namespace trireme::data {

namespace {

constexpr input::Names<4> kStagings = {"none", "shared_memory", "stream", "node"};
constexpr input::Names<5> kKinds = {"word", "byte", "harbour", "bpe", "sentencepiece"};
constexpr input::Names<2> kModelTypes = {"bpe", "unigram"};
constexpr input::Names<3> kDocuments = {"file", "line", "blank_line"};
constexpr input::Names<2> kInvalid = {"error", "replace"};

// Lengths and counts of windows: the product of two stays below 2^63.
constexpr double kLargestCount = std::numeric_limits<std::int32_t>::max();
constexpr double kMostTypes = 1 << 24;     // of a vocabulary
constexpr double kMostReadAhead = 1000;    // steps
constexpr double kLargestCorpus = 0x1p40;  // tokens: more than a node's memory holds

void DeclareData(input::Schema& schema) {
  schema.Section("data", "the token file and how training takes windows from it")
      .Text("data.file", "data/tokens.h5",
            "Token file (HDF5): task = tokenize writes it, the other tasks read it.")
      .Text("data.mixture", "",
            "Token files of one vocabulary to train on together, in place of data.file: "
            "books.h5:0.7, code.h5:0.3 (weights: an epoch has as many windows as all files "
            "together) or books.h5*2, code.h5*0.5 (uses of each window in an epoch). The first "
            "file gives the valid and test splits.")
      .Exclusive({"data.file", "data.mixture"})
      .Text("data.validation", "",
            "Sets to validate on in place of the token file's own valid split: books:books.h5, "
            "code:code.h5 (a name and a token file, whose valid split counts). Each has its line; "
            "the first one decides on the best checkpoint.")
      .Integer("data.sequence_length", 128, input::Between(1, kLargestCount), "tokens",
               "Targets of one window: how far a prediction can look back.")
      .Integer(
          "data.stride", 0, input::Between(0, kLargestCount), "tokens",
          "Distance between the beginnings of neighbouring windows; 0: the sequence length, so "
          "that each target is used once an epoch.")
      .Integer("data.batch", 64, input::Between(1, kLargestCount), "windows",
               "Windows a step, over all ranks; need not divide by anything.")
      .Integer("data.micro_batch", 0, input::Between(0, kLargestCount), "windows",
               "Windows that a rank takes at once; 0: chosen by the program.")
      .Choice(
          "data.staging", "shared_memory", input::Choices(kStagings),
          "Where the tokens are kept: none: a copy a rank; shared_memory: one a node; stream: "
          "in the file alone, of which windows are read ahead of their use; node: likewise, in a "
          "copy in a folder of each node.")
      .Text("data.staging_path", "",
            "Folder of the copies, with data.staging = node; empty: /dev/shm or, if a node has no "
            "room for them there, $TMPDIR.")
      .Integer(
          "data.read_ahead", 2, input::Between(1, kMostReadAhead), "steps",
          "Steps whose windows are read before their use, with data.staging = stream and node.")
      .Switch("data.document_mask", false,
              "yes: attention does not cross the ends of documents, positions restart in each, and "
              "its first token is no target; needs /train/documents in the token file.");
}

void DeclareTokenize(input::Schema& schema) {
  constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
  schema.Section("tokenize", "job.task = tokenize: from texts to the token file")
      .Choice(
          "tokenize.kind", "word", input::Choices(kKinds),
          "word: blanks separate tokens, <eos> ends each line. byte: the 256 bytes. harbour: a "
          "built-in corpus of known entropy, made from a grammar. bpe: byte-level, by the files of "
          "tokenize.tokenizer, on all ranks. sentencepiece: likewise, by a model, which can be "
          "trained.")
      .Text("tokenize.train", "",
            "Text of the train split (word, byte); files and globs, with commas, of which .jsonl "
            "holds a record a line and .gz and .zst are unpacked (bpe, sentencepiece).")
      .Text("tokenize.valid", "", "Text of the valid split, likewise.")
      .Text("tokenize.test", "", "Text of the test split, likewise.")
      .Switch("tokenize.lowercase", false, "Fold the text to lower case (word).")
      .Integer("tokenize.min_count", 1, input::AtLeast(1), "occurrences",
               "Rarer words of the train split become <unk> (word).")
      .Switch("tokenize.overwrite", false,
              "Replace data.file where it exists; else that is refused.")
      .Integer("tokenize.harbour_tokens", 1000000, input::Between(2, kLargestCorpus), "tokens",
               "Size of the train split (harbour); valid and test get a tenth each.")
      .Integer("tokenize.harbour_seed", 1, input::Between(0, kLargestSeed), "",
               "Another seed is another corpus of the same language (harbour).");
}

void DeclareSubword(input::Schema& schema) {
  schema
      .Text(
          "tokenize.tokenizer", "",
          "A tokenizer.json, or a folder with it or with vocab.json and merges.txt (bpe); a "
          "model or a folder with a tokenizer.model (sentencepiece); or a token file (.h5), whose "
          "tokenizer is taken.")
      .Integer("tokenize.vocabulary_size", 0, input::Between(0, kMostTypes), "tokens",
               "Size of the model to train on the train texts, in place of tokenize.tokenizer; 0: "
               "none is trained (sentencepiece).")
      .Choice("tokenize.model_type", "bpe", input::Choices(kModelTypes),
              "Kind of the model to train (sentencepiece).")
      .Text("tokenize.text_key", "text", "Member of a JSON record that holds the document's text.")
      .Text("tokenize.prompt_key", "",
            "Member of a JSON record that comes before the text; its tokens do not count as "
            "targets. Empty: none.")
      .Choice("tokenize.document", "file", input::Choices(kDocuments),
              "Documents of plain text: the file, each line, or what blank lines separate.")
      .Text("tokenize.eos", "",
            "Name of the token that ends each document; empty: the one that the tokenizer names.")
      .Choice("tokenize.invalid", "error", input::Choices(kInvalid),
              "Bytes that are not UTF-8: an error, or replaced by U+FFFD.")
      .Real("tokenize.valid_fraction", 0.01, input::HalfOpen(0, 1), "",
            "Share of the train documents that a hash of their text puts into the valid split, "
            "where tokenize.valid is not given.")
      .Real("tokenize.test_fraction", 0.01, input::HalfOpen(0, 1), "",
            "The same of the test split.");
}

// Refuses keys that have no effect, for the reason `why`.
void RefuseKeys(const input::Deck& deck, std::initializer_list<const char*> names,
                const std::string& why) {
  const auto given =
      std::find_if(names.begin(), names.end(), [&](const char* name) { return deck.Given(name); });
  if (given != names.end()) throw deck.Complain(*given, why, "Remove this key.");
}

}  // namespace

const char* NameOf(TokenizeKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

void Declare(input::Schema& schema) {
  DeclareData(schema);
  DeclareTokenize(schema);
  DeclareSubword(schema);
}

void Resolve(input::Deck& deck) {
  if (deck.Integer("data.stride") != 0) return;
  deck.Supply("data.stride", std::to_string(deck.Integer("data.sequence_length")),
              "data.sequence_length");
}

Options Read(const input::Deck& deck) {
  Options options{.file = deck.Text("data.file"),
                  .staging = input::Pick<Staging>(deck.Text("data.staging"), kStagings),
                  .staging_path = deck.Text("data.staging_path"),
                  .read_ahead = deck.Integer("data.read_ahead"),
                  .sequence_length = deck.Integer("data.sequence_length"),
                  .stride = deck.Integer("data.stride"),
                  .batch = deck.Integer("data.batch"),
                  .micro_batch = deck.Integer("data.micro_batch"),
                  .document_mask = deck.Switch("data.document_mask")};
  if (deck.Given("data.mixture")) {
    options.mixture = ReadMixture(deck.Text("data.mixture"), deck);
    options.file = options.mixture.front().path;
  }
  const std::string validation = deck.Text("data.validation");
  if (!validation.empty()) options.validation = ReadValidation(validation, deck);
  if (options.stride == 0) options.stride = options.sequence_length;
  return options;
}

TokenizeOptions ReadTokenize(const input::Deck& deck) {
  return {.kind = input::Pick<TokenizeKind>(deck.Text("tokenize.kind"), kKinds),
          .texts = {deck.Text("tokenize.train"), deck.Text("tokenize.valid"),
                    deck.Text("tokenize.test")},
          .lowercase = deck.Switch("tokenize.lowercase"),
          .min_count = deck.Integer("tokenize.min_count"),
          .overwrite = deck.Switch("tokenize.overwrite"),
          .harbour_tokens = deck.Integer("tokenize.harbour_tokens"),
          .harbour_seed = deck.Integer("tokenize.harbour_seed"),
          .tokenizer = deck.Text("tokenize.tokenizer"),
          .vocabulary_size = deck.Integer("tokenize.vocabulary_size"),
          .model_type =
              input::Pick<tokenizer::ModelType>(deck.Text("tokenize.model_type"), kModelTypes),
          .text_key = deck.Text("tokenize.text_key"),
          .prompt_key = deck.Text("tokenize.prompt_key"),
          .document = input::Pick<DocumentEnd>(deck.Text("tokenize.document"), kDocuments),
          .eos = deck.Text("tokenize.eos"),
          .replace_invalid = deck.Text("tokenize.invalid") == kInvalid[1],
          .valid_fraction = deck.Real("tokenize.valid_fraction"),
          .test_fraction = deck.Real("tokenize.test_fraction")};
}

void CheckTokenizeKeys(const TokenizeOptions& options, const input::Deck& deck) {
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
  if (!IsSubword(options.kind)) {
    RefuseKeys(
        deck,
        {"tokenize.tokenizer", "tokenize.text_key", "tokenize.prompt_key", "tokenize.document",
         "tokenize.eos", "tokenize.invalid", "tokenize.valid_fraction", "tokenize.test_fraction"},
        "belongs to tokenize.kind = bpe and sentencepiece");
  }
  if (options.kind != TokenizeKind::kSentencePiece) {
    RefuseKeys(deck, {"tokenize.vocabulary_size", "tokenize.model_type"},
               "belongs to tokenize.kind = sentencepiece");
  }
  if (!options.tokenizer.empty()) {
    RefuseKeys(deck, {"tokenize.vocabulary_size", "tokenize.model_type"},
               "tokenize.tokenizer names a model, and none is trained");
  }
  if (options.kind == TokenizeKind::kHarbour) {
    RefuseKeys(deck, {"tokenize.train", "tokenize.valid", "tokenize.test"},
               "tokenize.kind = harbour makes its own text and reads none");
  }
  if (!IsSubword(options.kind)) return;
  if (!options.texts[1].empty()) {
    RefuseKeys(deck, {"tokenize.valid_fraction"}, "tokenize.valid names the texts of this split");
  }
  if (!options.texts[2].empty()) {
    RefuseKeys(deck, {"tokenize.test_fraction"}, "tokenize.test names the texts of this split");
  }
  const auto require = [&](const std::string& split, const std::string& texts, double fraction) {
    if (fraction > 0 || !texts.empty()) return;
    throw deck.Complain("tokenize." + split + "_fraction",
                        "a token file needs a " + split + " split, for which nothing is left",
                        "Raise it, or name texts: tokenize." + split + ".");
  };
  require("valid", options.texts[1], options.valid_fraction);
  require("test", options.texts[2], options.test_fraction);
  if (options.valid_fraction + options.test_fraction >= 1) {
    throw deck.Complain("tokenize.valid_fraction",
                        "nothing is left for the train split beside it and tokenize.test_fraction");
  }
}

}  // namespace trireme::data
