// Tokenises documents of any number and size, single texts or pairs, into a token file by all
// ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "documents.hpp"
#include "encoder.hpp"
#include "inputs.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Supplies a token file's documents in units of work, the same for any number of ranks.
class DocumentMaker {
 public:
  virtual ~DocumentMaker() = default;
  virtual std::size_t Units() const = 0;
  // Units that a rank works on, ascending. By default, units are dealt out in turn.
  virtual std::vector<std::size_t> UnitsOf(int rank, int ranks) const;
  // Amount of work in a unit, in the measure that `tell` uses.
  virtual std::int64_t WorkIn(std::size_t unit) const = 0;
  virtual std::int64_t Bytes() const { return 0; }  // size of all input
  // Encodes the unit's documents in order. tell: called again and again with the work done so far;
  // may throw.
  virtual UnitResult Make(std::size_t unit, Encoder& to, const UnitProgress& tell) = 0;
};

// From this number of train tokens on, their place in the file does not depend on the number: HDF5
// packs smaller datasets together.
inline constexpr std::int64_t kEarlyTokens = 1 << 12;

// Where documents go, and how they are encoded.
struct TokenFilePlan {
  const std::string& path;
  const TextTokenizers& tokenizers;
  const EncodeSettings& settings;
  const TextWatch& watch;
  // With single texts, once this many train tokens exist, they are copied to the file while texts
  // are still being encoded.
  std::int64_t early_tokens = kEarlyTokens;
  std::int64_t early_shift = 0;  // bytes; tests shift the copy by it, to a wrong place
};

// Encodes and writes all documents; the bytes do not depend on the number of ranks. The file has a
// temporary name until it is complete, so an error leaves nothing. Collective; an error on one rank
// is thrown on all. Throws InputError for a split without documents.
TextTokens TokenizeDocuments(const comm::Communicator& world, DocumentMaker& maker,
                             const TokenFilePlan& plan);

struct TextPlan {
  std::vector<TextFile> files;
  DocumentEnd document = DocumentEnd::kFile;
  RecordKeys keys;
  bool replace = false;  // replace invalid UTF-8 by U+FFFD
  EncodeSettings encode;
  std::int64_t unit_bytes = kUnitBytes;
  std::int64_t early_tokens = kEarlyTokens, early_shift = 0;  // as in TokenFilePlan
};

// Hands the documents of a unit to `sink`. Returns only the numbers of what was replaced and
// dropped.
UnitResult ReadUnit(const TextPlan& plan, const TextUnit& unit, RecordSink& sink,
                    const UnitProgress& tell);

// TokenizeDocuments for single texts. Memory is bounded but for the longest record and the longest
// stretch in which the tokenizer allows no cut.
TextTokens TokenizeTexts(const comm::Communicator& world, Tokenizer& tokenizer,
                         const TextPlan& plan, const std::string& path, const TextWatch& watch);

// Exchanges the counts of finished units while ranks encode, so that a unit's place among the
// tokens is known as soon as all earlier units are counted. Works in rounds of a non-blocking
// all-reduce, in which every rank takes part, with or without units, until all units are counted.
class UnitRounds {
 public:
  // units: their number over all ranks. mine: this rank's finished units, ascending, to which the
  // caller appends; must outlive the object. least: tokens per split from which on Ready() is true.
  // Collective.
  UnitRounds(const comm::Communicator& world, std::size_t units,
             const std::vector<UnitResult>& mine, const std::array<std::int64_t, 3>& least);
  UnitRounds(const UnitRounds&) = delete;
  UnitRounds& operator=(const UnitRounds&) = delete;

  // If the round under way has ended, takes its result and begins the next. Does not block.
  void Look();
  // Number of rounds that this rank has begun.
  std::int64_t Begun() const { return begun_; }
  // Units [0, Known()) are counted, the same on every rank after the same round.
  std::size_t Known() const { return starts_.size() - 1; }
  // Train tokens in the units before `unit`, which is at most Known().
  std::int64_t Before(std::size_t unit) const { return starts_.at(unit); }
  // Whether every split is known to get its least number of tokens.
  bool Ready() const;
  bool Ended() const { return Known() == units_; }  // then no rank has a round under way

  // After an error: completes the rounds that some ranks have begun. Collective over `world`.
  void Drain(const comm::Communicator& world);

 private:
  void Begin();
  void Take();

  comm::Communicator ranks_;
  std::size_t units_;
  const std::vector<UnitResult>& mine_;
  std::array<std::int64_t, 3> least_;
  std::vector<std::int64_t> starts_ = {0};  // [Known() + 1]: train tokens before each unit
  // Tokens by Split in finished units: this rank's, and all ranks'.
  std::array<std::int64_t, 3> own_{}, all_{};
  std::size_t summed_ = 0;  // number of units of mine_ that own_ counts
  std::size_t first_ = 0;   // index in mine_ of the first unit from Known() on
  // Messages of a round: tokens by Split, then for each unit from Known() on its number of train
  // tokens plus 1, or 0 if it is not finished.
  std::vector<std::int64_t> sent_, sums_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::int64_t begun_ = 0;  // number of rounds
};

// Hint for texts whose documents are too few for the splits. documents: those shared out.
std::string TooFewToShare(std::int64_t documents, const EncodeSettings& settings);

}  // namespace trireme::data
