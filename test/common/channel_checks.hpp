// Duties of every channel, whatever it is made of: transfers of a group checked against values that
// the ranks alone make known, their operands made and read by the computation's queue.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::test {

inline constexpr Dtype kChannelTypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16};
// Tags of messages on the ring, to the next rank and to the one before.
inline const std::vector<int> kToNext = {1, 2}, kToPrevious = {3};

// An array where the stream computes, filled and read by copies that the computation queues: what
// does not wait for them finds zeros, or what was there before.
class Operand {
 public:
  Operand(const device::Stream& stream, Dtype dtype, const std::vector<double>& values);
  void* At(std::int64_t element = 0) const { return ElementAt(memory_.get(), dtype_, element); }
  std::vector<double> Values() const;  // the host waits for what was queued

 private:
  const device::Stream* stream_;
  Dtype dtype_;
  std::int64_t count_, bytes_;
  device::Buffer memory_;
  device::PinnedBuffer host_;
};

// A group's transfers on a channel. Sums are of small whole numbers, exact in every type.
struct ChannelChecks {
  const device::Stream& stream;
  const comm::Collectives& group;  // with the channel

  void EveryTransfer(Dtype dtype, std::int64_t scale) const;
  void ManyInFlight(Dtype dtype) const;  // awaited in another order than started
  void Messages(Dtype dtype, std::int64_t count) const;
  // Two at a time around the ring, of another length from each rank.
  void Shifts(Dtype dtype, std::int64_t count) const;
  // One received after another, all read at the end: none takes the place of one before it.
  void MessagesInTurn(Dtype dtype, std::int64_t count) const;
  // Of numbers that are not whole: close to the true sum, the same bits on all ranks.
  void RoundedSums(Dtype dtype, const comm::Communicator& ranks) const;

 private:
  void Sums(Dtype dtype, std::int64_t count) const;
  void Scatters(Dtype dtype, const std::vector<std::int64_t>& counts) const;
  void Gathers(Dtype dtype, const std::vector<std::int64_t>& counts) const;
  void Exchanges(Dtype dtype, const std::vector<std::int64_t>& counts) const;
};

}  // namespace trireme::test
