// Common to the fuzz targets: the answers that a parser may give to any bytes. Everything else
// (another exception, a report of a sanitizer, memory or time beyond the limits of
// test/fuzz/run.sh) is a finding.
#ifndef TRIREME_TEST_FUZZ_FUZZ_HPP_
#define TRIREME_TEST_FUZZ_FUZZ_HPP_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/base/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace trireme::fuzz {

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

}  // namespace trireme::fuzz

#endif  // TRIREME_TEST_FUZZ_FUZZ_HPP_
