// One call of every kind of transfer over a group, for tests that compare what ledgers record.
#pragma once

#include <array>
#include <cstdint>

#include "trireme/comm/collectives.hpp"

namespace trireme::test {

inline constexpr std::int64_t kEveryTransferElements = 1000;  // of each operand, at most

// Collective. from, to: kEveryTransferElements values of fp32 each.
inline void EveryTransfer(const comm::Collectives& over, void* from, void* to) {
  constexpr Dtype kType = Dtype::kFloat32;
  const auto parts = comm::Counts::Cut(103, 10);  // uneven
  over.AllReduce(kType, to, 101);
  over.AllReduce(kType, to, 102, comm::Reduction::kMax);
  over.StartAllReduce(kType, to, 103).Wait();
  over.ReduceScatter(kType, from, to, parts);
  over.StartReduceScatter(kType, from, to, parts).Wait();
  over.StartReduceScatterInPlace(kType, to, parts).Wait();
  over.AllGather(kType, from, to, parts);
  over.StartAllGather(kType, from, to, parts).Wait();
  over.AllGatherInPlace(kType, to, parts);
  over.StartAllGatherInPlace(kType, to, parts).Wait();
  over.AllToAll(kType, from, to, parts);
  over.Broadcast(kType, to, 104, over.Size() - 1);
  if (over.Size() == 1) return;
  const int next = (over.Rank() + 1) % over.Size();
  const int before = (over.Rank() + over.Size() - 1) % over.Size();
  comm::Request in = over.StartReceive(kType, to, 105, before, 7);
  comm::Request out = over.StartSend(kType, from, 105, next, 7);
  in.Wait();
  out.Wait();
  for (comm::Request& request : over.StartShift(kType, from, 106, to, 106, 8)) request.Wait();
}

}  // namespace trireme::test
