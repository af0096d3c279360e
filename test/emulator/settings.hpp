// Settings of the emulated machine from the environment, the dice that decide every order, and what
// a test leaves out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator {

// Settings of the emulated machine from the environment, and the dice that decide every order.

inline constexpr std::size_t kSharedLimit = std::size_t{227} << 10;  // bytes a block may ask for
inline constexpr std::size_t kSharedWithoutAsking = std::size_t{48} << 10;  // bytes
inline constexpr int kMaxThreads = 1024;                                    // of a block

// A whole number from the environment; `otherwise` where the variable is not set.
std::uint64_t Number(const char* variable, std::uint64_t otherwise);

// The numbers of the cards that this process sees: all, or those in CUDA_VISIBLE_DEVICES up to the
// first that there is not.
const std::vector<int>& VisibleDevices();
std::size_t CardBytes();  // memory of one card
std::size_t PageBytes();  // of the host's memory

class Dice {
 public:
  // xorshift64* (S. Vigna, "An experimental exploration of Marsaglia's xorshift generators").
  std::uint32_t Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<std::uint32_t>((state_ * 0x2545f4914f6cdd1dULL) >> 32);
  }
  std::uint32_t Below(std::uint32_t end) {
    return static_cast<std::uint32_t>((std::uint64_t{Next()} * end) >> 32);
  }
  void Seed(std::uint64_t seed);
  // Whether to run something early: never, now and then, or often, as the seed has it.
  bool Eager() { return Below(16) < eagerness_; }

 private:
  std::uint64_t state_ = 1;      // never 0
  std::uint32_t eagerness_ = 0;  // sixteenths
};
extern Dice the_dice;  // seeded by the environment
inline Dice& TheDice() { return the_dice; }

// Leaves out one barrier or one wait for an event of an unchanged program, so that a test can show
// that another test would notice.

// kBarrier: __syncthreads, kWarpBarrier: __syncwarp, each by where it stands in a kernel (an
// instance of a template counts as a kernel), kCopyWait likewise: waits for copies to shared
// memory; kWait: calls of cudaStreamWaitEvent.
enum class Mutation { kBarrier, kWarpBarrier, kWait, kCopyWait };
inline constexpr int kMutations = 4;

// From here on number `number` of a kind is left out; numbers count from 0 anew, in the order of
// the first execution. -1: none is. TRIREME_EMULATOR_OMIT=barrier:3 (warp_barrier, wait, copy_wait)
// says so for a whole run, and "count" has the numbers of all kinds written to stderr at its end.
void Omit(Mutation kind, std::int64_t number);
std::int64_t CountSince(Mutation kind);  // the last Omit of this kind

extern bool mutations_watched;  // else nothing is counted or left out
bool IsOmitted(Mutation kind, const void* site);

}  // namespace emulator

namespace emulator::cublaslt {

// Products that the emulated cuBLASLt has no algorithm for, although they are supported, or none
// that repeats.

// Part of the products with an epilogue, in percent, that the heuristic refuses from here on;
// TRIREME_EMULATOR_CUBLASLT_REFUSE at the start, 0 by default.
void RefuseEpilogues(std::uint64_t percent);

// Whether bias gradients are summed in an order that changes from run to run:
// TRIREME_EMULATOR_CUBLASLT_VARY, 0 by default.
bool VariesSums();

// Whether a product with an epilogue is refused, by its hash and TRIREME_EMULATOR_SEED alone: the
// same on all ranks and each time.
bool IsRefused(std::uint64_t hash);

}  // namespace emulator::cublaslt
