// Records of an event file (TFRecord): length, masked CRC-32C of the length, payload, masked
// CRC-32C of the payload; numbers little-endian.
#ifndef TRIREME_SRC_REPORT_RECORD_HPP_
#define TRIREME_SRC_REPORT_RECORD_HPP_

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::report {

// CRC-32C (Castagnoli) of `bytes`: 0xE3069283 for "123456789".
std::uint32_t Crc32c(std::string_view bytes);
// TensorFlow's masking, so that a checksum of data that holds checksums is not degenerate.
std::uint32_t Masked(std::uint32_t crc);

// A record with `payload`, appended to `to`.
void AppendRecord(std::string_view payload, std::string& to);

// Reads a file's records one after the other.
class RecordReader {
 public:
  explicit RecordReader(const std::string& path);
  // Payload of the next record; none at the end of the file, and at a record that is torn or whose
  // checksums are wrong.
  std::optional<std::string> Next();
  std::int64_t End() const { return end_; }  // bytes up to the end of the last record read
  bool Failed() const { return failed_; }    // the file could not be opened or read

 private:
  bool Take(std::string& bytes, std::size_t count);
  std::optional<std::string> Refuse();

  std::ifstream file_;
  std::int64_t end_ = 0, size_ = 0;  // bytes
  bool failed_ = false;
};

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_RECORD_HPP_
