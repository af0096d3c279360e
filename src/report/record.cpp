// Records of an event file: their framing, and its check.
#include "record.hpp"

#include <boost/crc.hpp>
#include <cstddef>

namespace trireme::report {

namespace {

constexpr std::size_t kLengthBytes = 8, kCrcBytes = 4;

template <typename Number>
void AppendNumber(Number number, std::string& to) {
  for (std::size_t byte = 0; byte < sizeof number; ++byte) {
    to += static_cast<char>(static_cast<unsigned char>(number >> (8 * byte)));
  }
}

template <typename Number>
Number ReadNumber(std::string_view bytes) {
  Number number = 0;
  for (std::size_t byte = 0; byte < sizeof number; ++byte) {
    number |= static_cast<Number>(static_cast<unsigned char>(bytes[byte])) << (8 * byte);
  }
  return number;
}

}  // namespace

std::uint32_t Crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

std::uint32_t Masked(std::uint32_t crc) {
  constexpr std::uint32_t kDelta = 0xA282EAD8;  // tensorflow/core/lib/hash/crc32c.h
  return ((crc >> 15) | (crc << 17)) + kDelta;
}

void AppendRecord(std::string_view payload, std::string& to) {
  std::string length;
  AppendNumber(static_cast<std::uint64_t>(payload.size()), length);
  to += length;
  AppendNumber(Masked(Crc32c(length)), to);
  to += payload;
  AppendNumber(Masked(Crc32c(payload)), to);
}

RecordReader::RecordReader(const std::string& path) : file_(path, std::ios::binary) {
  file_.seekg(0, std::ios::end);
  size_ = static_cast<std::int64_t>(file_.tellg());
  file_.seekg(0);
  failed_ = !file_;
}

bool RecordReader::Take(std::string& bytes, std::size_t count) {
  bytes.resize(count);
  file_.read(bytes.data(), static_cast<std::streamsize>(count));
  return !file_.fail();
}

// Ends the reading: nothing tells where another record begins.
std::optional<std::string> RecordReader::Refuse() {
  failed_ = failed_ || file_.bad();
  size_ = end_;
  return std::nullopt;
}

std::optional<std::string> RecordReader::Next() {
  constexpr std::int64_t kFrame = kLengthBytes + 2 * kCrcBytes;
  if (failed_ || size_ - end_ < kFrame) return std::nullopt;
  std::string head, payload, crc;
  if (!Take(head, kLengthBytes + kCrcBytes)) return Refuse();
  const std::string_view length_bytes = std::string_view(head).substr(0, kLengthBytes);
  const auto length = ReadNumber<std::uint64_t>(length_bytes);
  if (Masked(Crc32c(length_bytes)) != ReadNumber<std::uint32_t>(head.substr(kLengthBytes)) ||
      length > static_cast<std::uint64_t>(size_ - end_ - kFrame)) {
    return Refuse();
  }
  if (!Take(payload, static_cast<std::size_t>(length)) || !Take(crc, kCrcBytes)) return Refuse();
  if (Masked(Crc32c(payload)) != ReadNumber<std::uint32_t>(crc)) return Refuse();
  end_ += kFrame + static_cast<std::int64_t>(length);
  return payload;
}

}  // namespace trireme::report
