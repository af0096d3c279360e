// Pairs to ids, which go to the rank's temporary files with all that writing needs to know.
#ifndef TRIREME_SRC_DATA_PAIRS_PAIR_ENCODER_HPP_
#define TRIREME_SRC_DATA_PAIRS_PAIR_ENCODER_HPP_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spill.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// By kSourceText, kTargetText.
template <typename T>
using PerText = std::array<T, 2>;
inline constexpr std::size_t kSourceText = 0, kTargetText = 1;
inline constexpr PerText<Side> kPairSides = {Side::kSource, Side::kTarget};

// Tokenizers of the texts; one object twice if they share a vocabulary.
struct PairTokenizers {
  PerText<Tokenizer*> of{};
  PerText<std::int64_t> eos{};  // ends each text
  bool Shared() const { return of[kSourceText] == of[kTargetText]; }
};

// A pair in the temporary files.
struct SpilledPair {
  PerText<std::uint32_t> tokens{};
  std::uint64_t split = 0;
};

// Outcome of a unit. Sent between ranks as it is.
struct PairUnit {
  std::uint64_t unit = 0;                         // its place in the list
  std::array<std::int64_t, 3> pairs{};            // by Split
  std::array<PerText<std::int64_t>, 3> tokens{};  // by Split
  std::int64_t pairs_at = 0;                      // first pair in the rank's file
  PerText<std::int64_t> tokens_at{};              // first tokens in the rank's files
  std::array<std::uint64_t, 2> digest{};          // of the texts and their splits
  std::int64_t empty = 0;                         // pairs left out: a text is blank
  std::int64_t replaced = 0;                      // sequences that were not valid UTF-8
};

// The temporary files of a rank.
struct PairSpills {
  explicit PairSpills(const std::string& folder)
      : pairs(folder), tokens{Spill(folder), Spill(folder)} {}
  Spill pairs;
  PerText<Spill> tokens;
};

// Hash of a pair, which decides on its split (XXH3, 64 bits).
std::uint64_t HashOfPair(std::string_view source, std::string_view target);

class PairEncoder {
 public:
  // The references must live longer.
  PairEncoder(const PairTokenizers& tokenizers, PairSpills& spills);

  void Begin(std::size_t unit);
  // Valid UTF-8. Throws InputError of the tokenizer, without naming the text's place.
  void Add(std::string_view source, std::string_view target, Split split);
  void LeaveOut() { ++result_.empty; }
  void CountReplaced(std::int64_t sequences) { result_.replaced += sequences; }
  PairUnit Finish() const { return result_; }

 private:
  std::uint32_t Encode(std::size_t which, std::string_view text);

  const PairTokenizers& tokenizers_;
  PairSpills& spills_;
  PerText<std::int64_t> width_{};                       // bytes of a stored id
  PerText<std::vector<std::int32_t>> prefix_, suffix_;  // of each text; the suffix ends with eos
  PairUnit result_;
  std::vector<std::int32_t> ids_;      // room
  std::vector<std::uint16_t> narrow_;  // room
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_PAIRS_PAIR_ENCODER_HPP_
