// Evaluation and translation: [evaluate], scores, beam search, Translator, n-gram models, softmax.
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
#include "trireme/data/pairs.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/inference.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

// Change applied to a text before it is tokenised.
enum class Detokenise { kNone, kWikitext };

struct EvaluateOptions {
  std::int64_t stride = 0;  // tokens between the beginnings of windows; 0: the window length
  std::string text;         // path; empty: evaluate only the token file's splits
  Detokenise detokenise = Detokenise::kNone;
  bool baselines = false;
  // Paths; empty: none.
  std::string documents;  // HDF5 file to write
  std::string choices;    // JSONL file to read
  std::string output;     // JSONL file to write
  std::string results;    // JSON file to write
  bool overwrite = false;
};

void DeclareEvaluate(deck::Schema& schema);  // [evaluate]

EvaluateOptions ReadEvaluate(const deck::Deck& deck);

// Serial. Throws InputError with the deck's line for keys that contradict each other, missing files
// and files that cannot be written. length: data.sequence_length.
void CheckEvaluate(const EvaluateOptions& options, const deck::Deck& deck, std::int64_t length);
// The same for an encoder-decoder, for which some keys are refused.
void CheckPairs(const EvaluateOptions& options, const deck::Deck& deck);

// Scores of translations, each against one reference: corpus BLEU (Papineni et al. 2002,
// doi:10.3115/1073083.1073135), chrF (Popović 2015, doi:10.18653/v1/W15-3049), both as sacrebleu
// defines them (Post 2018, arXiv:1804.08771), and exact match.

// Counts from which all scores follow; integers, so that the order of summing does not matter.
struct ScoreCounts {
  static constexpr std::size_t kWordOrders = 4;       // of BLEU's n-grams
  static constexpr std::size_t kCharacterOrders = 6;  // for chrF
  // N-grams of one order: in the translation, in the reference, in both.
  struct Grams {
    std::int64_t hypothesis = 0, reference = 0, matches = 0;
  };

  std::int64_t texts = 0, exact = 0;  // exact: byte for byte
  std::int64_t hypothesis_words = 0, reference_words = 0;
  std::array<Grams, kWordOrders> words{};            // [n - 1]: n-grams of words
  std::array<Grams, kCharacterOrders> characters{};  // [n - 1]: n-grams of characters, no blanks

  ScoreCounts& operator+=(const ScoreCounts& other);
};

// Counts of one text. Both texts are UTF-8; each invalid byte counts as a character.
ScoreCounts CountMatches(std::string_view hypothesis, std::string_view reference);

// Scores over all counted texts, from 0 to 100; 0 if there are none.
double Bleu(const ScoreCounts& counts);
double ChrF(const ScoreCounts& counts);  // chrF2
double ExactMatch(const ScoreCounts& counts);
// Exact match as text, rounded down: "100.0" means that all texts match.
std::string ExactMatchText(const ScoreCounts& counts);

// Beam search for the best continuation of a text, independent of the model: the caller passes the
// likeliest next tokens of each beam; the search says which beams go on from which.
// A step keeps the `beams` likeliest among all texts that are one token longer; those that end with
// eos leave the beam (Sutskever et al. 2014, arXiv:1409.3215, section 3.2). The best ended text has
// the largest score log-probability / penalty(n), penalty(n) = ((5 + n) / 6)^length_penalty, with n
// tokens including eos (Wu et al. 2016, arXiv:1609.08144, equation 14). One beam: greedy choice.
// Ties go to the better beam, then to the smaller token; equal scores to the text that ended first.
// So the result depends on the log-probabilities alone.
class BeamSearch {
 public:
  struct Options {
    std::int64_t beams = 1;     // at least 1
    double length_penalty = 0;  // at least 0; 0: the likeliest text wins
    std::int64_t longest = 1;   // most tokens of a text, at least 1; a longer one is cut off
    std::int32_t eos = 0;
  };
  // A possible next token of a beam.
  struct Candidate {
    std::int32_t token = -1;     // -1: there is none
    double log_probability = 0;  // nats, after the beam's text
  };
  // A text that has not ended.
  struct Beam {
    std::int64_t parent = 0;           // index, before the step, of the beam that it extends
    std::vector<std::int32_t> tokens;  // the newest last
    double log_probability = 0;        // sum over the tokens, nats
  };
  struct Result {
    std::vector<std::int32_t> tokens;  // with the eos, if it has ended
    double log_probability = 0;        // sum over the tokens, nats
    double score = 0;
    bool ended = false;  // true: by eos; false: cut off
  };

  explicit BeamSearch(const Options& options);

  // Unfinished beams, the likeliest first: one without tokens at first, none once Done().
  const std::vector<Beam>& Beams() const { return beams_; }
  // Extends the beams. candidates: [beam, options.beams], each beam's likeliest next tokens in any
  // order; among equals, the smallest ids. Not after Done().
  void Advance(std::span<const Candidate> candidates);
  // Whether the search is over: no beam can become the best any more, or all were cut off.
  bool Done() const { return beams_.empty(); }
  // The best ended text or, if none ended, the best of those cut off. Valid once Done().
  const Result& Best() const { return *best_; }

 private:
  double Penalty(std::int64_t tokens) const;
  void Offer(const Beam& beam, bool ended);

  Options options_;
  std::vector<Beam> beams_ = {{}};
  std::optional<Result> best_;
};

// Fills the first `count` candidates with the likeliest tokens of a distribution, in descending
// order of logits; ties go to smaller ids; spare candidates become empty. logits: not empty, all
// finite. Throws RunError if `candidates` has fewer than `count`.
void LikeliestTokens(std::span<const double> logits, std::int64_t count,
                     std::span<BeamSearch::Candidate> candidates);

// Whether this rank is the first one of its replica.
bool LeadsReplica(const comm::ProcessGrid& grid);

// The passes of a turn, which adds one token to each text.
struct TurnPasses {
  std::vector<data::Entry> entries;
  std::vector<model::CachedPlaces> places;  // [entries], cache places of their tokens
};
// Chooses tokens from `rows` rows of logits; `first` is the turn's index of their first row.
using ChooseRows =
    FunctionRef<void(const std::vector<double>& logits, std::size_t first, std::size_t rows)>;
// Collective over a replica; over the model's grid if values are sharded. Runs the passes, as many
// at once as the model takes; calls `choose` in the order of rows on the replica's choosing rank.
// passes: the most of any rank; if values are sharded, ranks with fewer passes add empty ones.
void RunPasses(model::ParallelModel& model, std::int64_t passes, TurnPasses& turn,
               ChooseRows choose);

// Collective over a replica. Replaces choices by those of the last stage's first tensor rank, since
// processors may round differently. choices: `numbers` fp64 numbers.
void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers);

// Collective over the grid. Runs turns until no rank has passes left. make: prepares this rank's
// turn and returns its passes; run: runs it, given the most passes of any rank. stopped: whether
// this rank wants to stop; may be empty. finite: whether this rank's predictions were. Returns true
// if a rank wanted to stop; AgreedError (exit code 1) if predictions were not finite.
bool RunTurns(const model::ParallelModel& model, const std::function<bool()>& stopped,
              const bool& finite, FunctionRef<std::int64_t()> make,
              FunctionRef<void(std::int64_t passes)> run);

// Splits `list` into parts, so that all pipeline stages have work, and calls `add` with each part.
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

// Translates many texts at once by beam search, on all ranks of a grid.
// Each data replica has places for texts, each with as many cache slots as the search has beams. A
// free place takes the replica's next text, the longest first. A turn adds one token to each text:
// the encoder reads new texts, whose keys and values are kept; the decoder reads each beam's
// newest.
class Translator {
 public:
  struct Setup {
    model::ParallelModel& model;  // an encoder-decoder with cache slots for at least one text
    BeamSearch::Options search;   // its eos also begins each text
    std::int64_t types = 0;  // token types of target texts; further rows of the head are padding
    std::function<bool()> stopped = {};  // whether this rank was asked to stop
  };
  // Translations are cut at the model's sequence length. RunError if the model cannot translate.
  explicit Translator(Setup setup);

  using Ids = std::vector<std::int32_t>;
  // Collective over the grid; all ranks pass the same source texts, none empty or longer than the
  // model's sequences. Data rank i % D translates text i; only its ranks get result i, and only
  // unless Stopped(). AgreedError (exit code 1) if a prediction is not finite.
  std::vector<std::optional<BeamSearch::Result>> Run(std::span<const Ids> sources);
  // Whether the last Run ended early because a rank was asked to stop.
  bool Stopped() const { return stopped_; }

 private:
  // A text that is being translated.
  struct Text {
    std::size_t place = 0;  // index among the results
    const Ids* source = nullptr;
    BeamSearch search;
    std::vector<std::int32_t> slots;  // [beams]: all cache slots of the text
    std::vector<bool> has_source;     // [beams]: whether that slot has the source's keys and values
    std::vector<std::size_t> held;    // [search.Beams()]: index into `slots`
    std::vector<model::CachedCopy> copies = {};  // to be made before the next pass
    bool begun = false;

    std::int32_t LastSource() const { return static_cast<std::int32_t>(source->size()) - 1; }
  };
  // A beam of a text; one row of logits predicts its next token.
  struct Row {
    Text* text = nullptr;
    std::size_t beam = 0;
  };
  // The passes of a turn and the rows that they yield, in order. A text's rows are adjacent.
  struct Turn : TurnPasses {
    std::vector<Row> rows;
  };
  std::size_t Width() const { return static_cast<std::size_t>(setup_.search.beams); }
  void Fill();
  Turn MakeTurn();
  void AddFresh(Turn& turn, std::span<Text* const> texts) const;
  void AddContinued(Turn& turn, std::span<const Row> rows) const;
  void RunTurn(Turn& turn, std::int64_t entries);
  void Choose(std::span<const double> logits, std::span<double> choices) const;
  void Advance(std::span<const Row> rows, std::span<const double> choices);
  void MoveBeams(Text& text) const;

  Setup setup_;
  std::span<const Ids> sources_;
  std::vector<std::size_t> order_;             // indices of this replica's texts, the longest first
  std::size_t next_ = 0;                       // in order_
  std::vector<std::unique_ptr<Text>> active_;  // [places]; null: free
  std::vector<std::optional<BeamSearch::Result>> results_;
  bool finite_ = true, stopped_ = false;
};

// Setup for translating into the target language of `pairs`. stopped: as Setup::stopped.
Translator::Setup SetupOf(model::ParallelModel& model, const data::PairFile& pairs,
                          const GenerateOptions& options, std::function<bool()> stopped);

// Interpolated Kneser-Ney 5-gram model with three discounts per order (Kneser and Ney 1995; Chen
// and Goodman 1999, "An empirical study of smoothing techniques for language modeling"). It keeps
// no table of counts: Losses() counts anew.

inline constexpr int kOrder = 5;  // tokens of the longest n-gram

// A sequence of tokens, some of which are targets to predict.
struct TargetStream {
  std::vector<std::uint32_t> ids;
  // [ids]: how many tokens right before it may be its context, at most kOrder - 1.
  std::vector<std::uint8_t> known;
  std::vector<std::uint32_t> targets;  // offsets in ids, each with known >= 1
};

// An n-gram in sorting order: the context's tokens, nearest first, then the target. Missing context
// tokens are set to the vocabulary's size.
using NGram = std::array<std::uint32_t, kOrder>;

class KneserNey {
 public:
  // Counts the n-grams of `train`, whose ids are below `vocabulary`. Keeps the stream; takes 8
  // bytes per target while sorting and 4 afterwards.
  KneserNey(TargetStream train, std::int64_t vocabulary);

  // -ln p of each target of `stream`, in nats. Takes 132 bytes per target, and a pass over `train`.
  std::vector<double> Losses(const TargetStream& stream) const;

  // Discounts of n-grams counted once, twice, and more often. order: 1 to kOrder.
  const std::array<double, 3>& Discounts(int order) const {
    return discounts_[static_cast<std::size_t>(order - 1)];
  }

  // Discounts from the numbers of n-grams counted 1, 2, 3 and 4 times (Chen and Goodman, equation
  // 26); 1/2, 1 and 3/2 where the equation does not give 0 < D_i <= i.
  static std::array<double, 3> DiscountsOf(const std::array<std::int64_t, 4>& counted);

 private:
  struct Seen;
  class Scan;

  void Sort();
  double Loss(const NGram& ngram, const std::array<Seen, kOrder>& seen) const;

  TargetStream train_;  // once sorted, targets are in the order of their n-grams
  std::uint32_t vocabulary_;
  std::array<std::array<double, 3>, kOrder> discounts_{};
};

// Losses of simple models for comparison, learned from a token file's train split.

inline constexpr std::int64_t kMostBaselineTokens = 100'000'000;  // in the train split
inline constexpr std::int64_t kBaselineTokenBytes = 13;  // of memory per such token, at most

// Serial. All tokens of a split, and its counted targets. The split's first token is no target.
// With document_mask, contexts do not cross documents, and a document's first token is no target.
TargetStream ReadTargets(const data::TokenFile& file, data::Split split, bool document_mask);

class Baselines {
 public:
  // Serial. Learns from the train split of `file`. If it has more than `most` tokens or no counted
  // target, only the uniform distribution is available. Throws as data::TokenReader does.
  Baselines(const data::TokenFile& file, bool document_mask,
            std::int64_t most = kMostBaselineTokens);

  // Why the learned models are missing; empty: they are there.
  const std::string& LeftOut() const { return left_out_; }

  // Summed losses in nats over a split's counted targets: name of the model and sum.
  struct Result {
    std::vector<std::pair<std::string, double>> nats;  // "uniform", "unigram", "5-gram"
    std::int64_t targets = 0;
  };
  // Serial. Evaluates a split of a file with the same vocabulary, reading it in pieces.
  Result Evaluate(const data::TokenFile& file, data::Split split) const;

 private:
  std::int64_t vocabulary_;
  bool document_mask_;
  std::string left_out_;
  std::vector<double> unigram_;    // [vocabulary]: -ln((occurrences + 1) / (targets + vocabulary))
  std::vector<KneserNey> n_gram_;  // one model, or none if left out
};

// Undoes WikiText's tokenisation, as was done for GPT-2 (Radford et al. 2019, section 3.1): turns
// its word-level text into ordinary text. Applies, to the whole text, the same rules in the same
// order as the function in Megatron-LM and the Language Model Evaluation Harness.
std::string DetokeniseWikitext(std::string text);

// Softmax of the logits of a vocabulary, in fp64.

// Smallest and largest number. values: at least one, none NaN.
struct Extremes {
  double least = 0, most = 0;
};
Extremes ExtremesOf(std::span<const double> values);

// Sets weights to exp(x), x = (logits[i] - top) / temperature; returns their sum. exp has a
// relative error below 3e-16 and is exp(-708) for x < -708. top: at least the largest logit.
double Weigh(std::span<const double> logits, double top, double temperature,
             std::vector<double>& weights);

// Whether all logits are finite, so that a token can be chosen.
bool AllFinite(std::span<const double> logits);

// log softmax(logits)[token], in nats.
double LogProbability(std::span<const double> logits, std::int32_t token);

// ln of the sum of exp(logits). A logit minus this is a log-probability in nats.
double LogSumOfExponentials(std::span<const double> logits);

}  // namespace trireme::tasks
