// The files of an EventLog, as TensorBoard and the tests read them.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::report {

// Paths of the folder's event files, sorted by name, as TensorBoard reads them.
std::vector<std::string> EventFiles(const std::string& folder);

// CRC-32C (Castagnoli) of `bytes`: 0xE3069283 for "123456789".
std::uint32_t Crc32c(std::string_view bytes);
// Appends a record (TFRecord) with `payload` to `to`.
void AppendRecord(std::string_view payload, std::string& to);

// Reads the records of an event file one after the other.
class RecordReader {
 public:
  explicit RecordReader(const std::string& path);
  // Payload of the next record; nullopt at the end of the file or before a damaged record.
  std::optional<std::string> Next();
  std::int64_t End() const { return end_; }  // bytes up to the end of the last record read
  bool Failed() const { return failed_; }    // the file could not be opened or read

 private:
  std::ifstream file_;
  std::int64_t end_ = 0, size_ = 0;  // bytes
  bool failed_ = false;
};

}  // namespace trireme::report
