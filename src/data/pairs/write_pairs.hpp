// Pairs from any maker to one file of pairs, by all ranks together.
#ifndef TRIREME_SRC_DATA_PAIRS_WRITE_PAIRS_HPP_
#define TRIREME_SRC_DATA_PAIRS_WRITE_PAIRS_HPP_

#include <cstddef>
#include <functional>
#include <string>

#include "pair_encoder.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/tokenize.hpp"

namespace trireme::data {

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_PAIRS_WRITE_PAIRS_HPP_
