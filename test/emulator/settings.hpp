// Settings of the emulated machine from the environment, and the dice that decide every order.
#ifndef TRIREME_TEST_EMULATOR_SETTINGS_HPP_
#define TRIREME_TEST_EMULATOR_SETTINGS_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator {

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

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_SETTINGS_HPP_
