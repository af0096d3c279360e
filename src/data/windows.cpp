// Windows: the thread that reads ahead, and the way of its windows to the other ranks.
#include "trireme/data/windows.hpp"

#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "trireme/data/batch.hpp"
#include "window_reader.hpp"

namespace trireme::data {

namespace {

// Signals are for the thread that computes.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_ = {};
};

constexpr std::int64_t kLengths = 3;  // of a window, in a message

// A list of numbers as one message: of each window its three lengths, then its ids, documents and
// mask.
void Pack(std::span<const Window> windows, std::vector<std::int32_t>& packed) {
  packed.clear();
  for (const Window& window : windows) {
    for (const std::size_t length :
         {window.ids.size(), window.documents.size(), window.counted.size()}) {
      packed.push_back(static_cast<std::int32_t>(length));
    }
    packed.insert(packed.end(), window.ids.begin(), window.ids.end());
    for (const std::int64_t begin : window.documents) {
      packed.push_back(static_cast<std::int32_t>(begin));
    }
    packed.insert(packed.end(), window.counted.begin(), window.counted.end());
  }
}

// documents: room for any number of them.
void Unpack(const std::vector<std::int32_t>& packed, std::span<Window> windows, bool documents) {
  const std::int32_t* from = packed.data();
  const auto take = [&from](auto& values, std::int32_t count) {
    values.reserve(static_cast<std::size_t>(count));
    values.assign(from, from + count);
    from += count;
  };
  for (Window& window : windows) {
    const std::int32_t ids = from[0], begins = from[1], counted = from[2];
    from += kLengths;
    if (documents) window.documents.reserve(static_cast<std::size_t>(ids));
    take(window.ids, ids);
    take(window.documents, begins);
    take(window.counted, counted);
  }
}

}  // namespace

// Turns follow one another in a ring of slots: the one in use, and those that are read ahead.
class Windows::Reader {
 public:
  Reader(const Windows& windows, std::int64_t ahead)
      : windows_(windows), slots_(static_cast<std::size_t>(ahead) + 1) {
    files_.reserve(static_cast<std::size_t>(windows.corpus_.Size()));
    for (std::int64_t i = 0; i < windows.corpus_.Size(); ++i) {
      const TokenFile& file = windows.corpus_.Of(static_cast<int>(i));
      files_.emplace_back(file.Layout(), file.Opened(), windows.split_, windows.documents_);
    }
  }
  ~Reader() { Stop(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::span<const Window> Take(std::int64_t turn) {
    if (!thread_.joinable() || turn != in_use_ + 1) Start(turn);
    std::unique_lock lock(mutex_);
    in_use_ = turn;
    changed_.notify_all();
    changed_.wait(lock, [&] { return read_ > turn || failure_; });
    if (read_ <= turn) std::rethrow_exception(failure_);
    const Slot& slot = SlotOf(turn);
    return {slot.windows.data(), slot.samples.size()};
  }

  void Stop() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  struct Slot {
    std::vector<Sample> samples;
    std::vector<Window> windows;  // there may be more than samples
  };

  Slot& SlotOf(std::int64_t turn) { return slots_[static_cast<std::size_t>(turn) % slots_.size()]; }

  void Start(std::int64_t turn) {
    Stop();
    stop_ = false;
    failure_ = nullptr;
    read_ = turn;
    in_use_ = turn - 1;
    const BlockedSignals blocked;
    thread_ = std::thread([this] { Run(); });
  }

  // The thread's: reads turn after turn until it is told to stop, or there is none.
  void Run() {
    for (std::int64_t turn = read_;; ++turn) {
      {
        std::unique_lock lock(mutex_);
        // Before its first turn is taken nothing is in use.
        changed_.wait(lock, [&] { return stop_ || turn - in_use_ < std::ssize(slots_); });
        if (stop_) return;
      }
      std::exception_ptr failure;
      bool more = false;
      try {
        more = ReadTurn(turn);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (more) {
        read_ = turn + 1;
      } else {
        failure_ = failure ? failure : std::make_exception_ptr(std::logic_error("no such turn"));
      }
      changed_.notify_all();
      if (!more) return;
    }
  }

  bool ReadTurn(std::int64_t turn) {
    Slot& slot = SlotOf(turn);
    if (!windows_.turns_(turn, slot.samples)) return false;
    if (slot.windows.size() < slot.samples.size()) slot.windows.resize(slot.samples.size());
    for (std::size_t i = 0; i < slot.samples.size(); ++i) {
      const Sample& sample = slot.samples[i];
      files_[static_cast<std::size_t>(sample.source)].Read(sample.start, sample.targets + 1,
                                                           slot.windows[i]);
    }
    for (const WindowReader& file : files_) file.RequireUnchanged();
    return true;
  }

  const Windows& windows_;
  std::vector<WindowReader> files_;
  std::vector<Slot> slots_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex while the thread runs.
  std::int64_t in_use_ = -1;  // turn that was taken last
  std::int64_t read_ = 0;     // turns before this one are read
  std::exception_ptr failure_;
  bool stop_ = false;
};

Windows::Windows(const Corpus& corpus, Split split, const comm::Communicator& replica, Turns turns,
                 bool documents)
    : corpus_(corpus),
      split_(split),
      replica_(replica),
      turns_(std::move(turns)),
      documents_(documents && corpus.HasDocuments(split)) {}

Windows::~Windows() = default;

std::span<const Window> Windows::Read(std::int64_t turn) {
  try {
    if (!reader_) reader_ = std::make_unique<Reader>(*this, corpus_.First().ReadAhead());
    return reader_->Take(turn);
  } catch (...) {
    failure_ = std::current_exception();
    failed_ = true;
    return {};
  }
}

// Numbers of a message with any windows of the samples.
std::size_t Windows::PackedSize(std::span<const Sample> samples) const {
  const std::int64_t a_token = 1 + (documents_ ? 1 : 0) + (corpus_.HasMask(split_) ? 1 : 0);
  std::int64_t most = 0;
  for (const Sample& sample : samples) most += kLengths + a_token * (sample.targets + 1);
  return static_cast<std::size_t>(most);
}

std::span<const Window> Windows::Take(std::int64_t turn) {
  if (!corpus_.First().Streams()) {
    turns_(turn, samples_);
    ReadWindows(corpus_, split_, samples_, windows_);
    return {windows_.data(), samples_.size()};
  }
  if (failed_) return {};
  std::span<const Window> taken;
  if (replica_.IsRoot()) taken = Read(turn);
  if (replica_.Size() == 1) return taken;
  turns_(turn, samples_);
  packed_.reserve(PackedSize(samples_));
  std::int64_t numbers = -1;  // no message
  if (replica_.IsRoot() && !failed_) {
    Pack(taken, packed_);
    numbers = std::ssize(packed_);
  }
  replica_.Broadcast(&numbers, sizeof numbers);
  failed_ = numbers < 0;
  if (failed_) return {};
  packed_.resize(static_cast<std::size_t>(numbers));
  replica_.Broadcast(packed_.data(), numbers * static_cast<std::int64_t>(sizeof packed_.front()));
  if (replica_.IsRoot()) return taken;
  if (windows_.size() < samples_.size()) windows_.resize(samples_.size());
  const std::span<Window> room(windows_.data(), samples_.size());
  Unpack(packed_, room, documents_);
  return room;
}

void Windows::Change(const std::function<void()>& change) {
  if (reader_) reader_->Stop();
  change();
}

std::int64_t StreamBytes(const StreamSizes& sizes) {
  constexpr std::int64_t kNumber = sizeof(std::int32_t);
  const std::int64_t documents = sizes.documents ? 1 : 0, masks = sizes.masks ? 1 : 0;
  const std::int64_t window =
      std::int64_t{sizeof(Window)} +
      sizes.tokens * (kNumber + documents * std::int64_t{sizeof(std::int64_t)} + masks);
  const std::int64_t samples = sizes.windows * std::int64_t{sizeof(Sample)};
  std::int64_t bytes = sizes.windows * window + samples;
  if (sizes.reads) {
    bytes *= sizes.read_ahead + 1;
    bytes += sizes.files * (sizes.tokens * kNumber + documents * DocumentReader::kBytes);
  }
  if (!sizes.passes) return bytes;
  const std::int64_t message =
      sizes.windows * (kLengths + sizes.tokens * (1 + documents + masks)) * kNumber;
  return bytes + message + (sizes.reads ? samples : 0);
}

}  // namespace trireme::data
