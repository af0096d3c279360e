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

// Room for any windows of the samples, so that it grows no more.
void Reserve(std::span<const Sample> samples, std::vector<std::int32_t>& packed) {
  std::size_t most = 0;
  for (const Sample& sample : samples) most += 3 + 3 * static_cast<std::size_t>(sample.targets + 1);
  packed.reserve(most);
}

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

void Unpack(const std::vector<std::int32_t>& packed, std::span<Window> windows) {
  const std::int32_t* from = packed.data();
  const auto take = [&from](auto& values, std::int32_t count) {
    values.assign(from, from + count);
    from += count;
  };
  for (Window& window : windows) {
    const std::int32_t ids = from[0], documents = from[1], counted = from[2];
    from += 3;
    window.documents.reserve(static_cast<std::size_t>(ids));
    take(window.ids, ids);
    take(window.documents, documents);
    take(window.counted, counted);
  }
}

}  // namespace

// Turns follow one another in a ring of slots: the one in use, and those that are read ahead.
class Windows::Reader {
 public:
  Reader(const Windows& windows, std::int64_t ahead)
      : windows_(windows), slots_(static_cast<std::size_t>(ahead) + 1) {
    for (std::int64_t i = 0; i < windows.corpus_.Size(); ++i) {
      const TokenFile& file = windows.corpus_.Of(static_cast<int>(i));
      files_.emplace_back(file.Path(), file.Layout());
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
      files_[static_cast<std::size_t>(sample.source)].Read(windows_.split_, sample.start,
                                                           sample.targets + 1, slot.windows[i]);
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

Windows::Windows(const Corpus& corpus, Split split, const comm::Communicator& replica, Turns turns)
    : corpus_(corpus), split_(split), replica_(replica), turns_(std::move(turns)) {}

Windows::~Windows() = default;

std::span<const Window> Windows::Take(std::int64_t turn) {
  if (!corpus_.First().Streams()) {
    turns_(turn, samples_);
    ReadWindows(corpus_, split_, samples_, windows_);
    return {windows_.data(), samples_.size()};
  }
  std::span<const Window> taken;
  const auto read = [&] {
    if (!replica_.IsRoot()) return;
    if (!reader_) reader_ = std::make_unique<Reader>(*this, corpus_.First().ReadAhead());
    taken = reader_->Take(turn);
  };
  replica_.Together(std::cref(read));  // takes nothing from the heap
  if (replica_.Size() == 1) return taken;
  turns_(turn, samples_);
  Reserve(samples_, packed_);
  std::int64_t numbers = 0;
  if (replica_.IsRoot()) {
    Pack(taken, packed_);
    numbers = std::ssize(packed_);
  }
  replica_.Broadcast(&numbers, sizeof numbers);
  packed_.resize(static_cast<std::size_t>(numbers));
  replica_.Broadcast(packed_.data(), numbers * static_cast<std::int64_t>(sizeof packed_.front()));
  if (replica_.IsRoot()) return taken;
  if (windows_.size() < samples_.size()) windows_.resize(samples_.size());
  const std::span<Window> room(windows_.data(), samples_.size());
  Unpack(packed_, room);
  return room;
}

void Windows::Change(const std::function<void()>& change) {
  if (reader_) reader_->Stop();
  change();
}

}  // namespace trireme::data
