// The harbour corpus: plain English sentences in WikiText's form from a unifilar finite-state
// grammar, so that its entropy rate is known in closed form and no honest model can do better.
#ifndef TRIREME_DATA_HARBOUR_HPP_
#define TRIREME_DATA_HARBOUR_HPP_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

// The grammar: states, each with a distribution over words, each (state, word) leading to one next
// state. Its stationary distribution gives the entropy rate h = sum_s pi(s) H(words | s).
class HarbourGrammar {
 public:
  HarbourGrammar();
  ~HarbourGrammar();
  std::int64_t States() const;
  const Vocabulary& Words() const;
  double EntropyRate() const;  // nats a token, of the stationary process

  // `count` tokens of the stream (seed, split), by Philox coordinates: reproducible, any length.
  std::vector<std::int32_t> Generate(std::uint32_t seed, Split split, std::int64_t count) const;

  // The exact predictor for a window: starts from the stationary distribution over states and
  // filters forward. Returns -ln p(target_t | inputs_0..t) in nats for each t. inputs, targets:
  // [length].
  std::vector<double> PredictiveLoss(std::span<const std::int32_t> inputs,
                                     std::span<const std::int32_t> targets) const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_HARBOUR_HPP_
