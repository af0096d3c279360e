// The [data] and [tokenize] sections.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::data {

// Copies of token files in folders of the nodes (data.staging = node); all 0 without staging.
struct StagedCopies {
  std::int64_t files = 0;
  std::int64_t bytes = 0;  // of the copies on one node
  std::int64_t nodes = 0;
  double seconds = 0;  // time to make them
};

class StagingPlace {
 public:
  // Folders to try, in this order: data.staging_path if set, otherwise /dev/shm, then $TMPDIR.
  static std::vector<std::string> Candidates(const std::string& staging_path);

  // Picks the first folder that exists, is writable and has room for `bytes` on every node; writes
  // nothing. Collective over `world`. node: the ranks of this node, the first of which looks.
  // Throws AgreedError (exit code 2) naming the host and what each folder lacks.
  void Choose(const comm::Communicator& world, const comm::Communicator& node,
              const std::vector<std::string>& candidates, std::int64_t bytes);

  const std::string& Folder() const { return folder_; }  // on this node; empty: none was chosen
  bool InMemory() const { return in_memory_; }           // on some node the folder lies in memory

  void Add(const StagedCopies& copies);                 // adds the copies of one file
  const StagedCopies& Total() const { return total_; }  // since the folder was chosen

 private:
  std::string folder_;
  bool in_memory_ = false;
  StagedCopies total_;
};

// Whether files in the folder occupy memory (tmpfs or ramfs).
bool TakesMemory(const std::string& folder);

// A token file of data.validation: its valid split is evaluated under this name.
struct ValidationFile {
  std::string name, path;
};

// Parses `text`, the value of data.validation ("books:books.h5, code:code.h5"); keeps its order.
// Throws InputError with the deck's line if an entry lacks its name or path, if a name has
// characters other than letters, digits, '_', '-' and '.', or if a name occurs twice.
std::vector<ValidationFile> ReadValidation(const std::string& text, const deck::Deck& deck);

// Where tokens are kept. kNone: one copy per rank in memory; kSharedMemory: one per node; kStream:
// windows are read from the file when needed; kNode: the same from a copy in a folder of the node.
enum class Staging { kNone, kSharedMemory, kStream, kNode };
// Whether windows are read when they are needed instead of being kept in memory.
constexpr bool IsStream(Staging staging) { return staging >= Staging::kStream; }

// How text becomes tokens. word: split at blanks, <eos> ends each line; byte: 256 byte values;
// harbour: built-in corpus of known entropy; numerals: built-in corpus of pairs; bpe,
// sentencepiece: with the files of a subword tokenizer.
enum class TokenizeKind { kWord, kByte, kHarbour, kNumerals, kBpe, kSentencePiece };
const char* NameOf(TokenizeKind kind);  // as written in the deck
// Whether the kind uses a subword tokenizer; its texts consist of documents and all ranks encode.
constexpr bool IsSubword(TokenizeKind kind) { return kind >= TokenizeKind::kBpe; }

// What counts as one document of plain text: a file, a line, or a paragraph before a blank line.
enum class DocumentEnd { kFile, kLine, kBlankLine };

// What happens to pairs longer than the model accepts: an error, or they are dropped and counted.
enum class LongPairs { kRefuse, kLeaveOut };

struct Options {
  // Token file, HDF5. In a mixture the first file, which supplies vocabulary, valid and test split.
  std::string file = "data/tokens.h5";
  std::vector<MixtureFile> mixture = {};        // empty: `file` alone
  std::vector<ValidationFile> validation = {};  // empty: the valid split of `file`
  Staging staging = Staging::kSharedMemory;
  std::string staging_path = {};  // folder of the node's copies (kNode); empty: the program chooses
  std::int64_t read_ahead = 2;    // steps whose windows are read in advance
  std::int64_t sequence_length = 128;  // targets per window
  std::int64_t stride = 128;     // tokens from the start of one window to the start of the next
  std::int64_t batch = 64;       // windows per step, over all ranks
  std::int64_t micro_batch = 0;  // windows per rank at once; 0: chosen by the program
  bool document_mask = false;    // attention stays within documents; positions restart in each
  // For pairs, which `batch` and `micro_batch` then count: upper limit of the source tokens and of
  // the target tokens in a step, padding included; 0: no limit.
  std::int64_t batch_tokens = 0;
  LongPairs long_pairs = LongPairs::kRefuse;  // what to do with texts beyond sequence_length
};

// Line-aligned texts of one split; each a list of files and globs; empty: none.
struct PairTexts {
  std::string source, target;
};

// Keys of [tokenize] that concern files of pairs.
struct PairOptions {
  std::array<PairTexts, 3> texts;  // by split
  bool shared_vocabulary = true;
  std::string source_tokenizer;  // like TokenizeOptions::tokenizer, for the source side alone
  std::int64_t numerals_pairs = 200000;  // pairs in the train split (numerals)
  std::int64_t numerals_seed = 1;
};

struct TokenizeOptions {
  TokenizeKind kind = TokenizeKind::kWord;
  std::array<std::string, 3> texts;       // by Split: lists of files and globs
  bool lowercase = false;                 // fold the text to lower case (word)
  std::int64_t min_count = 1;             // rarer words become <unk> (word)
  bool overwrite = false;                 // replace an existing token file
  std::int64_t harbour_tokens = 1000000;  // tokens in the train split (harbour)
  std::int64_t harbour_seed = 1;
  // The rest is mainly for kinds bpe and sentencepiece; CheckTokenizeKeys knows the exceptions.
  std::string tokenizer;             // tokenizer file or folder, or a token file to take it from
  std::int64_t vocabulary_size = 0;  // size of the model to train; 0: train none (sentencepiece)
  ModelType model_type = ModelType::kBpe;  // type of the model to train
  std::string text_key = "text";           // member of a JSON record that holds its text
  bool skip_missing = false;               // drop records without that member; otherwise an error
  std::string prompt_key;  // member whose text is prompt: its tokens are no targets; empty: none
  DocumentEnd document = DocumentEnd::kFile;
  std::string eos;  // name of the token that ends a document; empty: as the tokenizer says
  bool replace_invalid = false;  // replace invalid UTF-8 by U+FFFD; otherwise an error
  double valid_fraction = 0.01;  // share of the train documents, if no valid texts are given
  double test_fraction = 0.01;   // the same for test
  PairOptions pairs;

  // Whether the output is a file of pairs.
  bool WritesPairs() const {
    return kind == TokenizeKind::kNumerals || !pairs.texts.front().source.empty() ||
           !pairs.texts.front().target.empty();
  }
};

void Declare(deck::Schema& schema);  // adds [data] and [tokenize]

// Sets data.stride to data.sequence_length if the deck omits it.
void Resolve(deck::Deck& deck);

Options Read(const deck::Deck& deck);
TokenizeOptions ReadTokenize(const deck::Deck& deck);

// Throws InputError with the deck's line for a key that was given but has no effect with this kind.
void CheckTokenizeKeys(const TokenizeOptions& options, const deck::Deck& deck);

}  // namespace trireme::data
