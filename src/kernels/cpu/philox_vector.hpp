// Philox4x32-10 (base/philox.hpp) on registers of 64-bit lanes. The lower half of a lane is a word
// of one counter; the upper half is left over from a product, and no product reads it. A round is
// two products, two shifts and two exclusive ors; nothing is shuffled until the lanes are stored.
#pragma once

#include "philox_lanes.hpp"

namespace trireme::kernels {

namespace {

// A Vector provides: Register; kCounters, the lanes of a register; Broadcast; Numbers(first),
// consecutive counters in the order that Store expects; Add for words; Multiply, 32 x 32 bits to
// 64; High, the upper halves; Xor of three operands; Interleave, which combines two words of the
// counters; Store, which writes two such pairs counter by counter, and StoreFirst, for the first
// counters only.
template <typename Vector>
inline constexpr int kLanesOf = 8 * Vector::kCounters;

// Computes kSets registers of counters: independent chains, as a product takes several cycles.
template <typename Vector, int kSets, typename Store>
[[gnu::always_inline]] inline void PhiloxPass(const PhiloxRow& row, std::uint32_t number,
                                              Store store) {
  using Register = typename Vector::Register;
  const Register multiplier0 = Vector::Broadcast(0xD2511F53);
  const Register multiplier1 = Vector::Broadcast(0xCD9E8D57);
  const Register weyl0 = Vector::Broadcast(0x9E3779B9), weyl1 = Vector::Broadcast(0xBB67AE85);
  Register a[kSets], b[kSets], c[kSets], d[kSets];
  for (int set = 0; set < kSets; ++set) {
    a[set] = Vector::Numbers(number);
    b[set] = Vector::Broadcast(row.c1);
    c[set] = Vector::Broadcast(row.c2);
    d[set] = Vector::Broadcast(row.c3);
    number += Vector::kCounters;
  }
  Register k0 = Vector::Broadcast(row.k0), k1 = Vector::Broadcast(row.k1);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
    for (int set = 0; set < kSets; ++set) {
      const Register p0 = Vector::Multiply(a[set], multiplier0);
      const Register p1 = Vector::Multiply(c[set], multiplier1);
      a[set] = Vector::Xor(Vector::High(p1), b[set], k0);
      c[set] = Vector::Xor(Vector::High(p0), d[set], k1);
      b[set] = p1;
      d[set] = p0;
    }
    k0 = Vector::Add(k0, weyl0);
    k1 = Vector::Add(k1, weyl1);
  }
  for (int set = 0; set < kSets; ++set) {
    store(set * kLanesOf<Vector>, Vector::Interleave(a[set], b[set]),
          Vector::Interleave(c[set], d[set]));
  }
}

// Fills lanes with kSets registers at a time, then with fewer, at the end with part of one.
template <typename Vector, int kSets>
void FillLanes(const PhiloxRow& row, std::uint32_t number, std::int64_t n, std::uint16_t* lanes) {
  using Register = typename Vector::Register;
  constexpr int kPass = kSets * kLanesOf<Vector>;
  for (; n >= kPass; n -= kPass) {
    PhiloxPass<Vector, kSets>(row, number, [lanes](int at, Register ab, Register cd) {
      Vector::Store(ab, cd, lanes + at);
    });
    number += kPass / 8;
    lanes += kPass;
  }
  if constexpr (kSets > 1) {
    FillLanes<Vector, kSets / 2>(row, number, n, lanes);
  } else if (n > 0) {
    const auto counters = static_cast<int>((n + 7) / 8);
    PhiloxPass<Vector, 1>(row, number, [lanes, counters](int, Register ab, Register cd) {
      Vector::StoreFirst(counters, ab, cd, lanes);
    });
  }
}

template <typename Vector>
void FillPhiloxLanes(const PhiloxRow& row, std::int64_t n, std::uint16_t* lanes) {
  constexpr int kMostSets = 4;  // they take 16 registers
  FillLanes<Vector, kMostSets>(row, row.c0, n, lanes);
}

}  // namespace

}  // namespace trireme::kernels
