// Worker and Hasher: the threads' tasks; Output: a checkpoint's files on the disk.
#include "worker.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <sys/statvfs.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "folder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/cores.hpp"

namespace trireme::checkpoint {

Worker::Worker(std::vector<int> cores) : cores_(std::move(cores)) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    while (tasks_.size() > 1) tasks_.pop_back();
  }
  thread_.request_stop();
}

void Worker::Start() {
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void Worker::Queue(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

std::int64_t Worker::Unfinished() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(tasks_);
}

void Worker::Await(std::size_t most) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.size() <= most; });
}

void Worker::Finish() {
  if (const std::exception_ptr failure = TakeFailure()) std::rethrow_exception(failure);
}

std::exception_ptr Worker::TakeFailure() {
  Await();
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, nullptr);
}

bool Worker::Stopping() const { return thread_.get_stop_token().stop_requested(); }

void Worker::Run(const std::stop_token& stop) {
  if (!cores_.empty()) device::BindThisThread(cores_);
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !tasks_.empty(); })) {
    if (stop.stop_requested()) return;
    // After a failure the remaining tasks are dropped, because they rely on the failed one.
    const bool skip = failure_ != nullptr;
    const std::function<void()> task = std::move(tasks_.front());
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (!skip) task();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) failure_ = failure;
    tasks_.pop_front();
    changed_.notify_all();
  }
}

// PlanRounds: packs the segments of a group one after another.

std::vector<Round> PlanRounds(const std::vector<WritePlan>& plans, std::int64_t most) {
  std::vector<Round> rounds(1);
  for (std::size_t file = 0; file < plans.size(); ++file) {
    const WritePlan& plan = plans[file];
    for (std::size_t i = 0; i < plan.segments.size(); ++i) {
      const std::int64_t bytes = plan.segments[i].length;
      if (rounds.back().bytes > 0 && bytes > most - rounds.back().bytes) rounds.emplace_back();
      Round& round = rounds.back();
      round.segments.push_back({file, i, plan.holders[i], round.bytes});
      round.bytes += bytes;
    }
  }
  return rounds;
}

std::int64_t LargestRound(const std::vector<Round>& rounds) {
  std::int64_t largest = 0;
  for (const Round& round : rounds) largest = std::max(largest, round.bytes);
  return largest;
}

// Hasher: queues rounds at once, or holds them back until they are released.

Hasher::Hasher(std::vector<int> cores, std::vector<WritePlan>& plans)
    : plans_(plans), worker_(std::move(cores)) {}

void Hasher::HoldBack() {
  const std::lock_guard lock(mutex_);
  hold_back_ = true;
  held_back_.clear();  // left by a checkpoint that failed
}

void Hasher::Release() {
  const std::lock_guard lock(mutex_);
  hold_back_ = false;
  for (auto& task : std::exchange(held_back_, {})) worker_.Queue(std::move(task));
}

void Hasher::Queue(const Round& round, Data data) {
  auto task = [this, &round, data = std::move(data)] { Make(round, data); };
  const std::lock_guard lock(mutex_);
  if (hold_back_) {
    held_back_.emplace_back(std::move(task));
  } else {
    worker_.Queue(std::move(task));
  }
}

void Hasher::Make(const Round& round, const Data& data) {
  for (const StagedSegment& staged : round.segments) {
    if (worker_.Stopping()) return;
    Segment& segment = plans_[staged.file].segments[staged.segment];
    segment.hash = Hash(data(staged), segment.length);
  }
}

// One checkpoint on its way to the disk: reserve, write, flush, read back, rename.

namespace fs = std::filesystem;

namespace {

std::string MpiErrorText(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

// Creates a file with hints "name=value,name=value": striping is decided when a file is created.
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

// After an error that means no space: how many more files fit on `folder`. The number of files may
// be limited while `df` shows free bytes.
std::string FilesLeft(const std::string& folder, int error) {
  struct statvfs room {};
  if ((error != ENOSPC && error != EDQUOT) || ::statvfs(folder.c_str(), &room) != 0) return {};
  if (room.f_files == 0) return {};  // a file system that counts no files
  return fmt::format(": {} more files fit on {} (df -i)", room.f_favail, folder);
}

// Reserves disk space for all tensor files before the first byte is written.
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
    throw RunError(
        fmt::format("{}: cannot be reserved: {}: the checkpoint needs {}, {} free on {}{}", path,
                    ErrorText(error), Mebibytes(needed), space, order.folder,
                    FilesLeft(order.folder, error)),
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
  if (order.may_publish) order.may_publish();  // before the first change, removals included
  if (const int problem = MakeFolderDurably(order.folder); problem != 0) {
    throw RunError(fmt::format("{}: cannot be created: {}{}", order.folder, ErrorText(problem),
                               FilesLeft(FolderOf(order.folder), problem)));
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
    throw RunError(fmt::format("{}: cannot be created: {}{}", temporary, reason,
                               FilesLeft(order.folder, error.value())));
  }
  ReserveAll(order, plans, hints);
  return prepared;
}

void Complete(const Order& order, const std::vector<WritePlan>& plans,
              const std::vector<FileSums>& files) {
  const std::string temporary = TemporaryOf(order);
  // Texts such as paths may hold bytes that are not UTF-8, which JSON cannot represent; they are
  // replaced, since no run should end for them.
  const std::string run_text =
      order.run.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const auto run_bytes = static_cast<std::int64_t>(run_text.size());
  Checksums sums;
  sums[kRunFile] = {run_bytes, {{0, run_bytes, Hash(run_text.data(), run_bytes)}}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const WritePlan& plan = plans[i];
    const std::string path = temporary + "/" + plan.file;
    const auto size = PositionedFile(path, PositionedFile::Access::kRead, ExitCode::kFailed).Size();
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

void Output::Flush(bool data_only) {
  for (const PositionedFile& file : files_) file.Sync(data_only);
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
