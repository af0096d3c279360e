// TraceFile: JSON events, compressed as they come: at most one rank's slices are in memory.
#include "trireme/device/trace_file.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"

namespace trireme::device {

namespace {

constexpr int kGzip = 15 + 16;  // zlib: largest window, with a gzip header
constexpr int kLevel = 6, kMemory = 8;
constexpr std::size_t kBuffer = std::size_t{1} << 16;
constexpr int kGpuThread = 2, kKernelPlace = 3, kFirstThread = 10, kLanes = 100;
constexpr int kFirstKernelThread = 10'000;  // first number of kernels' threads

struct Thread {
  SliceQueue queue;
  int group;
  auto operator<=>(const Thread&) const = default;
};

// Whole nanoseconds: rounding keeps the order, so slices remain nested.
std::int64_t Nanoseconds(double seconds) { return std::llround(1e9 * seconds); }

double Microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

// Thread numbers in the order of display: host, GPU, checkpoint files, then transfers by group.
int NumberOf(const Thread& thread, int lane) {
  if (thread.queue == SliceQueue::kHost) return 1;
  if (thread.queue == SliceQueue::kGpu) return kGpuThread;
  return kFirstThread + (thread.group + 1) * kLanes + std::min(lane, kLanes - 1);
}

std::string InLane(const std::string& name, int lane) {
  return lane == 0 ? name : fmt::format("{} ({})", name, lane + 1);
}

std::string NameOf(const Thread& thread, int lane, const RankFacts& facts) {
  if (thread.queue == SliceQueue::kHost) return "host";
  if (thread.queue == SliceQueue::kGpu) return "GPU";
  if (thread.queue == SliceQueue::kCheckpointFiles) return "checkpoint files";
  return InLane("transfers: " + facts.group(thread.group), lane);
}

std::string Title(const Slice& slice, const RankFacts& facts) {
  switch (slice.name) {
    case SliceName::kStep:
      return fmt::format("step {}", slice.step);
    case SliceName::kTask:
      return fmt::format("{} {}", NameOf(slice.phase), slice.micro_batch);
    case SliceName::kLayer:
      return fmt::format("layer {}", slice.layer);
    case SliceName::kTransfer:
      return facts.transfer(slice.transfer);
    case SliceName::kWait:
      return slice.group == kNoGroup ? "wait" : "wait: " + facts.group(slice.group);
    default:
      return NameOf(slice.name);
  }
}

// Arguments that slices and kernels share.
template <typename Item>
nlohmann::json PlaceOf(const Item& item) {
  nlohmann::json args = {{"step", item.step}};
  if (item.layer >= 0) args["layer"] = item.layer;
  if (item.micro_batch >= 0) args["micro_batch"] = item.micro_batch;
  if (item.chunk >= 0) args["chunk"] = item.chunk;
  if (item.phase != Phase::kNone) args["phase"] = NameOf(item.phase);
  return args;
}

nlohmann::json Arguments(const Slice& slice, const RankFacts& facts) {
  nlohmann::json args = PlaceOf(slice);
  if (slice.group != kNoGroup) args["group"] = facts.group(slice.group);
  if (slice.transfer >= 0) args["transfer"] = facts.transfer(slice.transfer);
  if (slice.category == SliceCategory::kTransfer) args["bytes"] = slice.bytes;
  const int peer = slice.peer >= 0 ? facts.peer(slice) : -1;
  if (peer < 0) return args;
  args["peer"] = peer;
  args["tag"] = slice.tag;
  args["sequence"] = slice.sequence;
  return args;
}

std::string QueueName(int queue, int lane) {
  std::string name = "kernels";
  if (queue == 1) name += ": input";
  if (queue > 1) name += fmt::format(": queue {}", queue);
  return InLane(name, lane);
}

std::string Title(const Kernel& kernel, const std::vector<std::string>& names) {
  if (kernel.kind == device::Activity::Kind::kCopy) return "copy";
  if (kernel.kind == device::Activity::Kind::kFill) return "fill";
  const bool known = kernel.name >= 0 && kernel.name < std::ssize(names);
  return known ? names[static_cast<std::size_t>(kernel.name)] : "kernel without a name";
}

nlohmann::json Arguments(const Kernel& kernel) {
  nlohmann::json args = PlaceOf(kernel);
  if (kernel.tagged) args["task"] = NameOf(kernel.task);
  if (kernel.graph != 0) args["graph"] = kernel.graph;
  if (kernel.kind != device::Activity::Kind::kKernel) args["bytes"] = kernel.bytes;
  return args;
}

template <typename Item>
nlohmann::json Complete(const RankFacts& facts, int thread, const Item& item,
                        SliceCategory category, const std::string& title,
                        const nlohmann::json& arguments) {
  const std::int64_t begin = Nanoseconds(facts.aligned(item.begin));
  const std::int64_t end = Nanoseconds(facts.aligned(item.end));
  return {{"ph", "X"},
          {"name", title},
          {"cat", NameOf(category)},
          {"pid", facts.rank},
          {"tid", thread},
          {"ts", Microseconds(begin)},
          {"dur", Microseconds(end - begin)},
          {"args", arguments}};
}

nlohmann::json Meta(const char* what, int rank, int thread, const char* key,
                    const nlohmann::json& value) {
  nlohmann::json event = {{"ph", "M"}, {"name", what}, {"pid", rank}, {"args", {{key, value}}}};
  if (thread > 0) event["tid"] = thread;
  return event;
}

}  // namespace

class TraceFile::Gzip {
 public:
  explicit Gzip(const std::string& path) : file_(path) {
    if (deflateInit2(&stream_, kLevel, Z_DEFLATED, kGzip, kMemory, Z_DEFAULT_STRATEGY) != Z_OK) {
      throw RunError("zlib: no memory for a trace file");
    }
  }
  ~Gzip() { deflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  void Write(const std::string& text) {
    text_ += text;
    if (text_.size() >= kBuffer) Deflate(Z_NO_FLUSH);
  }
  std::error_code Place() {
    Deflate(Z_FINISH);
    return file_.Place();
  }

 private:
  void Deflate(int flush) {
    std::array<char, kBuffer> out{};
    stream_.next_in = reinterpret_cast<Bytef*>(text_.data());
    stream_.avail_in = static_cast<uInt>(text_.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = static_cast<uInt>(out.size());
      deflate(&stream_, flush);
      file_.Write({out.data(), out.size() - stream_.avail_out});
    } while (stream_.avail_out == 0);
    text_.clear();
  }

  Replacement file_;
  z_stream stream_ = {};
  std::string text_;
};

TraceFile::TraceFile(const std::string& path) : gzip_(std::make_unique<Gzip>(path)) {
  gzip_->Write("{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [");
}

TraceFile::~TraceFile() = default;

void TraceFile::Write(const nlohmann::json& event) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  gzip_->Write((first_ ? "\n" : ",\n") + event.dump(-1, ' ', false, kReplace));
  first_ = false;
}

void TraceFile::Add(const RankFacts& facts, std::vector<Slice> slices) {
  // If two begin together, the longer one comes first: it encloses the other.
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return a.begin < b.begin || (a.begin == b.begin && a.end > b.end);
  });
  std::map<Thread, std::vector<Slice>> threads;
  for (const Slice& slice : slices) {
    const bool own = slice.queue == SliceQueue::kTransfers;
    threads[{slice.queue, own ? slice.group : kNoGroup}].push_back(slice);
  }
  Write(Meta("process_name", facts.rank, 0, "name",
             fmt::format("rank {} on {}", facts.rank, facts.host)));
  Write(Meta("process_sort_index", facts.rank, 0, "sort_index", facts.rank));
  for (const auto& [thread, mine] : threads) {
    const bool overlap = thread.queue == SliceQueue::kTransfers;
    const std::vector<int> lanes = overlap ? Lanes(mine) : std::vector<int>(mine.size(), 0);
    const int count = 1 + *std::max_element(lanes.begin(), lanes.end());
    for (int lane = 0; lane < count; ++lane) {
      const int number = NumberOf(thread, lane);
      WriteThread(facts.rank, number, NameOf(thread, lane, facts), number);
    }
    for (std::size_t i = 0; i < mine.size(); ++i) {
      Write(Complete(facts, NumberOf(thread, lanes[i]), mine[i], mine[i].category,
                     Title(mine[i], facts), Arguments(mine[i], facts)));
    }
  }
}

void TraceFile::WriteThread(int rank, int thread, const std::string& name, int place) {
  Write(Meta("thread_name", rank, thread, "name", name));
  Write(Meta("thread_sort_index", rank, thread, "sort_index", place));
}

void TraceFile::Add(const RankFacts& facts, std::vector<Kernel> kernels,
                    const std::vector<std::string>& names) {
  std::ranges::sort(kernels, [](const Kernel& a, const Kernel& b) {
    return std::tie(a.queue, a.begin, a.end) < std::tie(b.queue, b.begin, b.end);
  });
  for (auto first = kernels.begin(); first != kernels.end();) {
    const auto last = std::find_if(
        first, kernels.end(), [&](const Kernel& kernel) { return kernel.queue != first->queue; });
    // Kernels of graphs and of programmatic launches may overlap.
    std::vector<Slice> times;
    for (auto kernel = first; kernel != last; ++kernel) {
      times.push_back({.begin = kernel->begin, .end = kernel->end});
    }
    const std::vector<int> lanes = Lanes(times);
    const auto number = [&](int lane) {
      return kFirstKernelThread + first->queue * kLanes + std::min(lane, kLanes - 1);
    };
    const int count = 1 + *std::max_element(lanes.begin(), lanes.end());
    for (int lane = 0; lane < count; ++lane) {
      WriteThread(facts.rank, number(lane), QueueName(first->queue, lane), kKernelPlace);
    }
    for (auto kernel = first; kernel != last; ++kernel) {
      Write(Complete(facts, number(lanes[static_cast<std::size_t>(kernel - first)]), *kernel,
                     SliceCategory::kKernel, Title(*kernel, names), Arguments(*kernel)));
    }
    first = last;
  }
}

std::error_code TraceFile::Place(const nlohmann::json& other) {
  gzip_->Write("\n],\n\"otherData\": " + other.dump(1) + "}\n");
  return gzip_->Place();
}

}  // namespace trireme::device
