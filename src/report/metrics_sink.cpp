// metrics.jsonl as a sink: when its records are written, and what becomes of those that cannot be.
#include "metrics_sink.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.hpp"

namespace trireme::report {

namespace {

constexpr std::chrono::seconds kFlushEvery{2};
constexpr std::size_t kFlushBytes = std::size_t{64} << 10;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // kept while the disk is full

}  // namespace

MetricsSink::MetricsSink(const std::string& path, bool truncate)
    : file_(std::make_shared<AppendFile>(path, truncate)), flushed_(Clock::now()) {
  buffer_.reserve(kFlushBytes);
}

MetricsSink::~MetricsSink() {
  if (file_ && !buffer_.empty() && !cut_) file_->Append(buffer_);
}

void MetricsSink::Step(const Record& record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  AppendStepLine(record, buffer_);
  step_ = record.step;
  WriteIfDue();
}

void MetricsSink::Interval(const report::Interval& interval) {
  const std::lock_guard<std::mutex> lock(mutex_);
  buffer_ += ToJsonLine(interval);
  WriteIfDue();
}

void MetricsSink::Evaluation(const Record& record) { Write(ToJsonLine(record), record.step); }

void MetricsSink::Happened(const Event& event) { Write(ToJsonLine(event), event.step); }

void MetricsSink::Done(const Summary& summary) {
  Write(summary.done ? ToJsonLine(summary.last) : std::string(), summary.last.step);
}

std::string MetricsSink::Renew() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ == nullptr || !file_->Gone()) return {};
  file_ = std::make_shared<AppendFile>(file_->Path(), false);
  return file_->Path();
}

void MetricsSink::Flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  WriteAll();
}

// Steps do not wait for a slow disk.
void MetricsSink::Sync() {
  std::shared_ptr<AppendFile> file;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    WriteAll();
    file = file_;
  }
  if (file) file->Sync();
}

History MetricsSink::CutTo(std::int64_t step, std::int64_t best_after) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ == nullptr) return {};
  try {
    WriteAll();
  } catch (const Error&) {
    KeepLines(buffer_, step);
  }
  if (cut_) step = std::min(step, cut_->step);
  cut_ = Cut{step, best_after};
  return CutFile();
}

// As long as the disk has no room for the file without its void records, nothing follows them.
History MetricsSink::CutFile() {
  const std::string path = file_->Path();
  file_.reset();  // the file is replaced
  try {
    const History kept = CutMetrics(path, cut_->step, cut_->best_after);
    cut_.reset();
    file_ = std::make_shared<AppendFile>(path, false);
    return kept;
  } catch (const Error&) {
    if (file_ == nullptr) file_ = std::make_shared<AppendFile>(path, false);
    failing_ = true;
    DropOverflow();
    throw;
  }
}

void MetricsSink::Write(const std::string& line, std::int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  buffer_ += line;
  step_ = step;
  WriteAll();
}

void MetricsSink::WriteIfDue() {
  const bool much = buffer_.size() >= kFlushBytes && !failing_;
  if (much || Clock::now() - flushed_ >= kFlushEvery) WriteAll();
}

void MetricsSink::WriteAll() {
  flushed_ = Clock::now();
  if (file_ == nullptr) buffer_.clear();
  if (buffer_.empty()) return;
  if (cut_) CutFile();
  std::string told;
  if (lost_ > 0) {
    told = ToJsonLine(Event{.name = "records lost",
                            .step = step_,
                            .rank = 0,
                            .host = {},
                            .text = "earlier records could not be written",
                            .numbers = {{"records", static_cast<double>(lost_)}}});
  }
  const std::string reason = file_->Append(told.empty() ? buffer_ : buffer_ + told);
  failing_ = !reason.empty();
  if (failing_) {
    DropOverflow();
    throw RunError(fmt::format("{}: cannot be written: {}", file_->Path(), reason));
  }
  lost_ = 0;
  buffer_.clear();
}

// The latest half is kept.
void MetricsSink::DropOverflow() {
  if (buffer_.size() <= kMostBytes) return;
  const std::size_t end = buffer_.find('\n', buffer_.size() - kMostBytes / 2) + 1;
  lost_ += std::count(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
  buffer_.erase(0, end);
}

}  // namespace trireme::report
