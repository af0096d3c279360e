// Common parts of the tests of the device layer: page-locked numbers, and an error's text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu_testing.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {

// Page-locked host memory, every element `value`.
class PinnedInts {
 public:
  explicit PinnedInts(std::int64_t size, std::int32_t value = 0)
      : size_(size), memory_(device::AllocatePinned(Bytes(), device::Kind::kCuda)) {
    Fill(value);
  }
  void Fill(std::int32_t value) { std::fill_n(Data(), size_, value); }
  std::int32_t* Data() const { return static_cast<std::int32_t*>(memory_.get()); }
  std::int64_t Bytes() const { return size_ * static_cast<std::int64_t>(sizeof(std::int32_t)); }
  bool All(std::int32_t value) const {
    return std::all_of(Data(), Data() + size_, [&](std::int32_t each) { return each == value; });
  }

 private:
  std::int64_t size_;
  device::PinnedBuffer memory_;
};

// The whole message of what `body` throws; "nothing was thrown".
template <typename Body>
std::string MessageOf(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace trireme::test
