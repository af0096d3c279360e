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

// Folder of each node that takes the copies of a job's token files (data.staging = node).

// Copies of token files on nodes; none unless they were staged.
struct StagedCopies {
  std::int64_t files = 0;
  std::int64_t bytes = 0;  // of one node's copies
  std::int64_t nodes = 0;
  double seconds = 0;  // of making them
};

class StagingPlace {
 public:
  // Folders to try in this order: data.staging_path alone or, if that is empty, /dev/shm and the
  // environment's TMPDIR.
  static std::vector<std::string> Candidates(const std::string& staging_path);

  // Collective over `world`; `node`: ranks of a node, whose first one looks. Takes the first folder
  // that is there, may be written to and has room for `bytes` on every node. Writes nothing. Throws
  // AgreedError (exit code 2) naming the host, each folder and what it lacks.
  void Choose(const comm::Communicator& world, const comm::Communicator& node,
              const std::vector<std::string>& candidates, std::int64_t bytes);

  const std::string& Folder() const { return folder_; }  // of this node; empty: none was chosen
  bool InMemory() const { return in_memory_; }           // files take memory, on any of the nodes

  void Add(const StagedCopies& copies);                 // of a file
  const StagedCopies& Total() const { return total_; }  // since the choice

 private:
  std::string folder_;
  bool in_memory_ = false;
  StagedCopies total_;
};

// Whether files in the folder take memory: tmpfs or ramfs.
bool TakesMemory(const std::string& folder);

// data.validation: token files beside that of training, each validated under a name.

// A token file of which the valid split is used.
struct ValidationFile {
  std::string name, path;
};

// The sets of data.validation, whose value is `text` ("books:books.h5, code:code.h5"), in the order
// of the deck. Throws InputError with the deck's line for an entry without a name or a path, a name
// of other characters than letters, digits, '_', '-' and '.', and a name that is there twice.
std::vector<ValidationFile> ReadValidation(const std::string& text, const deck::Deck& deck);

// Copies of the tokens: one per rank, or one per node in shared memory; or none, with windows read
// as they are needed, from the file or from a copy in a folder of the node.
enum class Staging { kNone, kSharedMemory, kStream, kNode };
// Whether windows are read as they are needed.
constexpr bool IsStream(Staging staging) { return staging >= Staging::kStream; }

// word: blanks separate tokens, <eos> ends each line; byte: the 256 bytes; harbour: the built-in
// corpus of known entropy; bpe, sentencepiece: by a tokenizer's files.
// numerals: the built-in corpus of pairs.
enum class TokenizeKind { kWord, kByte, kHarbour, kNumerals, kBpe, kSentencePiece };
const char* NameOf(TokenizeKind kind);  // as in the deck
// Whether texts of the kind are tokenised by all ranks, in documents.
constexpr bool IsSubword(TokenizeKind kind) { return kind >= TokenizeKind::kBpe; }

// Documents of plain text: the whole file, each line, or paragraphs with blank lines between them.
enum class DocumentEnd { kFile, kLine, kBlankLine };

// Pairs longer than the model takes: an error, or left out and counted.
enum class LongPairs { kRefuse, kLeaveOut };

struct Options {
  // Token file, HDF5; of a mixture the first one, which gives vocabulary, valid and test split.
  std::string file = "data/tokens.h5";
  std::vector<MixtureFile> mixture = {};        // empty: `file` alone
  std::vector<ValidationFile> validation = {};  // empty: the valid split of `file`
  Staging staging = Staging::kSharedMemory;
  std::string staging_path = {};       // folder of a node's copies; empty: chosen (node)
  std::int64_t read_ahead = 2;         // steps whose windows are read before their use
  std::int64_t sequence_length = 128;  // targets per window
  std::int64_t stride = 128;           // tokens between the beginnings of neighbouring windows
  std::int64_t batch = 64;             // windows per step, over all ranks
  std::int64_t micro_batch = 0;  // windows that a rank takes at once; 0: chosen by the program
  bool document_mask = false;    // attention stays within documents, positions restart in each
  // Of pairs, whose batch and micro_batch are counted in pairs: most tokens of a step's source or
  // target texts, padding included; 0: no limit.
  std::int64_t batch_tokens = 0;
  LongPairs long_pairs = LongPairs::kRefuse;  // longer than sequence_length
};

// Line-aligned texts of a split: lists of files and globs; empty: none.
struct PairTexts {
  std::string source, target;
};

// Of files of pairs.
struct PairOptions {
  std::array<PairTexts, 3> texts;  // by split
  bool shared_vocabulary = true;
  std::string source_tokenizer;          // as TokenizeOptions::tokenizer, of the source alone
  std::int64_t numerals_pairs = 200000;  // of the train split (numerals)
  std::int64_t numerals_seed = 1;
};

struct TokenizeOptions {
  TokenizeKind kind = TokenizeKind::kWord;
  std::array<std::string, 3> texts;       // paths, [train, valid, test] (word, byte)
  bool lowercase = false;                 // fold the text (word)
  std::int64_t min_count = 1;             // occurrences; rarer words become <unk> (word)
  bool overwrite = false;                 // replace a token file that is there
  std::int64_t harbour_tokens = 1000000;  // of the train split (harbour)
  std::int64_t harbour_seed = 1;
  // The rest: kinds bpe and sentencepiece, whose `texts` are lists of files and globs.
  std::string tokenizer;             // path of the tokenizer's file or folder, or of a token file
  std::int64_t vocabulary_size = 0;  // tokens of a model to train; 0: none is (sentencepiece)
  ModelType model_type = ModelType::kBpe;  // of that model
  std::string text_key = "text";           // member of a JSON record that holds the document
  bool skip_missing = false;  // records without these texts are left out; else an error
  std::string prompt_key;     // member whose tokens do not count as targets; empty: none
  DocumentEnd document = DocumentEnd::kFile;
  std::string eos;               // name of the token that ends a document; empty: the tokenizer's
  bool replace_invalid = false;  // invalid UTF-8 becomes U+FFFD; else it is an error
  double valid_fraction = 0.01;  // of the train documents, where no valid texts are given
  double test_fraction = 0.01;   // likewise
  PairOptions pairs;

  // Whether a file of pairs is written.
  bool WritesPairs() const {
    return kind == TokenizeKind::kNumerals || !pairs.texts.front().source.empty() ||
           !pairs.texts.front().target.empty();
  }
};

void Declare(deck::Schema& schema);  // [data], [tokenize]

// Gives data.stride the value of data.sequence_length if the deck leaves it out.
void Resolve(deck::Deck& deck);

Options Read(const deck::Deck& deck);
TokenizeOptions ReadTokenize(const deck::Deck& deck);

// Throws InputError with the deck's line for a given key that has no effect on this kind of text.
void CheckTokenizeKeys(const TokenizeOptions& options, const deck::Deck& deck);

}  // namespace trireme::data
