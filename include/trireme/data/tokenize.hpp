// job.task = tokenize: text files, or the built-in harbour corpus, into a token file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

// The harbour corpus: plain English sentences in WikiText's form from a unifilar finite-state
// grammar. Its entropy rate, known in closed form, is a floor below every honest model's loss.

// The grammar: states, each with a distribution over words, each (state, word) leading to one next
// state. Its stationary distribution gives the entropy rate h = sum_s pi(s) H(words | s).
class HarbourGrammar {
 public:
  HarbourGrammar();
  ~HarbourGrammar();
  const Vocabulary& Words() const;
  double EntropyRate() const;  // nats per token, of the stationary process

  // Generates `count` tokens of the stream (seed, split). Random numbers have coordinates (Philox),
  // so that a shorter stream is the beginning of a longer one.
  std::vector<std::int32_t> Generate(std::uint32_t seed, Split split, std::int64_t count) const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

// Tokenises as the deck says, in memory: kinds word, byte, harbour. Serial. Throws InputError with
// the deck's line for a missing or empty file, an empty split, bad UTF-8 (file, line, byte offset),
// keys that do not fit together, or a text that writing `target`, the token file, would replace.
TokenData Tokenize(const TokenizeOptions& options, const deck::Deck& deck,
                   const std::string& target);

// Numbers of what was written; none after a dry run.
struct TextTokens {
  struct Text {
    std::string tokenizer;                 // "bpe", "word lowercase"
    std::int64_t vocabulary = 0;           // types
    std::array<std::int64_t, 3> tokens{};  // by Split
  };
  std::vector<Text> texts = {};             // of a document: one, or source and target
  std::array<std::int64_t, 3> documents{};  // by Split
  std::int64_t replaced = 0;                // sequences that were not valid UTF-8
  std::int64_t empty = 0;    // left out: records without text, pairs of which a text is blank
  std::int64_t missing = 0;  // records that are left out: without the member, or with null
  bool early = false;        // tokens of train were copied to the file while texts were encoded
};

// Functions that follow the work of a rank, about every MiB of text; both may be empty.
struct TextWatch {
  // Share of the rank's work that is done, 0 to 1, and the bytes of all ranks' input.
  std::function<void(double share, std::int64_t bytes)> progress = {};
  std::function<bool()> stop = {};  // true: give up; every rank then throws, nothing is left
};

// Texts of any size for kinds bpe and sentencepiece, line-aligned texts of any kind, and the
// numerals: to the token file `path`, whose bytes do not depend on the number of ranks. Collective.
// Throws AgreedErrors: InputError's exit code with the deck's line for keys and files, with file
// and offset for bad UTF-8 and records, and for pairs of files with unequal numbers of lines. dry:
// keys, names of files and named tokenizers are checked, but no texts, and nothing is written.
TextTokens TokenizeInParallel(const comm::Communicator& world, const TokenizeOptions& options,
                              const deck::Deck& deck, const std::string& path,
                              const TextWatch& watch, bool dry);

}  // namespace trireme::data
