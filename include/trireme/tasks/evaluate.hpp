// The [evaluate] section.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/inference.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

// Changes to a text before it is tokenised.
enum class Detokenise { kNone, kWikitext };

struct EvaluateOptions {
  std::int64_t stride = 0;  // tokens between the beginnings of windows; 0: their length
  std::string text;         // path; empty: no text but the token file's
  Detokenise detokenise = Detokenise::kNone;
  bool baselines = false;
  // Paths; empty: none.
  std::string documents;  // HDF5, written
  std::string choices;    // JSONL, read
  std::string output;     // JSONL, written
  std::string results;    // JSON, written
  bool overwrite = false;
};

void DeclareEvaluate(deck::Schema& schema);  // [evaluate]

EvaluateOptions ReadEvaluate(const deck::Deck& deck);

// Throws InputError with the deck's line for keys that do not fit together, files that are not
// there and files that cannot be written. Serial. length: data.sequence_length.
void CheckEvaluate(const EvaluateOptions& options, const deck::Deck& deck, std::int64_t length);
// The same for a model that translates; it also refuses keys that such a model has no use for.
void CheckPairs(const EvaluateOptions& options, const deck::Deck& deck);

// Scores of translations against one reference each: corpus BLEU (Papineni et al. 2002,
// doi:10.3115/1073083.1073135) and chrF (Popović 2015, doi:10.18653/v1/W15-3049) with the
// definitions of sacrebleu (Post 2018, arXiv:1804.08771), and exact match.

// Counts of texts, from which all scores follow. Whole numbers: sums over texts, and over ranks,
// are the same in any order.
struct ScoreCounts {
  static constexpr std::size_t kWordOrders = 4;       // of BLEU's n-grams
  static constexpr std::size_t kCharacterOrders = 6;  // of chrF's
  // N-grams of one order.
  struct Grams {
    std::int64_t hypothesis = 0, reference = 0, matches = 0;
  };

  std::int64_t texts = 0, exact = 0;  // exact: byte for byte
  std::int64_t hypothesis_words = 0, reference_words = 0;
  std::array<Grams, kWordOrders> words{};            // n-grams of n = 1, 2, ... words
  std::array<Grams, kCharacterOrders> characters{};  // likewise, of characters that are no blanks

  ScoreCounts& operator+=(const ScoreCounts& other);
};

// Counts of one text. UTF-8; a byte that is none counts as a character.
ScoreCounts CountMatches(std::string_view hypothesis, std::string_view reference);

// Scores of all texts, 0 to 100; 0 without texts.
double Bleu(const ScoreCounts& counts);
double ChrF(const ScoreCounts& counts);  // chrF2
double ExactMatch(const ScoreCounts& counts);
// "99.9": rounded down, so that 100.0 is all of them.
std::string ExactMatchText(const ScoreCounts& counts);

// Beam search for the best continuation of a text, without the model: it is told the likeliest next
// tokens of each beam, and tells which beams go on from which.

// A step keeps the `beams` likeliest of all texts that are one token longer; those that end with
// eos leave the beam (Sutskever et al. 2014, arXiv:1409.3215, section 3.2). Of the texts that have
// ended the one with the largest score is the best: its log-probability / penalty(tokens), with
// penalty(n) = ((5 + n) / 6)^length_penalty (Wu et al. 2016, arXiv:1609.08144, equation 14), n with
// the eos. With one beam this is greedy choice. Ties: the better beam, then the smaller token; of
// scores, the text that ended first. So the result is a pure function of the log-probabilities.
class BeamSearch {
 public:
  struct Options {
    std::int64_t beams = 1;     // from 1 on
    double length_penalty = 0;  // not negative; 0: the likeliest text
    std::int64_t longest = 1;   // tokens of a text, from 1 on; a longer one is cut off
    std::int32_t eos = 0;
  };
  // A next token of a beam.
  struct Candidate {
    std::int32_t token = -1;     // -1: there is none
    double log_probability = 0;  // nats, after the beam's text
  };
  // A text that is not complete.
  struct Beam {
    std::int64_t parent = 0;           // number of the beam that it goes on from, before the step
    std::vector<std::int32_t> tokens;  // the newest last
    double log_probability = 0;        // sum, nats
  };
  struct Result {
    std::vector<std::int32_t> tokens;  // with the eos, if it has ended
    double log_probability = 0;        // sum, nats
    double score = 0;
    bool ended = false;  // by eos; false: cut off
  };

  explicit BeamSearch(const Options& options);

  // Beams that go on, the likeliest first; one without tokens at first, none once Done().
  const std::vector<Beam>& Beams() const { return beams_; }
  // candidates: [Beams(), options.beams], the likeliest next tokens of each beam, of equal ones
  // those with the smallest ids; in any order. Not after Done().
  void Advance(std::span<const Candidate> candidates);
  // Whether no text could become the best any more, or all are cut off.
  bool Done() const { return beams_.empty(); }
  // The best text that has ended or, if none has, the best of those cut off. Once Done().
  const Result& Best() const { return *best_; }

 private:
  double Penalty(std::int64_t tokens) const;
  void Offer(const Beam& beam, bool ended);

  Options options_;
  std::vector<Beam> beams_ = {{}};
  std::optional<Result> best_;
};

// Replaces the first `count` of `candidates` by the likeliest tokens of a distribution, of equal
// ones those with the smallest ids, by falling logits; without as many tokens, by none. logits: not
// empty, all finite. Throws RunError for fewer than `count` candidates.
void LikeliestTokens(std::span<const double> logits, std::int64_t count,
                     std::span<BeamSearch::Candidate> candidates);

// Texts that are written token by token, on all ranks of a grid.

// Whether this rank is the first one of its replica.
bool LeadsReplica(const comm::ProcessGrid& grid);

// Passes of a turn: one more token of each text.
struct TurnPasses {
  std::vector<data::Entry> entries;
  std::vector<model::CachedPlaces> places;  // [entries]
};
// Chooses for `rows` rows of logits, the first of which is the turn's row `first`.
using ChooseRows =
    FunctionRef<void(const std::vector<double>& logits, std::size_t first, std::size_t rows)>;
// Collective over a replica; with sharded values over the model's grid. Runs the passes, at most as
// many at once as the model takes, and calls choose on the rank that chooses for the replica, in
// the order of the rows. passes: the most of any rank; ranks with fewer add empty ones if the
// others wait for them.
void RunPasses(model::ParallelModel& model, std::int64_t passes, TurnPasses& turn,
               ChooseRows choose);

// Collective over a replica, whose processors may round differently: replaces choices by those of
// the first tensor rank of the last stage. choices: fp64 numbers.
void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers);

// Collective over the grid. Runs turns until no rank has passes left. make: makes this rank's turn
// and returns its passes; run: runs it, with the most passes of any rank, where there are some or
// others wait for them. stopped: whether this rank wishes to stop; may be empty. finite: whether
// its predictions were. Returns true if a rank wished to stop; AgreedError (exit code 1) if
// predictions of a rank were not finite.
bool RunTurns(const model::ParallelModel& model, const std::function<bool()>& stopped,
              const bool& finite, FunctionRef<std::int64_t()> make,
              FunctionRef<void(std::int64_t passes)> run);

// Calls `add` with the parts of `list` that the stages of a pipeline take, so that all of them
// work.
template <typename T, typename Add>
void EachStagesPart(const comm::ProcessGrid& grid, const std::vector<T>& list, Add add) {
  const int stages = grid.Shape().pipeline;
  for (int stage = 0; stage < stages; ++stage) {
    const Part part = PartOf(std::ssize(list), stage, stages);
    if (part.Size() == 0) continue;
    add(std::span(list).subspan(static_cast<std::size_t>(part.begin),
                                static_cast<std::size_t>(part.Size())));
  }
}

// Translations of many texts at once by beam search, on all ranks of a grid.

// Each data replica has places for texts, each of as many slots of the model's cache as a search
// has beams; a place that is free takes the replica's next text, long ones first. A turn is one
// more token of each text: the encoder reads a new one, whose keys and values are kept, and the
// decoder sees the newest token of each beam.
class Translator {
 public:
  struct Setup {
    model::ParallelModel& model;  // that translates, with cache slots for one text at least
    BeamSearch::Options search;   // texts begin with its eos
    std::int64_t types = 0;       // of target texts: rows of the head from here on are no token
    std::function<bool()> stopped = {};  // whether this rank was asked to stop
  };
  // Texts get no longer than the model's sequences. RunError for a model that cannot translate so.
  explicit Translator(Setup setup);

  using Ids = std::vector<std::int32_t>;
  // Collective over the grid, whose ranks pass the same source texts, none empty or longer than the
  // model's sequences. Text i is translated by data rank i % D: on its ranks result i is there,
  // unless Stopped(). AgreedError (exit code 1) if a prediction is not finite.
  std::vector<std::optional<BeamSearch::Result>> Run(std::span<const Ids> sources);
  // Whether the last Run ended early, because a rank was asked to.
  bool Stopped() const { return stopped_; }

 private:
  // A text that is being translated.
  struct Text {
    std::size_t place = 0;  // among the results
    const Ids* source = nullptr;
    BeamSearch search;
    std::vector<std::int32_t> slots;             // [beams]: all that are the text's
    std::vector<bool> has_source;                // [beams]: whether that slot has the source's keys
    std::vector<std::size_t> held;               // [search.Beams()]: number of its slot
    std::vector<model::CachedCopy> copies = {};  // before the next pass
    bool begun = false;

    std::int32_t LastSource() const { return static_cast<std::int32_t>(source->size()) - 1; }
  };
  // A beam of a text, whose next tokens a row of logits has.
  struct Row {
    Text* text = nullptr;
    std::size_t beam = 0;
  };
  // The passes of a turn, and the rows that they give, in order. A text's rows are neighbours.
  struct Turn : TurnPasses {
    std::vector<Row> rows;
  };
  std::size_t Width() const { return static_cast<std::size_t>(setup_.search.beams); }
  void Fill();
  Turn MakeTurn();
  void AddFresh(Turn& turn, std::span<Text* const> texts) const;
  void AddContinued(Turn& turn, std::span<const Row> rows) const;
  std::size_t FreshTogether(std::span<Text* const> texts) const;
  void RunTurn(Turn& turn, std::int64_t entries);
  void Choose(std::span<const double> logits, std::span<double> choices) const;
  void Advance(std::span<const Row> rows, std::span<const double> choices);
  void MoveBeams(Text& text) const;

  Setup setup_;
  std::span<const Ids> sources_;
  std::vector<std::size_t> order_;             // this replica's texts, long ones first
  std::size_t next_ = 0;                       // in order_
  std::vector<std::unique_ptr<Text>> active_;  // [places]; null: free
  std::vector<std::optional<BeamSearch::Result>> results_;
  bool finite_ = true, stopped_ = false;
};

// The set-up of a search for a file's target texts. stopped: whether this rank was asked to stop.
Translator::Setup SetupOf(model::ParallelModel& model, const data::PairFile& pairs,
                          const GenerateOptions& options, std::function<bool()> stopped);

// Interpolated Kneser-Ney 5-gram model with three discounts per order (Kneser and Ney 1995; Chen
// and Goodman 1999, "An empirical study of smoothing techniques for language modeling"), for
// targets that are known before it counts.

inline constexpr int kOrder = 5;  // tokens of the longest n-gram

// A sequence of tokens of which some are targets.
struct TargetStream {
  std::vector<std::uint32_t> ids;
  // [ids]: tokens right before it that may be its context, at most kOrder - 1.
  std::vector<std::uint8_t> known;
  std::vector<std::uint32_t> targets;  // offsets in ids, each with known >= 1
};

// An n-gram in the order of the sort: the context's tokens, the nearest first, then the target;
// the vocabulary's size for context that is not there.
using NGram = std::array<std::uint32_t, kOrder>;

class KneserNey {
 public:
  // Counts the n-grams of `train`, whose ids lie below `vocabulary`; keeps it, with 8 bytes per
  // target while it sorts and 4 after.
  KneserNey(TargetStream train, std::int64_t vocabulary);

  // -ln p of each target of `stream` in nats, in its order. Takes 124 bytes per target, and one
  // pass over the training targets.
  std::vector<double> Losses(const TargetStream& stream) const;

  // Discounts of n-grams of an order, 1 to kOrder, that were counted once, twice and more often.
  const std::array<double, 3>& Discounts(int order) const {
    return discounts_[static_cast<std::size_t>(order - 1)];
  }

  // Discounts from the numbers of n-grams counted 1, 2, 3 and 4 times: equation 26 of Chen and
  // Goodman; 1/2, 1 and 3/2 where it does not give 0 < D_i <= i.
  static std::array<double, 3> DiscountsOf(const std::array<std::int64_t, 4>& counted);

 private:
  struct Seen;
  class Scan;

  void Sort();
  double Loss(const NGram& ngram, const std::array<Seen, kOrder>& seen) const;

  TargetStream train_;  // targets in the order of their n-grams, once sorted
  std::uint32_t vocabulary_;
  std::array<std::array<double, 3>, kOrder> discounts_{};
};

// Losses of simple models beside the trained one, learned from a token file's train split.

inline constexpr std::int64_t kMostBaselineTokens = 100'000'000;  // of the train split
inline constexpr std::int64_t kBaselineTokenBytes = 13;  // of memory per token of it, at most

// All tokens of a split and its targets that count; the split's first token is none. With
// document_mask a context begins with its document, whose first token is none either. Serial.
TargetStream ReadTargets(const data::TokenFile& file, data::Split split, bool document_mask);

class Baselines {
 public:
  // Serial. Reads the train split of `file` unless it has more than `most` tokens: then only the
  // uniform distribution is left. Throws as data::TokenReader does.
  Baselines(const data::TokenFile& file, bool document_mask,
            std::int64_t most = kMostBaselineTokens);

  // Why the learned ones are left out; empty: they are there.
  const std::string& LeftOut() const { return left_out_; }

  // Summed losses in nats over the targets of a split that count: name and sum.
  struct Result {
    std::vector<std::pair<std::string, double>> nats;  // "uniform", "unigram", "5-gram"
    std::int64_t targets = 0;
  };
  // Serial. Of a file with the vocabulary of the first one. Reads it in pieces.
  Result Evaluate(const data::TokenFile& file, data::Split split) const;

 private:
  std::int64_t vocabulary_;
  bool document_mask_;
  std::string left_out_;
  std::vector<double> unigram_;    // [vocabulary]: -ln p, of (occurrences + 1) / (targets + types)
  std::vector<KneserNey> n_gram_;  // one, or none
};

// WikiText's tokenisation undone, as for GPT-2 (Radford et al. 2019, section 3.1): a reversible
// change of its word-level text into text as people write it.

// Follows, rule by rule and in their order, the function that Megatron-LM and the Language Model
// Evaluation Harness use, on the whole text.
std::string DetokeniseWikitext(std::string text);

// Softmax of the logits of a vocabulary, in fp64.

// Smallest and largest of some numbers, of which there is one at least and none is NaN.
struct Extremes {
  double least = 0, most = 0;
};
Extremes ExtremesOf(std::span<const double> values);

// Replaces weights by exp((logits[i] - top) / temperature), within 3e-16 relative, and returns
// their sum. top: the largest logit, or more.
double Weigh(std::span<const double> logits, double top, double temperature,
             std::vector<double>& weights);

// Whether a token can be chosen: no logit is infinite or NaN.
bool AllFinite(std::span<const double> logits);

// log softmax(logits)[token], in nats.
double LogProbability(std::span<const double> logits, std::int32_t token);

// Logarithm of the sum of exponentials: less it, a logit is the logarithm of a probability, in
// nats.
double LogSumOfExponentials(std::span<const double> logits);

}  // namespace trireme::tasks
