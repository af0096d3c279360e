// Activities by CUPTI: buffers that the library fills, the records in them, and its clock. Times,
// queues, names and graphs are at the same offsets of a record in all versions from CUDA 12.4 to
// 13; only what follows them differs.
#include <cuda_runtime.h>
#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::device::cuda {

namespace {

constexpr std::uint32_t kNewNumbers = 10000;  // since CUDA 13.0: major * 10000 + minor * 100
constexpr int kOldMajor = 12;

// The folder of the CUDA runtime in use; of the program, if the runtime is linked into it.
std::filesystem::path RuntimeFolder() {
  Dl_info place{};
  if (dladdr(reinterpret_cast<const void*>(&cudaRuntimeGetVersion), &place) == 0) return {};
  std::error_code error;
  return std::filesystem::canonical(place.dli_fname, error).parent_path();
}

// Paths in the order in which they are tried: the toolkit's, those of NVIDIA's PyPI packages (one
// folder for all libraries, or one each), then the system's library path.
std::vector<std::string> Candidates() {
  if (const char* const given = std::getenv("TRIREME_CUPTI")) return {given};
  const std::uint32_t api = CUPTI_API_VERSION;
  const std::uint32_t major = api < kNewNumbers ? kOldMajor : api / kNewNumbers;
  const std::string name = fmt::format("libcupti.so.{}", major);
  std::vector<std::string> paths;
  const std::filesystem::path folder = RuntimeFolder();
  for (const char* const way :
       {".", "../extras/CUPTI/lib64", "../../../extras/CUPTI/lib64", "../../cuda_cupti/lib"}) {
    std::error_code error;
    const std::filesystem::path path = folder / way / name;
    if (!folder.empty() && std::filesystem::exists(path, error)) paths.push_back(path.string());
  }
  paths.push_back(name);
  return paths;
}

// Version text of CUPTI's number: "13.0" for 130001; "12" for the older numbering.
std::string CuptiVersion(std::uint32_t number) {
  if (number < kNewNumbers) return fmt::format("{}", kOldMajor);
  return fmt::format("{}.{}", number / kNewNumbers, number % kNewNumbers / 100);
}

// CUPTI's functions, from a library that is loaded when first needed and never unloaded, as one of
// its threads may still be running. Tries TRIREME_CUPTI or, without it, libraries near the CUDA
// runtime and then the library path. Members are initialised in the order of declaration.
class CuptiLibrary {
  struct Symbol {
    void* address;
    template <typename Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol Find(const char* name, bool needed = true) {
    void* const found = library_ == nullptr ? nullptr : dlsym(library_, name);
    if (found == nullptr && needed && why_.empty()) why_ = fmt::format("{} lacks {}", path_, name);
    return {found};
  }
  void* Open() {
    for (const std::string& path : Candidates()) {
      if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        path_ = path;
        why_.clear();
        return library;
      }
      const char* const reason = dlerror();
      if (why_.empty()) why_ = reason == nullptr ? path : reason;
    }
    return nullptr;
  }

  std::string path_, why_;
  void* library_ = Open();
  decltype(&cuptiGetVersion) version_ = Find("cuptiGetVersion");
  decltype(&cuptiGetResultString) result_string_ = Find("cuptiGetResultString");

 public:
  decltype(&cuptiSubscribe) subscribe = Find("cuptiSubscribe");
  decltype(&cuptiUnsubscribe) unsubscribe = Find("cuptiUnsubscribe");
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks =
      Find("cuptiActivityRegisterCallbacks");
  decltype(&cuptiActivityEnable) enable = Find("cuptiActivityEnable");
  decltype(&cuptiActivityDisable) disable = Find("cuptiActivityDisable");
  decltype(&cuptiActivityFlushAll) flush = Find("cuptiActivityFlushAll");
  decltype(&cuptiActivityGetNextRecord) next_record = Find("cuptiActivityGetNextRecord");
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records =
      Find("cuptiActivityGetNumDroppedRecords");
  decltype(&cuptiActivityPushExternalCorrelationId) push =
      Find("cuptiActivityPushExternalCorrelationId");
  decltype(&cuptiActivityPopExternalCorrelationId) pop =
      Find("cuptiActivityPopExternalCorrelationId");
  decltype(&cuptiGetTimestamp) timestamp = Find("cuptiGetTimestamp");
  decltype(&cuptiGetStreamIdEx) stream_id = Find("cuptiGetStreamIdEx");
  // Null in older libraries.
  using EnableCall = CUptiResult (*)(CUpti_CallbackId, std::uint8_t);
  EnableCall enable_runtime_call = Find("cuptiActivityEnableRuntimeApi", false);
  EnableCall enable_driver_call = Find("cuptiActivityEnableDriverApi", false);

  const std::string& Why() const { return why_; }  // what failed; empty: nothing
  std::string Name() const {                       // "CUPTI 13.0 (/usr/lib/libcupti.so.13)"
    std::uint32_t version = 0;
    version_(&version);
    return fmt::format("CUPTI {} ({})", CuptiVersion(version), path_);
  }
  std::string ErrorText(CUptiResult result) const {
    const char* text = nullptr;
    if (result_string_(result, &text) != CUPTI_SUCCESS || text == nullptr) {
      return fmt::format("error {}", static_cast<int>(result));
    }
    return text;
  }
};

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;  // some five thousand records
constexpr int kMostBuffers = 64;                            // that the library holds at a time
constexpr int kReadings = 64;  // readings of both clocks, of which the closest pair is kept
constexpr std::size_t kCallsAnActivity = 4;  // tagged calls kept per activity
constexpr double kNano = 1e-9;

constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                               CUPTI_ACTIVITY_KIND_MEMSET,
                               // Calls that queue work: needed only for the tags.
                               CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                               CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

// Frequent calls that queue nothing, mostly from a host that waits; these are not recorded.
constexpr std::array kIdleRuntimeCalls = {
    CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020, CUPTI_RUNTIME_TRACE_CBID_cudaStreamQuery_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020, CUPTI_RUNTIME_TRACE_CBID_cudaGetLastError_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020};
constexpr std::array kIdleDriverCalls = {
    CUPTI_DRIVER_TRACE_CBID_cuEventQuery, CUPTI_DRIVER_TRACE_CBID_cuStreamQuery,
    CUPTI_DRIVER_TRACE_CBID_cuEventRecord, CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent};

// The same moment on the library's clock and on the host's.
struct Moment {
  std::uint64_t library = 0;  // nanoseconds
  double host = 0;            // on the clock of Seconds()
  double error = 0;           // largest possible error of `host`, seconds
};

Moment ReadClocks(const CuptiLibrary& library) {
  Moment best;
  for (int i = 0; i < kReadings; ++i) {
    Moment now;
    const double before = Seconds();
    library.timestamp(&now.library);
    const double after = Seconds();
    now.error = (after - before) / 2;
    now.host = before + now.error;
    if (i == 0 || now.error < best.error) best = now;
  }
  return best;
}

// An activity whose times are still on the library's clock, and its tag unknown.
struct Raw {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t correlation = 0;
  Activity activity;
};

struct TaggedCall {
  std::uint32_t correlation;
  std::uint64_t tag;
};

template <typename Record>
Raw RawOf(const CUpti_Activity* record, Activity::Kind kind) {
  const auto& from = *reinterpret_cast<const Record*>(record);
  Raw raw = {from.start,
             from.end,
             from.correlationId,
             {.queue = from.streamId, .graph = from.graphId, .kind = kind}};
  if constexpr (requires { from.bytes; }) {
    raw.activity.bytes = static_cast<std::int64_t>(from.bytes);
  }
  return raw;
}

std::string Advice(CUptiResult result) {
  switch (result) {
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return "; another profiler records this process";
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "; the driver leaves profiling to administrators "
             "(NVreg_RestrictProfilingToAdminUsers)";
    default:
      return "";
  }
}

class Recording : public Activities {
 public:
  Recording(std::unique_ptr<const CuptiLibrary> library, const GpuContext& gpu, std::int64_t most)
      : library_(std::move(library)), gpu_(gpu), most_(static_cast<std::size_t>(most)) {
    raw_.reserve(most_);
    calls_.reserve(kCallsAnActivity * most_);
  }
  ~Recording() override { Stop(); }

  std::string Start();  // returns the reason if it fails; empty: it runs
  void Push(std::uint64_t tag) override {
    library_->push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, tag);
  }
  void Pop() override { library_->pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, nullptr); }
  ActivityRecord Finish() override;
  std::string Library() const override { return library_->Name(); }

  // Called by the library's threads while they hold the lock of TheCurrent.
  std::uint8_t* NewBuffer();
  void Take(std::uint8_t* buffer, std::size_t bytes);

 private:
  void Take(const CUpti_Activity* record);
  void Put(const Raw& raw);
  void LeaveOut(std::int64_t count, std::uint64_t from);
  std::int32_t NumberOf(const char* name);
  std::uint32_t QueueNumber(void* queue) const;
  double HostTime(std::uint64_t time) const;
  void Stop();

  std::unique_ptr<const CuptiLibrary> library_;
  const GpuContext& gpu_;
  std::size_t most_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::size_t enabled_ = 0;  // how many of kKinds are enabled
  bool started_ = false;
  Moment first_, last_;
  int buffers_ = 0;  // buffers that the library holds
  std::vector<Raw> raw_;
  std::vector<TaggedCall> calls_;
  std::map<std::string, std::int32_t, std::less<>> names_;
  std::int64_t left_out_ = 0;
  std::uint64_t full_at_ = 0;
};

// The recording that CUPTI's callbacks feed: global, since CUPTI passes them no pointer of ours.
struct Current {
  std::mutex mutex;
  Recording* recording = nullptr;
};
Current& TheCurrent() {
  static Current current;
  return current;
}

void Ignore(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

void Requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  Current& current = TheCurrent();
  const std::scoped_lock lock(current.mutex);
  *most_records = 0;
  *buffer = current.recording == nullptr ? nullptr : current.recording->NewBuffer();
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
}

void Completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t bytes) {
  Current& current = TheCurrent();
  const std::scoped_lock lock(current.mutex);
  if (current.recording != nullptr) current.recording->Take(buffer, bytes);
  delete[] buffer;
}

std::uint8_t* Recording::NewBuffer() {
  if (buffers_ == kMostBuffers) return nullptr;
  ++buffers_;
  return new std::uint8_t[kBufferBytes];
}

void Recording::Take(std::uint8_t* buffer, std::size_t bytes) {
  --buffers_;
  CUpti_Activity* record = nullptr;
  while (library_->next_record(buffer, bytes, &record) == CUPTI_SUCCESS) Take(record);
  std::size_t dropped = 0;
  library_->dropped_records(nullptr, 0, &dropped);
  if (dropped > 0) LeaveOut(static_cast<std::int64_t>(dropped), first_.library);
}

void Recording::Take(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      Raw raw = RawOf<CUpti_ActivityKernel9>(record, Activity::Kind::kKernel);
      raw.activity.name = NumberOf(reinterpret_cast<const CUpti_ActivityKernel9*>(record)->name);
      return Put(raw);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return Put(RawOf<CUpti_ActivityMemcpy5>(record, Activity::Kind::kCopy));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return Put(RawOf<CUpti_ActivityMemset4>(record, Activity::Kind::kFill));
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& call = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      const bool ours = call.externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
      if (ours && calls_.size() < kCallsAnActivity * most_) {
        calls_.push_back({call.correlationId, call.externalId});
      }
      return;
    }
    default:
      return;
  }
}

// A record without times is one that the library has lost.
void Recording::Put(const Raw& raw) {
  if (raw.begin == 0 || raw.end < raw.begin) return LeaveOut(1, first_.library);
  if (raw_.size() == most_) return LeaveOut(1, raw.begin);
  raw_.push_back(raw);
}

void Recording::LeaveOut(std::int64_t count, std::uint64_t from) {
  full_at_ = left_out_ == 0 ? from : std::min(full_at_, from);
  left_out_ += count;
}

std::int32_t Recording::NumberOf(const char* name) {
  if (name == nullptr) return -1;
  const auto found = names_.find(name);
  if (found != names_.end()) return found->second;
  const auto number = static_cast<std::int32_t>(names_.size());
  names_.emplace(name, number);
  return number;
}

std::string Recording::Start() {
  const auto failed = [&](const char* call, CUptiResult result) {
    return result == CUPTI_SUCCESS ? std::string()
                                   : fmt::format("{}: {} says {}{}", library_->Name(), call,
                                                 library_->ErrorText(result), Advice(result));
  };
  const CUptiResult subscribed =
      library_->subscribe(&subscriber_, reinterpret_cast<CUpti_CallbackFunc>(&Ignore), nullptr);
  if (subscribed != CUPTI_SUCCESS) return failed("cuptiSubscribe", subscribed);
  started_ = true;
  {
    const std::scoped_lock lock(TheCurrent().mutex);
    TheCurrent().recording = this;
  }
  const CUptiResult registered = library_->register_callbacks(&Requested, &Completed);
  if (registered != CUPTI_SUCCESS) return failed("cuptiActivityRegisterCallbacks", registered);
  first_ = ReadClocks(*library_);
  for (; enabled_ < kKinds.size(); ++enabled_) {
    const CUptiResult enabled = library_->enable(kKinds[enabled_]);
    if (enabled != CUPTI_SUCCESS) return failed("cuptiActivityEnable", enabled);
  }
  for (const auto call : kIdleRuntimeCalls) {
    if (library_->enable_runtime_call != nullptr) library_->enable_runtime_call(call, 0);
  }
  for (const auto call : kIdleDriverCalls) {
    if (library_->enable_driver_call != nullptr) library_->enable_driver_call(call, 0);
  }
  return "";
}

void Recording::Stop() {
  if (!std::exchange(started_, false)) return;
  while (enabled_ > 0) library_->disable(kKinds[--enabled_]);
  library_->flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  library_->unsubscribe(subscriber_);
  const std::scoped_lock lock(TheCurrent().mutex);
  TheCurrent().recording = nullptr;
}

double Recording::HostTime(std::uint64_t time) const {
  const auto since = [&](std::uint64_t at) {
    return static_cast<double>(static_cast<std::int64_t>(at - first_.library));
  };
  const double whole = since(last_.library);
  const double rate = whole > 0 ? (last_.host - first_.host) / whole : kNano;
  return first_.host + rate * since(time);
}

std::uint32_t Recording::QueueNumber(void* queue) const {
  std::uint32_t number = 0;
  library_->stream_id(nullptr, static_cast<CUstream>(queue), 0, &number);
  return number;
}

ActivityRecord Recording::Finish() {
  Check(cudaDeviceSynchronize(), "work of the GPU");
  last_ = ReadClocks(*library_);
  ActivityRecord record;
  record.queue = QueueNumber(gpu_.queue);
  record.input_queue = QueueNumber(gpu_.input_queue);
  Stop();
  std::ranges::sort(calls_, {}, &TaggedCall::correlation);
  for (const Raw& raw : raw_) {
    const auto call =
        std::ranges::lower_bound(calls_, raw.correlation, {}, &TaggedCall::correlation);
    const bool tagged = call != calls_.end() && call->correlation == raw.correlation;
    Activity& activity = record.all.emplace_back(raw.activity);
    activity.begin = HostTime(raw.begin);
    activity.end = HostTime(raw.end);
    if (tagged) activity.tag = call->tag;
  }
  record.names.resize(names_.size());
  for (const auto& [name, number] : names_) record.names[static_cast<std::size_t>(number)] = name;
  record.left_out = left_out_;
  record.full_at = left_out_ > 0 ? HostTime(full_at_) : 0;
  record.clock_error = std::max(first_.error, last_.error);
  return record;
}

}  // namespace

MaybeActivities RecordActivities(const GpuContext& gpu, std::int64_t most) {
  auto library = std::make_unique<const CuptiLibrary>();
  if (!library->Why().empty()) return {nullptr, "CUPTI: " + library->Why()};
  auto recording = std::make_unique<Recording>(std::move(library), gpu, most);
  std::string why = recording->Start();
  if (!why.empty()) return {nullptr, std::move(why)};
  return {std::move(recording), ""};
}

std::string ActivityLibrary() { return "CUPTI " + CuptiVersion(CUPTI_API_VERSION); }

}  // namespace trireme::device::cuda
