// FileCounter: the file is opened for each reading, so that one that was replaced is found again.
#include "file_counter.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>

#include "trireme/base/descriptor.hpp"

namespace trireme::report {

std::optional<std::string> FirstLine(const std::string& path) {
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);
  if (!file.Valid()) return std::nullopt;
  std::array<char, 128> text{};
  const ssize_t length = Retry([&] { return read(file.Get(), text.data(), text.size()); });
  if (length < 0) return std::nullopt;
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find('\n'));
}

std::optional<double> NumberIn(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  const bool whole = after == end || *after == ' ';
  if (error != std::errc() || !whole || !std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

std::optional<double> FileCounter::Read() {
  const auto line = FirstLine(path_);
  const auto number = line ? NumberIn(*line) : std::nullopt;
  if (!number) return std::nullopt;
  return *number * joules_;
}

}  // namespace trireme::report
