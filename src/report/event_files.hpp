// The folder of a run's event files: their names, and what of them a session keeps that begins at
// an earlier step than the last one ended.
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

// Paths of the folder's event files in the order in which TensorBoard reads them: by name.
std::vector<std::string> EventFiles(const std::string& folder);

// Path of a new event file, which TensorBoard reads after `files`, all that are there.
std::string NextEventFile(const std::string& folder, const std::vector<std::string>& files,
                          std::int64_t unix_seconds);

// Cuts all events after `step` off the folder's files, the end of the run (whatever its step), and
// what is torn or damaged with all that follows it; removes files of sessions that began at `step`
// or later. Files are cut in place: a reader that has read them already goes on to the next one.
// Returns the files that are left, as EventFiles does. Throws RunError that names the path.
std::vector<std::string> CutEvents(const std::string& folder, std::int64_t step);

// TensorBoard's messages, filled in: scalars, texts, histograms, hyperparameters.

// Adds a value to an event's summary. Numbers become fp32; texts and names that are not UTF-8 are
// made so.
void AddScalar(const std::string& tag, double value, proto::Event& event);
// Shown letter by letter, in lines as they are: TensorBoard would read Markdown and HTML in it.
void AddText(const std::string& tag, const std::string& text, proto::Event& event);
void AddHistogram(const std::string& tag, const Histogram& histogram, proto::Event& event);

// The start of a session of the HParams plugin: (name, value) as a deck has them. Numbers stay
// numbers, yes and no become booleans; keys without a value are left out.
void AddHParams(const std::vector<std::pair<std::string, std::string>>& values, double unix_seconds,
                proto::Event& event);
// The end of a run that is done.
void AddEnd(double unix_seconds, proto::Event& event);
bool EndsRun(const proto::Event& event);

// Records of an event file (TFRecord): length, masked CRC-32C of the length, payload, masked
// CRC-32C of the payload; numbers little-endian.

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
