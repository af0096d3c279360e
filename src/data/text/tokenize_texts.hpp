// Documents of any number and size, single texts or pairs, to a token file, by all ranks together.
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
#include "write_parallel.hpp"

namespace trireme::data {

// Gives the documents of a token file in units, which are the same for any number of ranks.
class DocumentMaker {
 public:
  virtual ~DocumentMaker() = default;
  virtual std::size_t Units() const = 0;
  // Units that a rank works on, ascending. By default the ranks take turns.
  virtual std::vector<std::size_t> UnitsOf(int rank, int ranks) const;
  // Work in a unit, as `tell` counts it.
  virtual std::int64_t WorkIn(std::size_t unit) const = 0;
  virtual std::int64_t Bytes() const { return 0; }  // of all input
  // Encodes the unit's documents, in order. tell: to be called again and again with the work that
  // is done; may throw.
  virtual UnitResult Make(std::size_t unit, Encoder& to, const UnitProgress& tell) = 0;
};

// Where documents go, and how.
struct TokenFilePlan {
  const std::string& path;
  const TextTokenizers& tokenizers;
  const EncodeSettings& settings;
  const TextWatch& watch;
  // Tokens of train are copied to the file while documents of one text are encoded, once there are
  // that many.
  std::int64_t early_tokens = kEarlyTokens;
  std::int64_t early_shift = 0;  // bytes, of their place: for tests of a place that proves wrong
};

// Collective; the same bytes for any number of ranks. Writes by way of a temporary name: an error
// on one rank is thrown by all, and nothing is left. Throws InputError for a split without
// documents.
TextTokens TokenizeDocuments(const comm::Communicator& world, DocumentMaker& maker,
                             const TokenFilePlan& plan);

struct TextPlan {
  std::vector<TextFile> files;
  DocumentEnd document = DocumentEnd::kFile;
  RecordKeys keys;
  bool replace = false;  // invalid UTF-8 by U+FFFD
  EncodeSettings encode;
  std::int64_t unit_bytes = kUnitBytes;
  std::int64_t early_tokens = kEarlyTokens, early_shift = 0;  // as of TokenFilePlan
};

// TokenizeDocuments for single texts. Memory does not grow with the texts, but for the longest
// record and the longest stretch without a place where the tokenizer allows a cut.
TextTokens TokenizeTexts(const comm::Communicator& world, Tokenizer& tokenizer,
                         const TextPlan& plan, const std::string& path, const TextWatch& watch);

// Counts of finished units, exchanged while ranks encode: a unit's place among the tokens is known
// once all earlier units are counted, not when all texts are encoded.

// Rounds of a sum that does not block. Every rank takes part in the same rounds, whether it has
// units or not, until all units are counted.
class UnitRounds {
 public:
  // Collective. units: of all ranks. mine: this rank's finished units, ascending, which the caller
  // appends to; must live longer. least: tokens by split at which Ready() says yes.
  UnitRounds(const comm::Communicator& world, std::size_t units,
             const std::vector<UnitResult>& mine, const std::array<std::int64_t, 3>& least);
  UnitRounds(const UnitRounds&) = delete;
  UnitRounds& operator=(const UnitRounds&) = delete;

  // Takes the result of a round that has ended, and begins the next. Does not block.
  void Look();
  // Rounds that this rank has begun.
  std::int64_t Begun() const { return begun_; }
  // Units [0, Known()) are counted, the same on every rank after the same round.
  std::size_t Known() const { return starts_.size() - 1; }
  // Tokens of train in the units before `unit`, which is known.
  std::int64_t Before(std::size_t unit) const { return starts_.at(unit); }
  // Every split is known to get at least its least tokens.
  bool Ready() const;
  bool Ended() const { return Known() == units_; }  // no round is under way, on no rank

  // Collective over the ranks of `world`, after an error: ends the rounds that some have begun.
  void Drain(const comm::Communicator& world);

 private:
  void Begin();
  void Take();

  comm::Communicator ranks_;
  std::size_t units_;
  const std::vector<UnitResult>& mine_;
  std::array<std::int64_t, 3> least_;
  std::vector<std::int64_t> starts_ = {0};     // [Known() + 1], tokens of train before a unit
  std::array<std::int64_t, 3> own_{}, all_{};  // tokens by split: of this rank's, of all's units
  std::size_t summed_ = 0;                     // units of mine_ in own_
  std::size_t first_ = 0;                      // of mine_, not known before the round
  // Of the round under way: tokens by split, then for each unit after the known ones 0, or 1 more
  // than its tokens of train.
  std::vector<std::int64_t> sent_, sums_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::int64_t begun_ = 0;  // rounds
};

// Sentences for the training of a tokenizer: a sample of bounded size from the train texts.

inline constexpr std::int64_t kSampleBytes = std::int64_t{64} << 20;

// Lines of the train split's documents, long ones cut at blanks, at most about `most` bytes: of
// larger texts from units at even distances. A pure function of texts and plan. Serial. stop: asked
// now and then; true: RunError. Throws as TokenizeTexts does for faulty texts.
std::vector<std::string> SampleSentences(const TextPlan& plan, const std::function<bool()>& stop,
                                         std::int64_t most = kSampleBytes);

}  // namespace trireme::data
