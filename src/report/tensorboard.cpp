// TensorBoard's event files: histograms summed over ranks, EventLog, its records, its sink.
#include "trireme/report/tensorboard.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <bit>
#include <boost/crc.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <string_view>
#include <system_error>

#include "event.pb.h"
#include "event_files.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/report/append_file.hpp"

namespace trireme::report {

namespace {

constexpr double kSmallest = 1e-12, kLargest = 1e20, kGrowth = 1.1;

std::vector<double> MakeLimits() {
  std::vector<double> positive;
  for (double limit = kSmallest; limit < kLargest; limit *= kGrowth) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits(positive.rbegin(), positive.rend());
  for (double& limit : limits) limit = -limit;
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

// Finds a value's bucket without a search. The leading bits of a value select a range narrower than
// a bucket; a table holds the first bucket of each range.
class BucketFinder {
 public:
  BucketFinder() : limits_(Histogram::Limits()) {
    for (std::uint64_t key = 0; key < kFinite; ++key) {
      const double lowest = std::bit_cast<double>(key << kDropped);
      const auto above = std::upper_bound(limits_.begin(), limits_.end(), lowest);
      first_[key] = static_cast<std::uint16_t>(above - limits_.begin());
      const double most_negative = -std::bit_cast<double>(((key + 1) << kDropped) - 1);
      const auto below = std::upper_bound(limits_.begin(), limits_.end(), most_negative);
      first_negative_[key] = static_cast<std::uint16_t>(below - limits_.begin());
    }
  }

  // Index of the bucket that holds `value`; infinities belong to the outermost buckets.
  std::size_t operator()(double value) const {
    const std::uint64_t key = (std::bit_cast<std::uint64_t>(value) & kMagnitude) >> kDropped;
    if (key >= kFinite) return value < 0 ? 0 : limits_.size() - 1;
    std::size_t at = value < 0 ? first_negative_[key] : first_[key];
    while (at + 1 < limits_.size() && value >= limits_[at]) ++at;
    return at;
  }

 private:
  static constexpr int kDropped = 52 - 4;  // low mantissa bits; a range spans 1/16 at most
  static constexpr std::uint64_t kMagnitude = ~(std::uint64_t{1} << 63);
  static constexpr std::size_t kFinite = std::size_t{0x7FF} << (52 - kDropped);  // number of ranges

  const std::vector<double>& limits_;
  std::array<std::uint16_t, kFinite> first_{}, first_negative_{};
};

}  // namespace

const std::vector<double>& Histogram::Limits() {
  static const std::vector<double> limits = MakeLimits();
  return limits;
}

Histogram::Histogram() : counts_(Limits().size(), 0) {}

void Histogram::Add(double value) {
  static const BucketFinder find;
  if (std::isnan(value)) return;
  ++counts_[find(value)];
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_.Add(value);
  squares_.Add(value * value);
}

double Histogram::Count() const {
  double count = 0;
  for (const double bucket : counts_) count += bucket;
  return count;
}

std::size_t Histogram::Addable() { return Limits().size() + 2 * ExactSum::kNumbers; }

void Histogram::Pack(std::span<double> addable, std::span<double, 2> maxima) const {
  auto next = std::ranges::copy(counts_, addable.begin()).out;
  next = std::ranges::copy(sum_.Digits(), next).out;
  std::ranges::copy(squares_.Digits(), next);
  maxima[0] = -min_;
  maxima[1] = max_;
}

Histogram Histogram::Unpack(std::span<const double> addable, std::span<const double, 2> maxima) {
  Histogram histogram;
  const std::size_t buckets = Limits().size();
  std::ranges::copy(addable.first(buckets), histogram.counts_.begin());
  histogram.sum_ = ExactSum::FromDigits(addable.subspan(buckets, ExactSum::kNumbers));
  histogram.squares_ = ExactSum::FromDigits(addable.subspan(buckets + ExactSum::kNumbers));
  histogram.min_ = -maxima[0];
  histogram.max_ = maxima[1];
  return histogram;
}

namespace {

constexpr std::int64_t kSegment = std::int64_t{1} << 16;  // elements that a replica counts in turn

// This rank's share of a tensor's histogram. The replicas of a tensor take turns at segments, whose
// bounds depend on the whole tensor, not on the block.
Histogram PartOf(const kernels::StateBlock& block, const ReadBlock& read, double divisor,
                 std::vector<std::byte>& buffer) {
  Histogram histogram;
  for (std::int64_t first = block.begin; first < block.end;) {
    const std::int64_t segment = first / kSegment;
    const std::int64_t last = std::min((segment + 1) * kSegment, block.end);
    if (segment % block.replicas == block.replica) {
      DispatchDtype(block.dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* values = static_cast<const T*>(block.data) + (first - block.begin);
        if (read) {
          buffer.resize(static_cast<std::size_t>(kSegment) * sizeof(T));
          read(block, first, last, buffer.data());
          values = reinterpret_cast<const T*>(buffer.data());
        }
        for (std::int64_t i = 0; i < last - first; ++i) {
          histogram.Add(static_cast<double>(values[i]) / divisor);
        }
      });
    }
    first = last;
  }
  return histogram;
}

}  // namespace

std::vector<NamedHistogram> HistogramsOf(const comm::Collectives& world,
                                         std::span<const kernels::StateBlock> blocks,
                                         const ReadBlock& read, const std::string& prefix,
                                         double divisor) {
  constexpr std::size_t kAtOnce = 32;  // tensors per all-reduce: below 1 MiB
  const std::size_t addable = Histogram::Addable();
  std::vector<NamedHistogram> whole;
  std::vector<double> sums(kAtOnce * addable), maxima(kAtOnce * 2);
  std::vector<std::byte> buffer;
  const auto parts = [&](std::size_t i) {
    return std::pair(std::span(sums).subspan(i * addable, addable),
                     std::span<double, 2>(std::span(maxima).subspan(i * 2, 2)));
  };
  for (std::size_t first = 0; first < blocks.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, blocks.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const auto [sum, extremes] = parts(i);
      PartOf(blocks[first + i], read, divisor, buffer).Pack(sum, extremes);
    }
    world.AllReduce(Dtype::kFloat64, sums.data(), static_cast<std::int64_t>(count * addable));
    world.AllReduce(Dtype::kFloat64, maxima.data(), static_cast<std::int64_t>(count * 2),
                    comm::Reduction::kMax);
    for (std::size_t i = 0; i < count && world.Rank() == 0; ++i) {
      const auto [sum, extremes] = parts(i);
      whole.push_back({prefix + blocks[first + i].name, Histogram::Unpack(sum, extremes)});
    }
  }
  return whole;
}

// Records of an event file (TFRecord): length, masked CRC-32C of the length, payload, masked
// CRC-32C of the payload; numbers little-endian.

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLengthBytes = 8, kCrcBytes = 4;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

template <typename Number>
void AppendNumber(Number number, std::string& to) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <typename Number>
Number ReadNumber(std::string_view bytes) {
  Number number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// Masked as by TensorFlow (tensorflow/core/lib/hash/crc32c.h), so that a checksum of data that
// holds checksums is not degenerate.
std::uint32_t MaskedCrc(std::string_view bytes) {
  return std::rotr(Crc32c(bytes), 15) + 0xA282EAD8;
}

}  // namespace

std::uint32_t Crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

void AppendRecord(std::string_view payload, std::string& to) {
  std::string length;
  AppendNumber(static_cast<std::uint64_t>(payload.size()), length);
  to += length;
  AppendNumber(MaskedCrc(length), to);
  to += payload;
  AppendNumber(MaskedCrc(payload), to);
}

RecordReader::RecordReader(const std::string& path) : file_(path, std::ios::binary) {
  file_.seekg(0, std::ios::end);
  size_ = static_cast<std::int64_t>(file_.tellg());
  file_.seekg(0);
  failed_ = !file_;
}

std::optional<std::string> RecordReader::Next() {
  constexpr std::int64_t kFrame = kLengthBytes + 2 * kCrcBytes;
  if (failed_ || size_ - end_ < kFrame) return std::nullopt;
  // Reads `count` bytes and the checksum after them; false if they are damaged.
  const auto take = [this](std::string& bytes, std::size_t count) {
    bytes.resize(count + kCrcBytes);
    if (!file_.read(bytes.data(), std::ssize(bytes))) return false;
    const auto crc = ReadNumber<std::uint32_t>(std::string_view(bytes).substr(count));
    bytes.resize(count);
    return crc == MaskedCrc(bytes);
  };
  std::string head, payload;
  const bool begins = take(head, kLengthBytes);
  const auto length = begins ? ReadNumber<std::uint64_t>(head) : 0;
  if (!begins || length > static_cast<std::uint64_t>(size_ - end_ - kFrame) ||
      !take(payload, static_cast<std::size_t>(length))) {
    // Stops reading: after a damaged record, the start of the next one is unknown.
    failed_ = file_.bad();
    size_ = end_;
    return std::nullopt;
  }
  end_ += kFrame + static_cast<std::int64_t>(length);
  return payload;
}

// Fills in TensorBoard's messages.

namespace {

constexpr const char* kEndTag = "_hparams_/session_end_info";

// Returns `text` as valid UTF-8: the JSON writer replaces invalid bytes.
std::string Utf8(const std::string& text) {
  if (AsciiEnd(text) == text.size()) return text;
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
}

proto::Summary::Value& AddValue(const std::string& tag, proto::Event& event) {
  proto::Summary::Value& value = *event.mutable_summary()->add_value();
  value.set_tag(Utf8(tag));
  return value;
}

// Adds a message of the HParams plugin, beside an empty tensor, which readers require.
void AddPluginData(const std::string& tag, const proto::HParamsPluginData& data,
                   proto::Event& event) {
  proto::Summary::Value& value = AddValue(tag, event);
  auto& plugin = *value.mutable_metadata()->mutable_plugin_data();
  plugin.set_plugin_name("hparams");
  plugin.set_content(data.SerializeAsString());
  value.mutable_tensor()->set_dtype(proto::DT_FLOAT);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(0);
}

// The value of a deck's key: numbers stay numbers, yes and no become booleans.
proto::HParamValue ValueOf(const std::string& text) {
  proto::HParamValue value;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && std::isfinite(number)) {
    value.set_number_value(number);
  } else if (text == "yes" || text == "no") {
    value.set_bool_value(text == "yes");
  } else {
    value.set_string_value(Utf8(text));
  }
  return value;
}

// As TensorFlow does, leaves out empty buckets at both ends and merges runs of them in between.
void AddHistogram(const NamedHistogram& named, proto::Event& event) {
  const Histogram& histogram = named.histogram;
  proto::HistogramProto& message = *AddValue(named.name, event).mutable_histo();
  const double count = histogram.Count();
  message.set_num(count);
  message.set_sum(histogram.Sum());
  message.set_sum_squares(histogram.Squares());
  if (count == 0) {
    message.add_bucket_limit(Histogram::Limits().back());
    message.add_bucket(0);
    return;
  }
  message.set_min(histogram.Min());
  message.set_max(histogram.Max());
  const std::vector<double>&limits = Histogram::Limits(), &counts = histogram.Counts();
  std::size_t first = 0, last = counts.size() - 1;
  while (counts[first] == 0) ++first;
  while (counts[last] == 0) --last;
  for (std::size_t i = first; i <= last; ++i) {
    if (counts[i] == 0 && counts[i + 1] == 0) continue;
    message.add_bucket_limit(limits[i]);
    message.add_bucket(counts[i]);
  }
}

bool EndsRun(const proto::Event& event) {
  return std::ranges::any_of(event.summary().value(),
                             [](const auto& value) { return value.tag() == kEndTag; });
}

// The folder of a run's event files.

constexpr std::string_view kPrefix = "events.out.tfevents.";

// The Unix seconds in an event file's name; 0 if the name has another form.
std::int64_t TimeIn(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  std::int64_t seconds = 0;
  const char* const begin = name.data() + std::min(kPrefix.size(), name.size());
  std::from_chars(begin, name.data() + name.size(), seconds);
  return seconds;
}

std::string HostName() {
  constexpr std::size_t kMost = 256;
  std::string name(kMost, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "host";
  name.resize(name.find('\0'));
  std::ranges::replace(name, '/', '_');
  return name;
}

// Path of a new event file that TensorBoard reads after `files`, those already in the folder.
std::string NextEventFile(const std::string& folder, const std::vector<std::string>& files) {
  auto seconds = static_cast<std::int64_t>(UnixSeconds());
  // TensorBoard sorts by name, and clocks of hosts differ: the seconds must exceed the last file's.
  if (!files.empty()) seconds = std::max(seconds, TimeIn(files.back()) + 1);
  return fmt::format("{}/{}{:010}.{}.{}.0", folder, kPrefix, seconds, HostName(), getpid());
}

// Bytes at the start of an event file to keep when the run goes back to `step`; 0 if the file's
// session began at `step` or later.
std::int64_t KeptBytes(const std::string& path, std::int64_t step) {
  RecordReader reader(path);
  std::int64_t kept = 0;
  while (const auto payload = reader.Next()) {
    proto::Event event;
    if (!event.ParseFromString(*payload)) break;
    if (event.has_session_log() && event.step() > step) return 0;
    if (event.step() > step || EndsRun(event)) break;
    kept = reader.End();
  }
  if (reader.Failed()) throw RunError(path + ": cannot be read");
  return kept;
}

// Cuts from the folder's files all events after `step`, the end-of-run event (whatever its step),
// and everything from the first damaged record on. Removes files of sessions that began at `step`
// or later. Files are cut in place, so that a reader that has read them already goes on to the next
// one. Returns the remaining files, as EventFiles does. Throws RunError that names the path.
std::vector<std::string> CutEvents(const std::string& folder, std::int64_t step) {
  std::vector<std::string> left;
  for (const std::string& path : EventFiles(folder)) {
    const std::int64_t kept = step == 0 ? 0 : KeptBytes(path, step);
    std::error_code error;
    if (kept == 0) {
      fs::remove(path, error);
    } else if (static_cast<std::int64_t>(fs::file_size(path, error)) > kept && !error) {
      fs::resize_file(path, static_cast<std::uintmax_t>(kept), error);
    }
    if (error) {
      throw RunError(fmt::format("{}: cannot be cut to step {}: {}", path, step, error.message()));
    }
    if (kept > 0) left.push_back(path);
  }
  return left;
}

}  // namespace

std::vector<std::string> EventFiles(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const std::string& name : NamesIn(folder)) {
    const std::string path = folder + "/" + name;
    if (name.starts_with(kPrefix) && fs::is_regular_file(path, ignored)) files.push_back(path);
  }
  return files;
}

// EventLog: buffers records; begins a new file when a run goes back to an earlier step.

struct EventLog::State {
  // Readers obey SessionLog from version 2 on.
  static constexpr const char* kVersion = "brain.Event:2";
  static constexpr std::size_t kMostBuffered = std::size_t{1} << 20;  // bytes

  explicit State(Setup given) : setup(std::move(given)) {
    Begin(setup.continues, setup.resume_step);
  }

  // Keeps the first failure until Guarded() throws it.
  void Fail(const std::string& text) {
    if (failure.empty() && !told) failure = text;
  }

  // Cuts the events after `step` (all events unless `continues`) and opens a new file.
  void Begin(bool continues, std::int64_t step) {
    file.reset();
    buffer.clear();
    last_step = step;
    try {
      // The folder need not be durable: the records are not flushed to the disk either.
      std::error_code error;
      const bool fresh = fs::create_directories(setup.folder, error);
      if (error) {
        throw RunError(fmt::format("{}: cannot be made: {}", setup.folder, error.message()));
      }
      // TensorBoard would show old events that cannot be cut beside new ones: write nothing.
      std::vector<std::string> files;
      if (!fresh) files = CutEvents(setup.folder, continues ? step : 0);
      Open(files);
    } catch (const Error& error) {
      return Fail(error.what());
    }
    Put(VersionEvent());
    if (!has_start) return;
    proto::Event start = Make(step + 1);
    start.mutable_session_log()->set_status(proto::SessionLog::START);
    Put(start);
  }

  // Opens a new file after `files`, those already in the folder.
  void Open(const std::vector<std::string>& files) {
    has_start = !files.empty();
    file = std::make_shared<AppendFile>(NextEventFile(setup.folder, files), true);
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

  // Runs `change` under the lock, then throws a failure that has not been reported yet.
  template <typename Change>
  void Guarded(Change&& change) {
    const std::lock_guard lock(mutex);
    change();
    if (!failure.empty() && !std::exchange(told, true)) throw RunError(failure);
  }

  // Fills an event of `step` and appends it; without `step`, the last step that had values is used.
  template <typename Fill>
  void PutOne(std::optional<std::int64_t> step, const Fill& fill) {
    Guarded([&] {
      proto::Event event = Make(last_step = step.value_or(last_step));
      fill(event);
      Put(event);
    });
  }

  void Put(const proto::Event& event) {
    if (file == nullptr) return;
    AppendRecord(event.SerializeAsString(), buffer);
    if (buffer.size() >= kMostBuffered || Seconds() - flushed > setup.flush_seconds) Write();
  }

  // Records that cannot be written (a full disk) are kept and tried again, and dropped once there
  // are too many. Records in the file are never torn.
  void Write() {
    flushed = Seconds();
    if (file == nullptr || buffer.empty()) return;
    const std::string reason = file->Append(buffer);
    if (!reason.empty()) Fail(fmt::format("{}: cannot be written: {}", file->Path(), reason));
    if (reason.empty() || buffer.size() >= kMostBuffered) buffer.clear();
  }

  const Setup setup;
  std::mutex mutex;                  // guards all members below
  std::shared_ptr<AppendFile> file;  // null: no file is open
  std::string buffer;                // records not yet written to the file
  double flushed = Seconds();
  std::int64_t last_step = 0;  // last step with values
  bool has_start = false;
  std::string failure;
  bool told = false;
};

EventLog::EventLog(Setup setup) : state_(std::make_unique<State>(std::move(setup))) {}

EventLog::~EventLog() { state_->Write(); }

bool EventLog::HasStart() const { return state_->has_start; }

void EventLog::Add(std::int64_t step, const Scalars& scalars) {
  if (scalars.empty()) return;
  state_->PutOne(step, [&](proto::Event& event) {
    for (const auto& [tag, value] : scalars) {
      AddValue(tag, event).set_simple_value(static_cast<float>(value));
    }
  });
}

// Markdown shows lines that begin with four blanks as code, unchanged.
void EventLog::AddText(const std::string& tag, const std::string& text) {
  std::string plain = Utf8(text);
  std::ranges::replace(plain, '\r', '\n');  // Markdown takes a carriage return as a line's end, too
  std::istringstream lines(plain);
  std::string code;
  for (std::string line; std::getline(lines, line);) code += "    " + line + "\n";
  state_->PutOne({}, [&](proto::Event& event) {
    proto::Summary::Value& value = AddValue(tag, event);
    value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
    value.mutable_tensor()->set_dtype(proto::DT_STRING);
    value.mutable_tensor()->mutable_tensor_shape();
    value.mutable_tensor()->add_string_val(code);
  });
}

// One event per histogram: a single event's length would grow with the number of tensors.
void EventLog::AddHistograms(std::int64_t step, std::span<const NamedHistogram> histograms) {
  const std::lock_guard lock(state_->mutex);
  for (const NamedHistogram& named : histograms) {
    proto::Event event = State::Make(state_->last_step = step);
    AddHistogram(named, event);
    state_->Put(event);
  }
}

// Leaves out keys without a value.
void EventLog::AddHParams(const std::vector<std::pair<std::string, std::string>>& values) {
  state_->PutOne({}, [&](proto::Event& event) {
    proto::HParamsPluginData data;
    proto::SessionStartInfo& start = *data.mutable_session_start_info();
    start.set_start_time_secs(event.wall_time());
    for (const auto& [name, value] : values) {
      if (!value.empty()) (*start.mutable_hparams())[Utf8(name)] = ValueOf(value);
    }
    AddPluginData("_hparams_/session_start_info", data, event);
  });
}

void EventLog::AddEnd() {
  state_->PutOne({}, [](proto::Event& event) {
    proto::HParamsPluginData data;
    data.mutable_session_end_info()->set_status(proto::STATUS_SUCCESS);
    data.mutable_session_end_info()->set_end_time_secs(event.wall_time());
    AddPluginData(kEndTag, data, event);
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
  std::error_code ignored;  // Open() reports the failure
  fs::create_directories(state.setup.folder, ignored);
  state.Open(EventFiles(state.setup.folder));
  std::string first;
  AppendRecord(State::VersionEvent().SerializeAsString(), first);
  state.buffer.insert(0, first);
  return state.file->Path();
}

void EventLog::Flush() {
  state_->Guarded([&] { state_->Write(); });
}

// Syncs without the lock: training steps do not wait for a slow disk.
void EventLog::Sync() {
  std::shared_ptr<AppendFile> file;
  state_->Guarded([&] {
    state_->Write();
    file = state_->file;
  });
  if (file != nullptr) file->Sync();
}

// TensorBoardSink: turns records into scalars, texts and the HParams session.

TensorBoardSink::TensorBoardSink(std::shared_ptr<EventLog> log, BoardFacts facts)
    : log_(std::move(log)), facts_(std::move(facts)) {}

// TensorBoard reads hyperparameters only from a run's first session.
void TensorBoardSink::Begin() {
  if (!log_->HasStart()) log_->AddHParams(facts_.deck);
  log_->AddText("layout", facts_.layout);
}

void TensorBoardSink::Step(const Record& record) {
  log_->Add(record.step, {{"loss/train", record.loss},
                          {"perplexity/train", std::exp(record.loss)},
                          {"optimizer/learning_rate", record.learning_rate},
                          {"optimizer/gradient_norm", record.grad_norm},
                          {"perf/step_seconds", record.step_seconds},
                          {"perf/tokens_per_second", record.tokens_per_second}});
}

void TensorBoardSink::Interval(const report::Interval& interval) {
  const Record& record = interval.last;
  Scalars scalars = {{"progress/epoch", record.epoch},
                     {"progress/tokens", static_cast<double>(record.tokens)},
                     {"perf/flops_per_second", record.flops_per_second},
                     {"perf/roof_fraction", record.roof_fraction},
                     {"time/compute", record.seconds_compute},
                     {"time/exposed_communication", record.seconds_exposed_communication},
                     {"time/bubble", record.seconds_bubble},
                     {"time/data", record.seconds_data},
                     {"time/checkpoint", record.seconds_checkpoint},
                     {"memory/bytes", static_cast<double>(record.memory_bytes)},
                     {"steps/bad", static_cast<double>(record.bad_steps)}};
  if (record.memory_rank >= 0) scalars.emplace_back("memory/rank", record.memory_rank);
  if (record.slowest_rank >= 0) {
    scalars.emplace_back("ranks/slowest", record.slowest_rank);
    scalars.emplace_back("ranks/seconds_slowest", record.seconds_slowest);
  }
  for (const auto& [name, tokens] : record.sources) {
    scalars.emplace_back("sources/" + name, static_cast<double>(tokens));
  }
  for (const auto& [name, value] : record.more) scalars.emplace_back("energy/" + name, value);
  log_->Add(record.step, scalars);
}

void TensorBoardSink::Evaluation(const Record& record) {
  const bool other = record.kind == Record::Kind::kValidOther;
  const std::string split = record.kind == Record::Kind::kTest ? "test"
                            : other                            ? "valid_" + record.set
                                                               : "valid";
  log_->Add(record.step, {{"loss/" + split, record.loss},
                          {"perplexity/" + split, std::exp(record.loss)},
                          {fmt::format("perf/{}_seconds", split), record.step_seconds}});
}

void TensorBoardSink::Sample(std::int64_t, const std::string& text) {
  log_->AddText("sample", text);
}

void TensorBoardSink::Happened(const Event& event) {
  log_->AddText("events", fmt::format("step {}: {}: {}", event.step, event.name, event.text));
}

void TensorBoardSink::GoBack(std::int64_t step) {
  log_->GoBack(step);
  if (!log_->HasStart()) Begin();
}

std::string TensorBoardSink::Renew() {
  const std::string path = log_->Renew();
  if (!path.empty()) Begin();
  return path;
}

void TensorBoardSink::Sync() { log_->Sync(); }

void TensorBoardSink::Done(const Summary& summary) {
  if (summary.done) log_->AddEnd();
  log_->Flush();
}

}  // namespace trireme::report
