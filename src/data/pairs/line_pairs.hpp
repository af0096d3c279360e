// Line-aligned texts: line k of a source file and line k of its target file are a pair.
#ifndef TRIREME_SRC_DATA_PAIRS_LINE_PAIRS_HPP_
#define TRIREME_SRC_DATA_PAIRS_LINE_PAIRS_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/documents.hpp"
#include "text/encoder.hpp"
#include "text/inputs.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Pairs to ids, which go to the rank's temporary files with all that writing needs to know.

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

// Pairs from any maker to one file of pairs, by all ranks together.

// Makes pairs in units, the same for any number of ranks.
class PairMaker {
 public:
  virtual ~PairMaker() = default;
  virtual std::size_t Units() const = 0;
  virtual std::int64_t Bytes() const { return 0; }  // of all input
  // Hands the unit's pairs on, in order. tell: to be called for each pair; may throw.
  virtual void Make(std::size_t unit, PairEncoder& to, const std::function<void()>& tell) = 0;
};

// Collective. Writes `path` by way of a temporary name beside it; its bytes do not depend on the
// number of ranks, nor does the memory on the number of pairs, but for 200 bytes per unit. An error
// on one rank is thrown by all, and nothing is left. Throws InputError for a split without pairs.
PairTokens WritePairs(const comm::Communicator& world, const std::string& path, PairMaker& maker,
                      const PairTokenizers& tokenizers, const TextWatch& watch);

// Files in order, the i-th source with the i-th target.
struct LinePlan {
  PerText<std::vector<TextFile>> files;
  bool replace = false;     // invalid UTF-8 by U+FFFD
  EncodeSettings settings;  // fractions of valid and test
  std::int64_t unit_bytes = kUnitBytes;
};

// A range of lines of a source file, and where their targets are.
struct LineUnit {
  std::size_t file = 0;
  std::int64_t lines = 0;
  std::int64_t first = 0;         // lines of the file before it
  std::int64_t source_begin = 0;  // byte before or at the first line
  std::int64_t target_begin = 0;  // likewise, of the line that is `skip` lines before
  std::int64_t skip = 0;
};

// Collective. Counts the lines of all files, each rank those of its share, and cuts them into
// units. Throws AgreedError (exit code 2) for files of unequal numbers of lines, with both numbers
// and the first line without a partner. ask: called now and then; may throw.
std::vector<LineUnit> AlignLines(const comm::Communicator& world, const LinePlan& plan,
                                 const std::function<bool()>& stop);

// Reads line units; pairs with a blank text (white space of ASCII alone) are left out.
class LinePairs : public PairMaker {
 public:
  // The plan must live longer.
  LinePairs(const LinePlan& plan, std::vector<LineUnit> units);

  std::size_t Units() const override { return units_.size(); }
  std::int64_t Bytes() const override;
  // Throws InputError with file and line for a text that is not UTF-8, or longer than 16 MiB.
  void Make(std::size_t unit, PairEncoder& to, const std::function<void()>& tell) override;

  // Texts of the train split's pairs of one unit. Serial.
  using Visit = std::function<void(const PerText<std::string>& texts)>;
  void VisitTrain(std::size_t unit, const Visit& visit) const;

 private:
  struct Read {
    PerText<std::string> texts;
    Split split = Split::kTrain;
    std::int64_t replaced = 0;
    bool blank = false;
    std::int64_t line = 0;  // of the files, from 1
  };
  void ForEach(std::size_t unit, const std::function<void(const Read&)>& visit) const;

  const LinePlan& plan_;
  std::vector<LineUnit> units_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_PAIRS_LINE_PAIRS_HPP_
