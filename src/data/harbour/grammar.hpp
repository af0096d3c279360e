// The harbour grammar unfolded: a Markov chain of states whose arcs carry words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

struct Arc {
  std::int32_t word = 0;
  std::int32_t next = 0;   // the state that follows
  double probability = 0;  // of this word in this state
  double cumulative = 0;   // sum up to this arc; exactly 1 at a state's last arc
};

class HarbourChain {
 public:
  // Builds the chain from the renewal state on. Throws std::logic_error if a word leads from one
  // state to two others (the grammar would not be unifilar).
  HarbourChain();

  std::int32_t States() const { return static_cast<std::int32_t>(first_arc_.size()) - 1; }
  std::span<const Arc> Arcs(std::int32_t state) const;  // sorted by word
  const std::vector<std::string>& Words() const { return words_; }

  // Long-run share of tokens that each state generates; sums to one.
  const std::vector<double>& Stationary() const { return stationary_; }
  // h = sum over states s of Stationary(s) H(words | s), nats per token (Shannon 1948, section 7).
  double EntropyRate() const;

 private:
  void Unfold();
  void Solve();

  std::vector<std::string> words_;
  std::vector<Arc> arcs_;
  std::vector<std::size_t> first_arc_;  // [states + 1]
  std::vector<double> stationary_;      // [states]
};

}  // namespace trireme::data
