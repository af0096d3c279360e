// EventLog: buffers records, and begins a new file wherever a run goes on from an earlier step.
#include "trireme/report/event_log.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "event.pb.h"
#include "event_files.hpp"
#include "messages.hpp"
#include "record.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/report/append_file.hpp"

namespace trireme::report {

namespace {

constexpr const char* kVersion = "brain.Event:2";  // readers obey SessionLog from version 2 on
constexpr std::size_t kMostBuffered = std::size_t{1} << 20;  // bytes

}  // namespace

struct EventLog::State {
  explicit State(Setup given) : setup(std::move(given)) {}

  // First failure: kept until it is told.
  void Fail(const std::string& text) {
    if (failure.empty() && !told) failure = text;
  }
  void Tell() {
    if (told || failure.empty()) return;
    told = true;
    throw RunError(failure);
  }

  // Cuts what the session does again, and opens a file of its own.
  void Begin(bool continues, std::int64_t step) {
    file.reset();
    buffer.clear();
    last_step = step;
    const auto attempt = [this](const auto& change) {
      try {
        change();
        return true;
      } catch (const Error& error) {
        Fail(error.what());
        return false;
      }
    };
    // Not durably: the records are not flushed to the disk either.
    std::error_code error;
    const bool fresh = std::filesystem::create_directories(setup.folder, error);
    if (error) return Fail(fmt::format("{}: cannot be made: {}", setup.folder, error.message()));
    // Events that cannot be cut would be shown beside those to come: better none.
    std::vector<std::string> files;
    if (!fresh && !attempt([&] { files = CutEvents(setup.folder, continues ? step : 0); })) return;
    has_start = !files.empty();
    attempt([&] { Open(files); });
    Put(VersionEvent());
    if (!has_start) return;
    proto::Event start = Make(step + 1);
    start.mutable_session_log()->set_status(proto::SessionLog::START);
    Put(start);
  }

  void Open(const std::vector<std::string>& files) {
    const auto now = static_cast<std::int64_t>(UnixSeconds());
    file = std::make_shared<AppendFile>(NextEventFile(setup.folder, files, now), true);
  }

  static proto::Event VersionEvent() {
    proto::Event version = Make(0);
    version.set_file_version(kVersion);
    return version;
  }

  static proto::Event Make(std::int64_t step) {
    proto::Event event;
    event.set_wall_time(UnixSeconds());
    event.set_step(step);
    return event;
  }

  // Runs a change under the lock, and tells what failed.
  template <typename Change>
  void Guarded(Change&& change) {
    const std::lock_guard lock(mutex);
    change();
    Tell();
  }

  void Put(const proto::Event& event) {
    if (file == nullptr) return;
    AppendRecord(event.SerializeAsString(), buffer);
    if (buffer.size() >= kMostBuffered || Seconds() - flushed > setup.flush_seconds) Write();
  }

  // Records that a full disk refuses are tried again until they are too many, and then lost; those
  // in the file stay whole.
  void Write() {
    flushed = Seconds();
    if (file == nullptr || buffer.empty()) return;
    const std::string reason = file->Append(buffer);
    if (!reason.empty()) Fail(fmt::format("{}: cannot be written: {}", file->Path(), reason));
    if (reason.empty() || buffer.size() >= kMostBuffered) buffer.clear();
  }

  const Setup setup;
  std::mutex mutex;                           // of all below
  std::shared_ptr<AppendFile> file;  // null: it could not be opened
  std::string buffer;                         // records that are not in the file yet
  double flushed = Seconds();
  std::int64_t last_step = 0;  // last one with values
  bool has_start = false;
  std::string failure;
  bool told = false;
};

EventLog::EventLog(Setup setup) : state_(std::make_unique<State>(std::move(setup))) {
  state_->Begin(state_->setup.continues, state_->setup.resume_step);
}

EventLog::~EventLog() { state_->Write(); }

bool EventLog::HasStart() const { return state_->has_start; }

void EventLog::Add(std::int64_t step, const Scalars& scalars) {
  if (scalars.empty()) return;
  state_->Guarded([&] {
    proto::Event event = State::Make(state_->last_step = step);
    for (const auto& [tag, value] : scalars) AddScalar(tag, value, event);
    state_->Put(event);
  });
}

void EventLog::AddText(const std::string& tag, const std::string& text) {
  state_->Guarded([&] {
    proto::Event event = State::Make(state_->last_step);
    report::AddText(tag, text, event);
    state_->Put(event);
  });
}

// An event each: one of all would be as long as the model has tensors.
void EventLog::AddHistograms(std::int64_t step, std::span<const NamedHistogram> histograms) {
  const std::lock_guard lock(state_->mutex);
  for (const NamedHistogram& named : histograms) {
    proto::Event event = State::Make(state_->last_step = step);
    AddHistogram(named.name, named.histogram, event);
    state_->Put(event);
  }
}

void EventLog::AddHParams(const std::vector<std::pair<std::string, std::string>>& values) {
  state_->Guarded([&] {
    proto::Event event = State::Make(state_->last_step);
    report::AddHParams(values, event.wall_time(), event);
    state_->Put(event);
  });
}

void EventLog::AddEnd() {
  state_->Guarded([&] {
    proto::Event event = State::Make(state_->last_step);
    report::AddEnd(event.wall_time(), event);
    state_->Put(event);
    state_->Write();
  });
}

void EventLog::GoBack(std::int64_t step) {
  state_->Guarded([&] {
    state_->Write();
    state_->Begin(true, step);
  });
}

std::string EventLog::Renew() {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  if (state.file == nullptr || !state.file->Gone()) return {};
  std::error_code ignored;  // the opening says it
  std::filesystem::create_directories(state.setup.folder, ignored);
  const std::vector<std::string> files = EventFiles(state.setup.folder);
  state.Open(files);
  state.has_start = !files.empty();
  std::string first;
  AppendRecord(State::VersionEvent().SerializeAsString(), first);
  state.buffer.insert(0, first);
  return state.file->Path();
}

void EventLog::Flush() {
  state_->Guarded([&] { state_->Write(); });
}

// Steps do not wait for a slow disk.
void EventLog::Sync() {
  std::shared_ptr<AppendFile> file;
  state_->Guarded([&] {
    state_->Write();
    file = state_->file;
  });
  if (file != nullptr) file->Sync();
}

}  // namespace trireme::report
