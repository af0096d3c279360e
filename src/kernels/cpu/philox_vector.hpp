// Philox4x32-10 (base/philox.hpp) on registers of 64-bit lanes: a lane's lower half is a word of
// one counter, its upper half is what a product left there, which no product reads. So a round is
// two products, two shifts and two exclusive ors, and nothing is shuffled until the lanes are
// stored.
#ifndef TRIREME_KERNELS_CPU_PHILOX_VECTOR_HPP_
#define TRIREME_KERNELS_CPU_PHILOX_VECTOR_HPP_

#include "philox_lanes.hpp"

namespace trireme::kernels {

namespace {

// Vector: Register; kCounters, lanes of a register; Broadcast; Numbers(first), consecutive counters
// in the order that Store wants; Add of words; Multiply, 32 x 32 bits to 64; High, the upper
// halves; Xor of three; Store of kCounters counters' four words.
template <typename Vector>
inline constexpr int kLanesOf = 8 * Vector::kCounters;

// kSets registers of counters: independent chains of rounds, since a product takes several cycles.
template <typename Vector, int kSets>
[[gnu::always_inline]] inline void PhiloxPass(const PhiloxRow& row, std::uint32_t number,
                                              std::uint16_t* lanes) {
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
    Vector::Store(a[set], b[set], c[set], d[set], lanes + set * kLanesOf<Vector>);
  }
}

// As many registers at a time as the rest of the row fills by more than half.
template <typename Vector, int kSets>
void FillFrom(const PhiloxRow& row, std::uint32_t number, std::int64_t n, std::uint16_t* lanes) {
  for (; n > kSets / 2 * kLanesOf<Vector>; n -= kSets * kLanesOf<Vector>) {
    PhiloxPass<Vector, kSets>(row, number, lanes);
    number += kSets * Vector::kCounters;
    lanes += kSets * kLanesOf<Vector>;
  }
  if constexpr (kSets > 1) FillFrom<Vector, kSets / 2>(row, number, n, lanes);
}

template <typename Vector>
void FillPhiloxLanes(const PhiloxRow& row, std::int64_t n, std::uint16_t* lanes) {
  constexpr int kMostSets = 4;
  static_assert(kPhiloxPass % (kMostSets * kLanesOf<Vector>) == 0);
  FillFrom<Vector, kMostSets>(row, row.c0, n, lanes);
}

}  // namespace

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_PHILOX_VECTOR_HPP_
