// Counts of finished units, exchanged while ranks encode: a unit's place among the tokens is known
// once all earlier units are counted, not when all texts are encoded.
#ifndef TRIREME_SRC_DATA_TEXT_UNIT_ROUNDS_HPP_
#define TRIREME_SRC_DATA_TEXT_UNIT_ROUNDS_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "encoder.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::data {

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_UNIT_ROUNDS_HPP_
