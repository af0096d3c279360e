// Beam search for the best continuation of a text, without the model: it is told the likeliest next
// tokens of each beam, and tells which beams go on from which.
#ifndef TRIREME_TASKS_BEAM_SEARCH_HPP_
#define TRIREME_TASKS_BEAM_SEARCH_HPP_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace trireme::tasks {

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

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_BEAM_SEARCH_HPP_
