// Choices of a structured fuzz target, taken from its input one after another; all 0 after its end.
#ifndef TRIREME_TEST_FUZZ_CHOICES_HPP_
#define TRIREME_TEST_FUZZ_CHOICES_HPP_

#include <array>
#include <cstddef>
#include <cstdint>

namespace trireme::fuzz {

class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::uint8_t Byte() { return at_ == end_ ? 0 : *at_++; }
  // 0 to count - 1.
  std::size_t Of(std::size_t count) { return Byte() % count; }
  bool Yes() { return (Byte() & 1) != 0; }
  // A number as a hostile file would have it: small, at a bound, or any.
  std::uint64_t Number() {
    constexpr std::array<std::uint64_t, 9> kBounds = {~std::uint64_t{0},
                                                      std::uint64_t{1} << 63,
                                                      (std::uint64_t{1} << 63) - 1,
                                                      std::uint64_t{1} << 62,
                                                      std::uint64_t{1} << 40,
                                                      (std::uint64_t{1} << 32) - 1,
                                                      std::uint64_t{1} << 31,
                                                      65'537,
                                                      65'536};
    const std::uint8_t kind = Byte();
    if (kind < 128) return kind;
    if (kind < 192) return kBounds.at(kind % kBounds.size());
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Byte();
    return value;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace trireme::fuzz

#endif  // TRIREME_TEST_FUZZ_CHOICES_HPP_
