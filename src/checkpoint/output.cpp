// One checkpoint on its way to the disk: reserve, write, flush, read back, give it its name.
#include "output.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "folder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/posix_file.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

namespace {

std::string MpiErrorText(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

// A new file with the hints of "name=value,name=value": striping is decided when a file is made.
void CreateWithHints(const std::string& path, const std::string& hints) {
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  std::istringstream list(hints);
  for (std::string hint; std::getline(list, hint, ',');) {
    const std::size_t equals = hint.find('=');
    if (equals == std::string::npos) continue;  // refused when the deck was read
    MPI_Info_set(info, hint.substr(0, equals).c_str(), hint.substr(equals + 1).c_str());
  }
  MPI_File file = MPI_FILE_NULL;
  int code = MPI_File_open(MPI_COMM_SELF, path.c_str(),
                           MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, info, &file);
  MPI_Info_free(&info);
  if (code == MPI_SUCCESS) code = MPI_File_close(&file);
  if (code == MPI_SUCCESS) return;
  throw RunError(fmt::format("{}: cannot be created: {}", path, MpiErrorText(code)));
}

// Disk space for all tensor files, before the first byte is written.
void ReserveAll(const Order& order, const std::vector<WritePlan>& plans, const std::string& hints) {
  std::int64_t needed = 0;
  for (const WritePlan& plan : plans) needed += plan.layout.bytes;
  const std::int64_t available = FreeBytes(order.folder);
  for (const WritePlan& plan : plans) {
    const std::string path = TemporaryOf(order) + "/" + plan.file;
    if (!hints.empty()) CreateWithHints(path, hints);
    bool held = true;
    int error = Reserve(path, plan.layout.bytes, held, !hints.empty());
    if (error == 0 && !held && available >= 0 && needed > available) error = ENOSPC;
    if (error == 0) continue;
    const std::string space = available < 0 ? "an unknown amount" : Mebibytes(available);
    throw RunError(fmt::format("{}: cannot be reserved: {}: the checkpoint needs {}, {} free on {}",
                               path, ErrorText(error), Mebibytes(needed), space, order.folder),
                   "make room there or give another job.output; earlier checkpoints are untouched");
  }
}

}  // namespace

std::string TemporaryOf(const Order& order) {
  return order.folder + "/" + StepName(order.step) + kTemporaryEnding;
}

Prepared Prepare(const Order& order, const std::vector<WritePlan>& plans,
                 const std::string& hints) {
  Prepared prepared;
  if (order.may_publish) order.may_publish();  // before the first change: removals as well
  if (const int problem = MakeFolderDurably(order.folder); problem != 0) {
    throw RunError(fmt::format("{}: cannot be created: {}", order.folder, ErrorText(problem)));
  }
  prepared.warnings = RemoveLeftovers(order.folder);
  for (const Found& found : ListComplete(order.folder)) {
    prepared.sequence = std::max(prepared.sequence, found.sequence);
  }
  ++prepared.sequence;
  const std::string temporary = TemporaryOf(order);
  std::error_code error;
  if (!fs::create_directory(temporary, error) || error) {
    const std::string reason = error ? error.message() : ErrorText(EEXIST);
    throw RunError(fmt::format("{}: cannot be created: {}", temporary, reason));
  }
  ReserveAll(order, plans, hints);
  return prepared;
}

void Complete(const Order& order, const std::vector<WritePlan>& plans,
              const std::vector<FileSums>& files) {
  const std::string temporary = TemporaryOf(order);
  // Texts may hold bytes that are no UTF-8, such as those of a path: JSON has no place for them,
  // and no run should end for one.
  const std::string run_text =
      order.run.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const auto run_bytes = static_cast<std::int64_t>(run_text.size());
  Checksums sums;
  sums[kRunFile] = {run_bytes, {{0, run_bytes, Hash(run_text.data(), run_bytes)}}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const WritePlan& plan = plans[i];
    const std::string path = temporary + "/" + plan.file;
    const std::int64_t size =
        PositionedFile(path, PositionedFile::Access::kRead, ExitCode::kFailed).Size();
    if (size != plan.layout.bytes) {
      throw RunError(fmt::format("{}: {} bytes written, {} found", path, plan.layout.bytes, size));
    }
    sums[plan.file] = files[i];
    SyncPath(path);
  }
  WriteTextDurably(temporary + "/" + kRunFile, run_text);
  WriteTextDurably(temporary + "/" + kChecksumsFile, ChecksumsText(sums));
  SyncPath(temporary);
  if (order.may_publish) order.may_publish();
  if (order.before_publish) order.before_publish();
  Publish(order.folder, StepName(order.step));
}

Output::Output(const Order& order, const std::vector<WritePlan>& plans) : plans_(plans) {
  for (const WritePlan& plan : plans) {
    files_.emplace_back(TemporaryOf(order) + "/" + plan.file, PositionedFile::Access::kWrite,
                        ExitCode::kFailed);
    found_.emplace_back(plan.segments.size());
  }
}

void Output::Write(const StagedSegment& segment, const void* data) {
  const Segment& place = plans_[segment.file].segments[segment.segment];
  files_[segment.file].Write(data, place.length, place.offset);
}

void Output::FlushData() {
  for (const PositionedFile& file : files_) file.SyncData();
}

void Output::Flush() {
  for (const PositionedFile& file : files_) file.Sync();
}

void Output::ReadBack(std::span<const StagedSegment> segments,
                      const std::function<bool()>& stopping) {
  for (const StagedSegment& staged : segments) {
    const Segment& place = plans_[staged.file].segments[staged.segment];
    files_[staged.file].ForgetCopies(place.length, place.offset);
  }
  for (const StagedSegment& staged : segments) {
    if (stopping()) return;
    const Segment& place = plans_[staged.file].segments[staged.segment];
    buffer_.resize(std::max(buffer_.size(), static_cast<std::size_t>(place.length)));
    files_[staged.file].Read(buffer_.data(), place.length, place.offset);
    found_[staged.file][staged.segment] = Hash(buffer_.data(), place.length);
  }
}

void Output::Verify(const std::vector<Round>& rounds) {
  for (const Round& round : rounds) {
    for (const StagedSegment& staged : round.segments) {
      const WritePlan& plan = plans_[staged.file];
      CheckHash(plan.segments[staged.segment], found_[staged.file][staged.segment],
                files_[staged.file].Path(), plan.layout.entries, ExitCode::kFailed);
    }
  }
  for (PositionedFile& file : files_) file.Close();
}

}  // namespace trireme::checkpoint
