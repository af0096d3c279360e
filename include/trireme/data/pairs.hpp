// Translation data: token files of source and target texts, their batches, and the built-in
// numerals.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {

// What a plan needs to know about a file of pairs.
struct PairCounts {
  std::int64_t source_vocabulary = 0, target_vocabulary = 0;  // types
  bool shared_vocabulary = true;                              // source and target use the same one
  std::array<std::int64_t, 3> pairs{};                        // by Split
  std::array<std::int64_t, 3> source_tokens{}, target_tokens{};
};
// Reads those numbers; checks everything but the arrays' elements. Serial; needs no MPI. Throws
// InputError as CountTokens does, and for a file of single texts.
PairCounts CountPairs(const std::string& path);

class PairFile {
 public:
  // Opens a file of pairs, each side as a TokenFile. Collective; arguments and errors are those of
  // TokenFile's constructor. In the file each text ends with the eos of its vocabulary.
  PairFile(const comm::Communicator& world, const comm::Communicator& node, const std::string& path,
           const Keeping& keeping, const std::function<void()>& after_round = {});
  // Takes texts in memory, one per document of `source` and `target`. Collective, like TokenFile's
  // constructor. Throws AgreedError if the two sides differ in their number of texts.
  PairFile(const comm::Communicator& world, const TokenData& source, const TokenData& target);

  std::int64_t Pairs(Split split) const { return source_.Documents(split); }
  // One side's token file, with vocabulary, tokenizer and ids; side: kSource or kTarget.
  const TokenFile& Of(Side side) const { return side == Side::kSource ? source_ : target_; }

  // Fills `lengths` with the token counts, eos included, of pairs first, first + 1, ... Serial; if
  // the file is streamed, only on ranks that read it. Throws RunError as class Windows does.
  void ReadLengths(Side side, Split split, std::int64_t first,
                   std::span<std::int32_t> lengths) const;
  // Replaces `ids` by one text of a pair, eos included. Same conditions and errors.
  void ReadText(Side side, Split split, std::int64_t pair, std::vector<std::int32_t>& ids) const;

  // Encodes a text as the file would hold it, with eos. Not thread-safe. Throws InputError as
  // TokenFile::Encode does.
  std::vector<std::int32_t> Encode(Side side, std::string_view text) const;
  // Decodes ids up to the first eos, if there is one.
  std::string Decode(Side side, std::span<const std::int32_t> ids) const;

 private:
  void CheckCounts(const comm::Communicator& world) const;
  TokenFile source_, target_;
};

// Fills in the lengths of pairs first, first + 1, ..., eos included.
using ReadPairLengths = std::function<void(std::int64_t first, std::span<std::int32_t> source,
                                           std::span<std::int32_t> target)>;

// Size of one step's batch.
struct PairBatchShape {
  std::int64_t pairs = 0;
  std::int64_t source_length = 0, target_length = 0;  // padded lengths: those of the longest texts
  std::int64_t source_tokens = 0, target_tokens = 0;  // without padding
};

// Batches of pairs of similar length, in an order that is a pure function of seed and step
// (numerical rule 1). Pairs are sorted by length and cut into batches, so that there is little
// padding. Pairs with the same source and target lengths form a class. In each epoch the pairs are
// shuffled within their class and the batches among themselves, so the shapes are the same in all
// epochs, and each pair occurs once per epoch. Memory: 4 bytes per pair (8 from 2^32 pairs on), 24
// per class and 32 per batch.
class PairBatches {
 public:
  struct Options {
    std::uint32_t seed = 0;
    // Upper limits of the source and target tokens in a batch, padding included; 0: no limit.
    std::int64_t source_tokens = 0, target_tokens = 4096;
    std::int64_t pairs = 0;  // upper limit of the pairs in a batch; 0: no limit
    // Longest texts that the model accepts, eos included; 0: no limit but that of the batch.
    std::int64_t longest_source = 0, longest_target = 0;
    LongPairs long_pairs = LongPairs::kRefuse;
    bool shuffle = true;  // false: sorted by length, equal ones in the file's order (validation)
  };

  // Reads all lengths twice, 64 Ki pairs at a time. Serial; a pure function of lengths and options.
  // Throws InputError if an option is out of range, if there is no limit at all, if kRefuse meets
  // long pairs (naming their number and the first), and if no pair remains.
  PairBatches(std::int64_t pairs, const ReadPairLengths& lengths, const Options& options);

  std::int64_t Pairs() const { return pairs_; }       // per epoch
  std::int64_t LeftOut() const { return left_out_; }  // pairs dropped as too long
  std::int64_t StepsPerEpoch() const { return std::ssize(batches_) - 1; }
  // Share of padding in an epoch's source and target tokens together, 0 to 1.
  double PaddedShare() const;
  std::int64_t MemoryBytes() const;

  // Shape of the most typical batch: the one whose pairs and padded source and target tokens are
  // nearest to the epoch's means, by the sum of relative differences.
  PairBatchShape Typical() const;

  // The following take a step number, counted from 0.
  PairBatchShape Shape(std::int64_t step) const;
  // Target tokens in all steps before this one, eos included. Costs a walk over the steps of its
  // epoch.
  std::int64_t TargetsBefore(std::int64_t step) const;
  // Replaces `pairs` by the pairs at positions [share.begin, share.end) of the step's batch,
  // clipped to it, as indices in the split. Data replica d of D takes PartOf(Shape(step).pairs, d,
  // D), so that the batch does not depend on the layout.
  void Fill(std::int64_t step, const Part& share, std::vector<std::int64_t>& pairs) const;

 private:
  // A run of pairs with equal lengths.
  struct Class {
    std::int64_t begin = 0;  // first place in the sorted order
    std::int64_t pairs = 0;
    std::int32_t source = 0, target = 0;  // lengths
  };
  struct Batch {
    std::int64_t begin = 0;  // first place in the sorted order
    std::int32_t source_length = 0, target_length = 0;
    std::int64_t sources_before = 0, targets_before = 0;  // tokens of earlier batches in that order
  };
  // Which batch a step uses.
  struct Place {
    std::int64_t epoch = 0;
    std::size_t batch = 0;  // index in batches_
  };

  // Sort key. Lengths fit in 31 bits: longer ones were refused.
  static std::uint64_t KeyOf(std::int32_t source, std::int32_t target) {
    return static_cast<std::uint64_t>(source) << 32 | static_cast<std::uint32_t>(target);
  }
  void CheckOptions() const;
  void CountClasses(std::int64_t pairs, const ReadPairLengths& lengths);
  void OrderClasses();
  void CutBatches();
  void PlacePairs(std::int64_t pairs, const ReadPairLengths& lengths);
  bool IsLong(std::int64_t source, std::int64_t target) const;
  std::int64_t MorePairs(std::int64_t held, std::int64_t source, std::int64_t target) const;
  Place PlaceOf(std::int64_t step) const;
  PairBatchShape ShapeOf(std::size_t batch) const;
  std::int64_t PaddedTokens() const;  // per epoch
  std::int64_t PairAt(std::size_t which, std::int64_t epoch, std::int64_t place) const;

  Options options_;
  std::int64_t pairs_ = 0, left_out_ = 0;
  std::vector<Class> classes_;        // in the sorted order
  std::vector<Batch> batches_;        // in the same order, plus one that marks the end
  std::vector<std::uint32_t> order_;  // [pairs]: indices by class, within each in the file's order
  std::vector<std::int64_t> long_order_;  // replaces order_ from 2^32 pairs on
};

// Batch options that a deck asks for.
PairBatches::Options BatchesOf(const Options& options, std::uint32_t seed);

// Fills `entry` with the given pairs of a split, padded to the lengths of `shape`; a length of 0
// there means that of the longest of these texts. Decoder inputs are eos, then the target without
// its last token. before: added to a pair's index to give its ordinal. Reuses the entry's memory.
// Serial; if the file is streamed, only on ranks that read it.
void FillEntry(const PairFile& file, Split split, std::span<const std::int64_t> pairs,
               const PairBatchShape& shape, std::int64_t before, Entry& entry);

// A function that reads the lengths of a split.
ReadPairLengths LengthsOf(const PairFile& file, Split split);
// Opens the file at `path` for it. Serial; needs no MPI. Throws InputError as CountPairs does.
ReadPairLengths LengthsOf(const std::string& path, Split split);

// The numerals: numbers written as digits, in English and in German, a translation task in which
// each source has one right answer.

inline constexpr std::int64_t kLargestNumeral = 999'999'999;

// Spell a number, 0 <= number <= kLargestNumeral. Digits are grouped in threes by blanks. English
// is American, without "and". German writes everything below a million as one word, which begins
// with "hundert" or "tausend" rather than "einhundert" or "eintausend".
std::string InDigits(std::int64_t number);   // "1 342 117"
std::string InEnglish(std::int64_t number);  // "three hundred forty-two"
std::string InGerman(std::int64_t number);   // "eine Million hunderteinundzwanzigtausendeins"

struct NumeralPair {
  std::int64_t number = 0;
  std::string source;  // tag that names the target's form, a blank, the number in another form
  std::string target;
};

// The split to which a number belongs, by a hash of the number: valid and test get 1% of all
// numbers each; numbers below 100 are always train.
Split SplitOfNumber(std::int64_t number);

// Pair `index` of a split: a pure function (Philox). Its number is written with 3 to 9 digits,
// leading zeros included; each length is equally likely, and so is each number of a length. Source
// and target are two different forms out of digits, English and German; all choices are equally
// likely. Pairs may repeat.
NumeralPair MakeNumeralPair(std::uint32_t seed, Split split, std::int64_t index);

// The pieces that make up all sources and targets; "<eos>" is first.
Vocabulary NumeralVocabulary();

}  // namespace trireme::data
