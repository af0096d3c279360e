// Captures streams into graphs and runs graphs.
#include "capture.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "settings.hpp"
#include "stream.hpp"

namespace emulator {
namespace {

std::vector<std::shared_ptr<Capture>>& Active() {
  static std::vector<std::shared_ptr<Capture>> active;
  return active;
}

void AddAll(std::vector<int>& set, const std::vector<int>& more) {
  for (const int node : more) {
    if (std::find(set.begin(), set.end(), node) == set.end()) set.push_back(node);
  }
}

// Whether everything that was recorded comes before the end of the stream where it began.
bool Joined(const Capture& capture) {
  std::vector<char> reached(capture.nodes.size(), 0);
  for (const int node : capture.origin->tail) reached[static_cast<std::size_t>(node)] = 1;
  for (std::size_t i = capture.nodes.size(); i-- > 0;) {
    if (reached[i] == 0) return false;
    for (const int node : capture.nodes[i].behind) reached[static_cast<std::size_t>(node)] = 1;
  }
  return true;
}

void Detach(const std::shared_ptr<Capture>& capture) {
  for (CUstream_st* member : capture->streams) {
    member->capture = nullptr;
    member->tail.clear();
  }
  std::erase(Active(), capture);
}

// The state of one run: which nodes may run, and which have been called but are not yet done.
class Run {
 public:
  explicit Run(std::shared_ptr<const Nodes> nodes) : nodes_(std::move(nodes)) {}

  // Runs what can be run; true: all is done.
  bool operator()() {
    if (!begun_) Begin();
    while (RunOne()) {
    }
    return left_ == 0;
  }

 private:
  struct Started {
    int node;
    std::function<bool()> step;
  };

  void Begin() {
    begun_ = true;
    left_ = nodes_->size();
    missing_.resize(left_);
    followers_.resize(left_);
    for (std::size_t i = 0; i < left_; ++i) {
      const auto& behind = (*nodes_)[i].behind;
      missing_[i] = behind.size();
      for (const int node : behind) followers_[static_cast<std::size_t>(node)].push_back(i);
      if (behind.empty()) Start(i);
    }
  }

  void Start(std::size_t node) { open_.push_back({static_cast<int>(node), (*nodes_)[node].step}); }

  // Any open node that can be finished; false: none.
  bool RunOne() {
    if (open_.empty()) return false;
    const auto first = TheDice().Below(static_cast<std::uint32_t>(open_.size()));
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const auto place = (first + i) % open_.size();
      if (!open_[place].step()) continue;
      const int done = open_[place].node;
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(place));
      --left_;
      for (const std::size_t next : followers_[static_cast<std::size_t>(done)]) {
        if (--missing_[next] == 0) Start(next);
      }
      return true;
    }
    return false;
  }

  std::shared_ptr<const Nodes> nodes_;
  bool begun_ = false;
  std::size_t left_ = 0;
  std::vector<std::size_t> missing_;
  std::vector<std::vector<std::size_t>> followers_;
  std::vector<Started> open_;
};

}  // namespace

bool CaptureForbids() {
  return std::any_of(Active().begin(), Active().end(), [](const auto& capture) {
    return capture->mode != cudaStreamCaptureModeRelaxed;
  });
}

cudaError_t SpoilCaptures(const char* call) {
  for (const auto& capture : Active()) {
    if (capture->mode != cudaStreamCaptureModeRelaxed) capture->invalid = true;
  }
  return Refuse(cudaErrorStreamCaptureUnsupported,
                std::string(call) + " while a stream is being captured");
}

cudaError_t BeginCapture(CUstream_st* stream, cudaStreamCaptureMode mode) {
  if (stream->capture != nullptr) {
    return Refuse(cudaErrorIllegalState, "the stream is being captured already");
  }
  static std::uint64_t captures = 0;
  auto capture = std::make_shared<Capture>();
  capture->number = ++captures;
  capture->origin = stream;
  capture->mode = mode;
  capture->streams = {stream};
  Active().push_back(capture);
  stream->capture = std::move(capture);
  stream->tail.clear();
  return cudaSuccess;
}

std::shared_ptr<const Nodes> EndCapture(CUstream_st* stream, cudaError_t& error) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) {
    error = Refuse(cudaErrorStreamCaptureUnmatched, "no capture began in this stream");
    return nullptr;
  }
  error = cudaSuccess;
  if (capture->invalid) {
    error = Refuse(cudaErrorStreamCaptureInvalidated, "an earlier call spoilt the capture");
  } else if (!Joined(*capture)) {
    error = Refuse(cudaErrorStreamCaptureUnjoined,
                   "a stream that took part was not joined to the one where the capture began");
  }
  Detach(capture);
  if (error != cudaSuccess) return nullptr;
  return std::make_shared<const Nodes>(std::move(capture->nodes));
}

void DropCapture(CUstream_st* stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin == stream) {
    Detach(capture);
    return;
  }
  capture->invalid = true;
  std::erase(capture->streams, stream);
  stream->capture = nullptr;
}

cudaError_t RecordNode(CUstream_st* stream, std::function<bool()> step) {
  Capture& capture = *stream->capture;
  if (capture.invalid) {
    return Refuse(cudaErrorStreamCaptureInvalidated, "an earlier call spoilt the capture");
  }
  capture.nodes.push_back({std::move(step), stream->tail});
  stream->tail = {static_cast<int>(capture.nodes.size()) - 1};
  return cudaSuccess;
}

void RecordEvent(CUstream_st* stream, CUevent_st* event) {
  event->captured = true;
  event->capture = stream->capture;
  event->nodes = stream->tail;
}

cudaError_t WaitInCapture(CUstream_st* stream, CUevent_st* event) {
  const std::shared_ptr<Capture> of_event = event->captured ? event->capture.lock() : nullptr;
  const bool active = of_event != nullptr &&
                      std::find(Active().begin(), Active().end(), of_event) != Active().end();
  if (!active) {
    if (stream->capture != nullptr) stream->capture->invalid = true;
    return Refuse(cudaErrorStreamCaptureIsolation,
                  stream->capture != nullptr
                      ? "a stream that is being captured waits for an event from outside"
                      : "a stream waits for an event of a capture that is over");
  }
  if (stream->capture == nullptr) {
    stream->capture = of_event;
    stream->tail.clear();
    of_event->streams.push_back(stream);
  } else if (stream->capture != of_event) {
    stream->capture->invalid = of_event->invalid = true;
    return Refuse(cudaErrorStreamCaptureMerge, "an event leads from one capture to another");
  }
  AddAll(stream->tail, event->nodes);
  return cudaSuccess;
}

std::function<bool()> RunOf(std::shared_ptr<const Nodes> nodes) { return Run(std::move(nodes)); }

}  // namespace emulator
