// Texts of any size to a token file, by all ranks together.
#ifndef TRIREME_SRC_DATA_TEXT_TOKENIZE_TEXTS_HPP_
#define TRIREME_SRC_DATA_TEXT_TOKENIZE_TEXTS_HPP_

#include <string>
#include <vector>

#include "encoder.hpp"
#include "inputs.hpp"
#include "json_records.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/tokenizer.hpp"
#include "units.hpp"
#include "write_parallel.hpp"

namespace trireme::data {

struct TextPlan {
  std::vector<TextFile> files;
  DocumentEnd document = DocumentEnd::kFile;
  RecordKeys keys;
  bool replace = false;  // invalid UTF-8 by U+FFFD
  EncodeSettings encode;
  std::int64_t unit_bytes = kUnitBytes;
  // Tokens of train are copied to the file while texts are encoded, once there are that many.
  std::int64_t early_tokens = kEarlyTokens;
  std::int64_t early_shift = 0;  // bytes, of their place: for tests of a place that proves wrong
};

// Collective; the same bytes for any number of ranks. Memory does not grow with the texts, but for
// the longest record and the longest stretch without a place where the tokenizer allows a cut.
TextTokens TokenizeTexts(const comm::Communicator& world, Tokenizer& tokenizer,
                         const TextPlan& plan, const std::string& path, const TextWatch& watch);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_TOKENIZE_TEXTS_HPP_
