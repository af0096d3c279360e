// Common to the fuzz targets: choices taken from an input, and the answers that a parser may give
// to any bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/base/error.hpp"

namespace trireme::fuzz {

// The targets, which end the process where they find something, and return 0.
int FuzzChecksums(const std::uint8_t* data, std::size_t size);
int FuzzConfig(const std::uint8_t* data, std::size_t size);
int FuzzDeck(const std::uint8_t* data, std::size_t size);
int FuzzRunRecord(const std::uint8_t* data, std::size_t size);
int FuzzSafetensors(const std::uint8_t* data, std::size_t size);
int FuzzTokenFile(const std::uint8_t* data, std::size_t size);

// Common to the fuzz targets: the answers that a parser may give to any bytes. Everything else
// (another exception, a report of a sanitizer, memory or time beyond the limits of
// test/fuzz/run.sh) is a finding.

inline constexpr std::size_t kLongestMessage = 32 << 10;  // bytes; a deck's faults are many

// Ends the process with the reason unless `holds`: libFuzzer keeps the input.
inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "FINDING: %s\n", what.c_str());
  std::abort();
}

// A message of bad input: exit code 2, of a length that a person reads, and nothing that a terminal
// would obey.
inline void RequireGoodMessage(const Error& error) {
  const std::string text = error.what();
  Require(error.Code() == ExitCode::kBadInput, "not an error of the input: " + text);
  Require(!text.empty() && text.size() <= kLongestMessage,
          "a message of " + std::to_string(text.size()) + " bytes");
  const auto obeyed = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F;
  };
  Require(std::none_of(text.begin(), text.end(), obeyed), "a control character in: " + text);
}

// Runs parse(). False if it refused the input with a good message, which is printed if the
// environment has TRIREME_FUZZ_SHOW. Other exceptions fly on.
template <typename Parse>
bool Accepted(Parse&& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    if (std::getenv("TRIREME_FUZZ_SHOW") != nullptr) std::fprintf(stderr, "%s\n", error.what());
    RequireGoodMessage(error);
    return false;
  }
}

// The result of read(), for what Trireme has written itself: a refusal is a finding.
template <typename Read>
auto ReadOwn(Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    Require(false, std::string("our own text is refused: ") + error.what());
    throw;
  }
}

inline std::string Text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Choices of a structured fuzz target, taken from its input one after another; all 0 after its end.

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
