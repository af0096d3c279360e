// job.task = tokenize: turns text files, or a built-in corpus, into a token file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

// Tokenises in memory as the deck says, for kinds word, byte and harbour. Serial. target: the token
// file to be written. Throws InputError with the deck's line for a missing or empty file, an empty
// split, invalid UTF-8 (file, line, byte offset), conflicting keys, or a text file that is
// `target`.
TokenData Tokenize(const TokenizeOptions& options, const deck::Deck& deck,
                   const std::string& target);

// What was written; all empty or 0 after a dry run.
struct TextTokens {
  struct Text {
    std::string tokenizer;                 // "bpe", "word lowercase"
    std::int64_t vocabulary = 0;           // types
    std::array<std::int64_t, 3> tokens{};  // by Split
  };
  std::vector<Text> texts = {};             // one or, for pairs, source and target
  std::array<std::int64_t, 3> documents{};  // by Split
  std::int64_t replaced = 0;                // invalid UTF-8 sequences that were replaced
  std::int64_t empty = 0;    // dropped: records without text, pairs with a blank text
  std::int64_t missing = 0;  // dropped: records whose text member is absent or null
  bool early = false;  // train tokens were copied to the file while texts were still being encoded
};

// Called on each rank about once per MiB of text; either may be empty.
struct TextWatch {
  // share: done part of this rank's work, 0 to 1; bytes: input of all ranks together.
  std::function<void(double share, std::int64_t bytes)> progress = {};
  std::function<bool()> stop = {};  // true: give up; then every rank throws, and no file is left
};

// Tokenises texts of any size (kinds bpe and sentencepiece), line-aligned texts (any kind) and the
// numerals into the token file `path`, whose bytes do not depend on the number of ranks. dry:
// checks keys, file names and named tokenizers, but reads no texts and writes nothing. Collective.
// Throws AgreedError with InputError's exit code: keys and files with the deck's line, invalid
// UTF-8 and bad records with file and offset, and line-aligned files with unequal numbers of lines.
TextTokens TokenizeInParallel(const comm::Communicator& world, const TokenizeOptions& options,
                              const deck::Deck& deck, const std::string& path,
                              const TextWatch& watch, bool dry);

}  // namespace trireme::data
