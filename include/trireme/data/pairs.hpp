// A file of pairs: source and target texts of a translation, read as two token files in one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

// Numbers of a file of pairs that a plan needs.
struct PairCounts {
  std::int64_t source_vocabulary = 0, target_vocabulary = 0;  // types
  bool shared_vocabulary = true;                              // both texts have one
  std::array<std::int64_t, 3> pairs{};                        // by Split
  std::array<std::int64_t, 3> source_tokens{}, target_tokens{};
};
// Checks everything but the arrays' elements. Serial; needs no MPI. Throws InputError as
// CountTokens does, also for a file of single texts.
PairCounts CountPairs(const std::string& path);

class PairFile {
 public:
  // Collective; arguments and errors as of TokenFile, which reads each side. Each text ends with
  // its vocabulary's eos.
  PairFile(const comm::Communicator& world, const comm::Communicator& node, const std::string& path,
           const Keeping& keeping, const std::function<void()>& after_round = {});
  // Of texts in memory, each a document. Collective, as of TokenFile. Throws AgreedError if their
  // numbers differ.
  PairFile(const comm::Communicator& world, const TokenData& source, const TokenData& target);

  std::int64_t Pairs(Split split) const { return source_.Documents(split); }
  // Of kSource or kTarget: vocabulary, tokenizer, ids.
  const TokenFile& Of(Side side) const { return side == Side::kSource ? source_ : target_; }

  // Tokens of the texts of pairs [first, first + lengths.size()), eos included. Serial; of a
  // stream, on ranks that read it. Throws RunError as class Windows does.
  void ReadLengths(Side side, Split split, std::int64_t first,
                   std::span<std::int32_t> lengths) const;
  // Replaces `ids` by those of the text of one pair, eos included. Likewise.
  void ReadText(Side side, Split split, std::int64_t pair, std::vector<std::int32_t>& ids) const;

  // Ids of a text, with eos: what the file holds for it. Throws InputError as TokenFile::Encode. By
  // one thread at a time.
  std::vector<std::int32_t> Encode(Side side, std::string_view text) const;
  // Text of ids up to the first eos, if there is one.
  std::string Decode(Side side, std::span<const std::int32_t> ids) const;

 private:
  void CheckCounts(const comm::Communicator& world) const;
  TokenFile source_, target_;
  // Ids that the tokenizers' templates put after a text, of source and target, once they are known.
  mutable std::array<std::optional<std::vector<std::int32_t>>, 2> suffixes_;
};

// Batches of pairs of about equal lengths, in an order that is a pure function of seed and step
// (numerical rule 1).

// Lengths of pairs [first, first + source.size()), eos included.
using ReadPairLengths = std::function<void(std::int64_t first, std::span<std::int32_t> source,
                                           std::span<std::int32_t> target)>;

// Sizes of a step's batch.
struct PairBatchShape {
  std::int64_t pairs = 0;
  std::int64_t source_length = 0, target_length = 0;  // of the longest texts: padded to
  std::int64_t source_tokens = 0, target_tokens = 0;  // without padding
};

// A batch is a run of pairs sorted by length, so that little of it is padding. Pairs of equal
// source and target lengths are a class; they change places in each epoch, and so do the batches.
// The classes that meet in a batch, and thus all shapes, are the same in each epoch. Each pair
// comes once in an epoch. Memory: 4 bytes per pair (8 from 2^32 pairs on), 24 per class and 32 per
// batch.
class PairBatches {
 public:
  struct Options {
    std::uint32_t seed = 0;
    // Most tokens of a batch, padding included, of source and of target; 0: no limit.
    std::int64_t source_tokens = 0, target_tokens = 4096;
    std::int64_t pairs = 0;  // most pairs of a batch; 0: no limit
    // Longest texts that the model takes, eos included; 0: any that a batch holds.
    std::int64_t longest_source = 0, longest_target = 0;
    LongPairs long_pairs = LongPairs::kRefuse;
    bool shuffle = true;  // false: shortest first, in the file's order (validation)
  };

  // Reads all lengths twice, 64 Ki pairs at a time. Serial; a pure function of lengths and options.
  // Throws InputError for options out of range, without limits, for long pairs that are to be
  // refused, with their number and the first one, and if no pair is left.
  PairBatches(std::int64_t pairs, const ReadPairLengths& lengths, const Options& options);

  std::int64_t Pairs() const { return pairs_; }       // of an epoch
  std::int64_t LeftOut() const { return left_out_; }  // too long
  std::int64_t StepsPerEpoch() const { return std::ssize(batches_) - 1; }
  // Padding's share of an epoch's source and target tokens together, 0 to 1.
  double PaddedShare() const;
  std::int64_t MemoryBytes() const;

  // The batch nearest to an epoch's means of pairs and of padded source and target tokens, by the
  // sum of relative differences: what a step takes.
  PairBatchShape Typical() const;

  // Functions of a step number, from 0 on.
  PairBatchShape Shape(std::int64_t step) const;
  // Target tokens of all steps before this one, eos included. Walks over the steps of its epoch.
  std::int64_t TargetsBefore(std::int64_t step) const;
  // Replaces `pairs` by places in the split of the batch's pairs at positions [share.begin,
  // share.end), as far as the batch has them. Data replica d of D takes PartOf(Shape(step).pairs,
  // d, D), so that a batch is the same in any layout.
  void Fill(std::int64_t step, const Part& share, std::vector<std::int64_t>& pairs) const;

 private:
  // Pairs of equal lengths.
  struct Class {
    std::int64_t begin = 0;  // first place in the sorted order
    std::int64_t pairs = 0;
    std::int32_t source = 0, target = 0;  // lengths
  };
  struct Batch {
    std::int64_t begin = 0;  // first place in the sorted order
    std::int32_t source_length = 0, target_length = 0;
    std::int64_t sources_before = 0, targets_before = 0;  // tokens of earlier batches
  };
  // A step's batch.
  struct Place {
    std::int64_t epoch = 0;
    std::size_t batch = 0;  // in the sorted order
  };

  // Lengths longer than 31 bits are refused before.
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
  std::int64_t PaddedTokens() const;  // of an epoch
  std::int64_t PairAt(std::size_t which, std::int64_t epoch, std::int64_t place) const;

  Options options_;
  std::int64_t pairs_ = 0, left_out_ = 0;
  std::vector<Class> classes_;            // in the sorted order
  std::vector<Batch> batches_;            // likewise, and one more for the end
  std::vector<std::uint32_t> order_;      // [pairs]: by class, in each by the file's order
  std::vector<std::int64_t> long_order_;  // in place of order_ from 2^32 pairs on
};

// The batches that a deck asks for.
PairBatches::Options BatchesOf(const Options& options, std::uint32_t seed);

// Fills `entry` with pairs of a split, side by side, padded to the lengths of `shape`, or of the
// longest texts among them where those are 0. The decoder reads eos and then the target without its
// last token. before: added to a pair's place in the split, for its ordinal. Reuses the entry's
// memory. Serial; of a stream, on ranks that read it.
void FillEntry(const PairFile& file, Split split, std::span<const std::int64_t> pairs,
               const PairBatchShape& shape, std::int64_t before, Entry& entry);

// The lengths of a file's split.
ReadPairLengths LengthsOf(const PairFile& file, Split split);
// The same of a file that no rank has opened. Serial; needs no MPI. Throws InputError as
// CountPairs.
ReadPairLengths LengthsOf(const std::string& path, Split split);

// The numerals: numbers as digits and as English and German words, a translation problem with one
// right answer.

inline constexpr std::int64_t kLargestNumeral = 999'999'999;

// Spelling of 0 <= number <= kLargestNumeral. Digits stand in groups of three with a blank between
// them. English is American, without "and". German writes what is below a million as one word; a
// word begins with "hundert" or "tausend" rather than "einhundert" or "eintausend".
std::string InDigits(std::int64_t number);   // "1 342 117"
std::string InEnglish(std::int64_t number);  // "three hundred forty-two"
std::string InGerman(std::int64_t number);   // "eine Million hunderteinundzwanzigtausendeins"

struct NumeralPair {
  std::int64_t number = 0;
  std::string source;  // a tag of the target's form, a blank, the number in another form
  std::string target;
};

// Split of the pairs of a number: a hundredth of the numbers are each of valid and test, by a hash
// of the number alone; numbers below 100 are always train.
Split SplitOfNumber(std::int64_t number);

// Pair `index` of a split: a pure function (Philox). The number has 3 to 9 digits, leading zeros
// included, each length equally often, and then each number; forms of source and target are
// different ones of digits, English and German, each two equally often. A pair may come again.
NumeralPair MakeNumeralPair(std::uint32_t seed, Split split, std::int64_t index);

// Pieces of which all sources and targets are made, "<eos>" first (eos).
Vocabulary NumeralVocabulary();

}  // namespace trireme::data
