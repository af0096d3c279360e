// The folder of a run's event files, the messages of TensorBoard in them, and their records.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "event.pb.h"
#include "trireme/report/tensorboard.hpp"

namespace trireme::report {

// Paths of the folder's event files, sorted by name, as TensorBoard reads them.
std::vector<std::string> EventFiles(const std::string& folder);

// Path of a new event file that TensorBoard reads after `files`, those already in the folder.
std::string NextEventFile(const std::string& folder, const std::vector<std::string>& files,
                          std::int64_t unix_seconds);

// Cuts from the folder's files all events after `step`, the end-of-run event (whatever its step),
// and everything from the first damaged record on. Removes files of sessions that began at `step`
// or later. Files are cut in place, so that a reader that has read them already goes on to the next
// one. Returns the remaining files, as EventFiles does. Throws RunError that names the path.
std::vector<std::string> CutEvents(const std::string& folder, std::int64_t step);

// Functions that fill in TensorBoard's messages: scalars, texts, histograms, hyperparameters.

// Adds a value to an event's summary. Numbers become fp32; invalid UTF-8 is replaced.
void AddScalar(const std::string& tag, double value, proto::Event& event);
// TensorBoard shows the text as it is, as a block of code, not as Markdown or HTML.
void AddText(const std::string& tag, const std::string& text, proto::Event& event);
void AddHistogram(const std::string& tag, const Histogram& histogram, proto::Event& event);

// Adds the start of a session of the HParams plugin. values: (name, value) as in a deck; numbers
// stay numbers, yes and no become booleans, keys without a value are left out.
void AddHParams(const std::vector<std::pair<std::string, std::string>>& values, double unix_seconds,
                proto::Event& event);
// Adds the successful end of a run.
void AddEnd(double unix_seconds, proto::Event& event);
bool EndsRun(const proto::Event& event);

// Records of an event file (TFRecord): length, masked CRC-32C of the length, payload, masked
// CRC-32C of the payload; numbers little-endian.

// CRC-32C (Castagnoli) of `bytes`: 0xE3069283 for "123456789".
std::uint32_t Crc32c(std::string_view bytes);
// TensorFlow's masking, so that a checksum of data that holds checksums is not degenerate.
std::uint32_t Masked(std::uint32_t crc);

// Appends a record with `payload` to `to`.
void AppendRecord(std::string_view payload, std::string& to);

// Reads a file's records one after the other.
class RecordReader {
 public:
  explicit RecordReader(const std::string& path);
  // Payload of the next record; nullopt at the end of the file or before a damaged record.
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
