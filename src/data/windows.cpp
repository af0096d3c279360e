// Windows: a thread that reads ahead on one rank, and the broadcast of its windows to the replica.
// FillEntry puts windows side by side and applies document and loss masks.
#include "trireme/data/windows.hpp"

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "hdf5.hpp"
#include "token_arrays.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::data {

// Finds where documents begin within a range of tokens, from a sorted list that stays on disk.
// Interpolation search: each block that is read adds a known place to interpolate between.
class DocumentIndex {
 public:
  // Allocates all its memory. The array and the file must outlive the index.
  DocumentIndex(const StoredArray& array, const TokenArrays& file)
      : array_(array), file_(file), buffer_(static_cast<std::size_t>(kBlock + 1)) {
    known_.reserve(static_cast<std::size_t>(kMostKnown));
  }

  // Appends where documents begin within tokens [begin, end), as offsets from `begin`. Throws as
  // TokenArrays::RequireGood does for what it reads.
  void Find(std::int64_t begin, std::int64_t end, std::vector<std::int64_t>& found) {
    for (std::int64_t at = FirstFrom(begin); at < array_.count; ++at) {
      if (!Holds(at)) Hold(at, std::min(at + kBlock, array_.count));
      if (Held(at) >= end) return;
      found.push_back(Held(at) - begin);
    }
  }

  static constexpr std::int64_t kBlock = 2047;  // elements per read; with the one before, 16 KiB
  static constexpr std::int64_t kMostKnown = 4096;  // upper limit of known places
  static constexpr std::int64_t kBytes = (kBlock + 1) * 8 + kMostKnown * 16;  // memory of a reader

 private:
  // A place in the list: document number `at` begins at token `token`.
  struct Place {
    std::int64_t at = 0, token = 0;
  };

  // Number of the first document that begins at `token` or later.
  std::int64_t FirstFrom(std::int64_t token) {
    const auto within = [&](std::int64_t least, std::int64_t last) {
      return held_end_ > held_begin_ && (held_begin_ == least || Held(held_begin_) < token) &&
             (held_end_ == last || Held(held_end_ - 1) >= token);
    };
    if (within(0, array_.count)) return FirstHeldFrom(token);
    Place low{-1, -1}, high{array_.count, static_cast<std::int64_t>(array_.limit)};
    const auto next = std::ranges::lower_bound(known_, token, {}, &Place::token);
    if (next != known_.end()) high = *next;
    if (next != known_.begin()) low = *std::prev(next);
    // Bisecting at every third read bounds the number of reads, however uneven the documents are.
    constexpr int kEvery = 3;
    for (int read = 1; high.at - low.at > 1; ++read) {
      HoldBetween(low, high, token, read % kEvery == 0);
      if (within(low.at + 1, high.at)) return FirstHeldFrom(token);
      if (Held(held_begin_) >= token) {
        high = {held_begin_, Held(held_begin_)};
      } else {
        low = {held_end_ - 1, Held(held_end_ - 1)};
      }
    }
    return high.at;
  }

  // The same, if it is within the block held in memory.
  std::int64_t FirstHeldFrom(std::int64_t token) const {
    const auto first = buffer_.begin() + 1;
    const auto last = first + static_cast<std::ptrdiff_t>(held_end_ - held_begin_);
    return held_begin_ + (std::lower_bound(first, last, token) - first);
  }

  // Reads a block strictly between two known places: around the place where interpolation expects
  // `token` or, if `halve`, around the middle.
  void HoldBetween(const Place& low, const Place& high, std::int64_t token, bool halve) {
    const double part = halve ? 0.5
                              : static_cast<double>(token - low.token) /
                                    static_cast<double>(high.token - low.token);
    const auto guess =
        low.at + static_cast<std::int64_t>(part * static_cast<double>(high.at - low.at));
    // Most of the block lies after the guess, because the window's documents follow.
    const std::int64_t first = low.at + 1, last = std::max(first, high.at - kBlock);
    const std::int64_t begin = std::clamp(guess - kBlock / 4, first, last);
    Hold(begin, std::min(begin + kBlock, high.at));
    // Each block ascends, as was checked, but in a damaged file two blocks may contradict each
    // other.
    const Place front{held_begin_, Held(held_begin_)}, back{held_end_ - 1, Held(held_end_ - 1)};
    if (front.token <= low.token || back.token >= high.token) {
      const Place& bad = front.token <= low.token ? front : back;
      held_end_ = held_begin_;
      file_.RequireUnchanged();
      const BadValue value{bad.at, static_cast<std::uint64_t>(bad.token)};
      throw RunError(BadElement(file_.Path(), array_, value).what());
    }
  }

  void Hold(std::int64_t begin, std::int64_t end) {
    held_begin_ = held_end_ = begin;
    const std::int64_t before = std::min<std::int64_t>(begin, 1);
    file_.Read(array_, begin - before, end, buffer_.data() + (1 - before));
    file_.RequireGood(
        array_, {buffer_.data() + 1, begin, end, static_cast<std::uint64_t>(buffer_.front())});
    held_end_ = end;
    Know({begin, Held(begin)});
  }

  void Know(const Place& place) {
    if (std::ssize(known_) == kMostKnown) return;
    const std::int64_t gap = std::max(kBlock / 2, CeilDivide(array_.count, kMostKnown));
    const auto next = std::ranges::lower_bound(known_, place.at, {}, &Place::at);
    if (next != known_.end() && next->at - place.at < gap) return;
    if (next != known_.begin() && place.at - std::prev(next)->at < gap) return;
    known_.insert(next, place);
  }

  bool Holds(std::int64_t at) const { return at >= held_begin_ && at < held_end_; }
  std::int64_t Held(std::int64_t at) const {
    return buffer_[static_cast<std::size_t>(at - held_begin_ + 1)];
  }

  const StoredArray& array_;
  const TokenArrays& file_;
  std::vector<std::int64_t> buffer_;  // the block that is held, preceded by the element before it
  std::int64_t held_begin_ = 0, held_end_ = 0;
  std::vector<Place> known_;  // ascending, with minimum distances
};

namespace {

// Resizes; allocates exactly for the largest size so far, with no spare capacity.
template <typename T>
void Resize(std::vector<T>& values, std::int64_t count) {
  values.reserve(static_cast<std::size_t>(count));
  values.resize(static_cast<std::size_t>(count));
}

// Blocks all signals while a thread is started, so that only the computing thread gets them.
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

constexpr std::int64_t kLengths = 3;  // numbers that precede each window in a message

// Makes one message: for each window its three lengths, then its ids, documents and mask.
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

// documents: reserve memory for as many documents as a window has tokens.
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

TokenReader::TokenReader(const TokenFile& file, Split split, bool documents)
    : file_(file), split_(split), with_documents_(documents) {
  if (file.Keeps(split)) return;
  if (!file.OpenedHolds(split)) own_ = std::make_unique<TokenArrays>(file.Path(), file.Layout());
  arrays_ = own_ ? own_.get() : &file.Opened();
  if (documents && file.HasDocuments(split)) {
    documents_ =
        std::make_unique<DocumentIndex>(file.Layout().Of(split, Array::kDocuments), *arrays_);
  }
}

TokenReader::~TokenReader() = default;
TokenReader::TokenReader(TokenReader&&) noexcept = default;

Elements TokenReader::Load(Array array, std::int64_t begin, std::int64_t end) {
  const StoredArray& stored = file_.Layout().Of(split_, array);
  const std::int64_t bytes = (end - begin) * stored.width;
  if (std::ssize(buffer_) < bytes) Resize(buffer_, bytes);
  const Elements elements = arrays_->ReadElements(stored, begin, end, buffer_.data());
  arrays_->RequireGood(stored, elements);
  return elements;
}

WindowView TokenReader::Read(std::int64_t begin, std::int64_t count, Window& window) {
  if (arrays_ == nullptr) return file_.View(split_, begin, count, with_documents_);
  Resize(window.ids, count);
  window.documents.clear();
  window.counted.clear();
  const std::int64_t end = begin + count;
  const Elements ids = Load(Array::kTokens, begin, end);
  if (file_.Layout().Of(split_, Array::kTokens).width == 2) {
    std::ranges::copy(As<std::uint16_t>(ids), window.ids.begin());
  } else {
    std::ranges::copy(As<std::int32_t>(ids), window.ids.begin());
  }
  if (documents_) {
    window.documents.reserve(static_cast<std::size_t>(count));
    documents_->Find(begin, end, window.documents);
  }
  if (file_.HasMask(split_)) {
    Resize(window.counted, count);
    std::ranges::copy(As<std::uint8_t>(Load(Array::kMask, begin, end)), window.counted.begin());
  }
  return window;
}

void TokenReader::ReadBeginnings(std::int64_t first, std::span<std::int64_t> begins) const {
  if (begins.empty()) return;
  if (arrays_ == nullptr) {
    std::copy_n(file_.Beginnings(split_).begin() + first, begins.size(), begins.begin());
    return;
  }
  const StoredArray& array = file_.Layout().Of(split_, Array::kDocuments);
  arrays_->RequireGood(
      array, arrays_->ReadElements(array, first, first + std::ssize(begins), begins.data()));
}

std::vector<std::int64_t> TokenReader::Documents() const {
  std::vector<std::int64_t> documents(static_cast<std::size_t>(file_.Documents(split_)));
  ReadBeginnings(0, documents);
  return documents;
}

void TokenReader::RequireUnchanged() const {
  if (arrays_ != nullptr) arrays_->RequireUnchanged();
}

// The ring of slots that the thread fills: one holds the turn in use, the others turns read ahead.
class Windows::Reader {
 public:
  Reader(const Windows& windows, std::int64_t ahead)
      : windows_(windows), slots_(static_cast<std::size_t>(ahead) + 1) {
    files_.reserve(static_cast<std::size_t>(windows.corpus_.Size()));
    for (std::int64_t i = 0; i < windows.corpus_.Size(); ++i) {
      files_.emplace_back(windows.corpus_.Of(static_cast<int>(i)), windows.split_,
                          windows.documents_);
    }
  }
  ~Reader() { Stop(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Turn Take(std::int64_t turn) {
    if (!thread_.joinable() || turn != in_use_ + 1) Start(turn);
    std::unique_lock lock(mutex_);
    in_use_ = turn;
    changed_.notify_all();
    changed_.wait(lock, [&] { return read_ > turn || failure_; });
    if (read_ <= turn) std::rethrow_exception(failure_);
    const Slot& slot = SlotOf(turn);
    return {slot.samples, slot.windows};
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
    std::vector<Window> windows;  // may be longer than samples
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

  // Body of the thread: reads turn after turn until it is told to stop or no turn is left.
  void Run() {
    for (std::int64_t turn = read_;; ++turn) {
      {
        std::unique_lock lock(mutex_);
        // The slot is free once its old turn, turn - slots, lies before the turn in use.
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
    for (const TokenReader& file : files_) file.RequireUnchanged();
    return true;
  }

  const Windows& windows_;
  std::vector<TokenReader> files_;
  std::vector<Slot> slots_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex while the thread runs.
  std::int64_t in_use_ = -1;  // the turn taken last
  std::int64_t read_ = 0;     // turns below this one are ready
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

Turn Windows::Read(std::int64_t turn) {
  try {
    if (!reader_) reader_ = std::make_unique<Reader>(*this, corpus_.First().ReadAhead());
    return reader_->Take(turn);
  } catch (...) {
    failure_ = std::current_exception();
    failed_ = true;
    return {};
  }
}

Turn Windows::Take(std::int64_t turn) {
  if (!corpus_.First().Streams()) {
    turns_(turn, samples_);
    return {samples_, corpus_, split_, documents_};
  }
  if (failed_) return {};
  Turn taken;
  if (replica_.IsRoot()) taken = Read(turn);
  if (replica_.Size() == 1) return taken;
  turns_(turn, samples_);
  const std::int64_t a_token = 1 + (documents_ ? 1 : 0) + (corpus_.HasMask(split_) ? 1 : 0);
  std::int64_t most = 0;  // numbers in a message with these windows, at most
  for (const Sample& sample : samples_) most += kLengths + a_token * (sample.targets + 1);
  packed_.reserve(static_cast<std::size_t>(most));
  std::int64_t numbers = -1;  // no message: reading failed
  if (replica_.IsRoot() && !failed_) {
    Pack(taken.Buffer(), packed_);
    numbers = std::ssize(packed_);
  }
  replica_.Broadcast(&numbers, sizeof numbers);
  failed_ = numbers < 0;
  if (failed_) return {};
  packed_.resize(static_cast<std::size_t>(numbers));
  replica_.Broadcast(packed_.data(), numbers * static_cast<std::int64_t>(sizeof packed_.front()));
  if (replica_.IsRoot()) return taken;
  if (windows_.size() < samples_.size()) windows_.resize(samples_.size());
  Unpack(packed_, std::span(windows_).first(samples_.size()), documents_);
  return {samples_, windows_};
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
    bytes += sizes.files * (sizes.tokens * kNumber + documents * DocumentIndex::kBytes);
  }
  if (!sizes.passes) return bytes;
  const std::int64_t message =
      sizes.windows * (kLengths + sizes.tokens * (1 + documents + masks)) * kNumber;
  return bytes + message + (sizes.reads ? samples : 0);
}

bool HasTarget(const TokenFile& file, Split split, bool document_mask) {
  if (!file.HasMask(split) && !document_mask) return true;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;  // tokens
  TokenReader reader(file, split, document_mask);
  Window window;
  const std::int64_t size = reader.Size();
  bool found = false;
  for (std::int64_t begin = 1; begin < size && !found; begin += kPiece) {  // token 0 is no target
    const WindowView piece = reader.Read(begin, std::min(kPiece, size - begin), window);
    reader.RequireUnchanged();
    VisitTokens(piece, document_mask, [&](std::int64_t, bool, bool counts) {
      found = counts;
      return !found;
    });
  }
  return found;
}

namespace {

// Marks a target as not counting.
void Mask(Entry& batch, std::int64_t row) {
  std::int32_t& target = batch.targets[static_cast<std::size_t>(row)];
  if (target == kMasked) return;
  target = kMasked;
  --batch.valid;
}

// Masks targets [part.begin, part.end) of a window; `row` is the index in batch.targets of the
// first. The target of position p is token p + 1.
void MaskTargets(const WindowView& window, const Part& part, bool document_mask, std::int64_t row,
                 Entry& batch) {
  const std::int64_t first = part.begin + 1, last = part.end + 1;
  if (!window.counted.empty()) {
    for (std::int64_t i = first; i < last; ++i) {
      if (window.counted[static_cast<std::size_t>(i)] == 0) Mask(batch, row + i - first);
    }
  }
  if (!document_mask) return;
  const std::span<const std::int64_t> documents = window.documents;
  auto next = std::lower_bound(documents.begin(), documents.end(), window.origin + first);
  for (; next != documents.end() && *next - window.origin < last; ++next) {
    Mask(batch, row + *next - window.origin - first);
  }
}

// Number of (query, key) pairs for positions [from, to) of a document that begins at `begin`.
std::int64_t KeysOf(std::int64_t begin, std::int64_t from, std::int64_t to) {
  return from >= to ? 0 : (to - from) * (from - begin + 1 + to - begin) / 2;
}

// Fills `begins`, one per position of `part`, including padding after the window's `count` targets.
// Returns the number of (query, key) pairs before the padding.
std::int64_t FillBegins(const WindowView& window, const Part& part, std::int64_t count,
                        std::int32_t* begins) {
  const std::span<const std::int64_t> documents = window.documents;
  const std::int64_t origin = window.origin;
  std::int64_t keys = 0;
  auto next = std::upper_bound(documents.begin(), documents.end(), origin + part.begin);
  std::int64_t begin = next == documents.begin() ? 0 : *std::prev(next) - origin;
  for (std::int64_t at = part.begin; at < part.end;) {
    const bool more = next != documents.end() && *next - origin < part.end;
    const std::int64_t end = more ? *next - origin : part.end;
    begins = std::fill_n(begins, end - at, static_cast<std::int32_t>(begin));
    keys += KeysOf(begin, at, std::min(end, count));
    if (more) begin = *next++ - origin;
    at = end;
  }
  return keys;
}

// Fills inputs, targets and begins from index `row` on with the positions `part` of a window that
// has `count` targets.
void FillPart(const WindowView& window, std::int64_t count, const Part& part, std::int64_t row,
              Entry& batch) {
  const bool document_mask = !batch.begins.empty();
  if (document_mask) {
    batch.visible_keys += FillBegins(window, part, count, batch.begins.data() + row);
  }
  const std::int64_t end = std::min(part.end, count);
  if (part.begin >= end) return;
  window.CopyIds(part.begin, end, batch.inputs.data() + row);
  window.CopyIds(part.begin + 1, end + 1, batch.targets.data() + row);
  batch.valid += end - part.begin;
  MaskTargets(window, {part.begin, end}, document_mask, row, batch);
}

// Sizes the entry for its positions and fills it with padding.
void Clear(std::int64_t sequences, std::int64_t length, const Positions& positions, Entry& batch) {
  const auto within = [&](const Part& part) {
    return Part{std::min(part.begin, length), std::min(part.end, length)};
  };
  batch.positions = {within(positions.early), within(positions.late)};
  batch.sequences = sequences;
  batch.length = batch.positions.Count();
  batch.valid = batch.visible_keys = 0;
  const auto cells = static_cast<std::size_t>(batch.sequences * batch.length);
  batch.inputs.assign(cells, 0);
  batch.targets.assign(cells, kMasked);
  batch.ordinals.clear();
  batch.begins.clear();
}

// Adds a window to the entry, after those added before.
void Add(const WindowView& window, const Sample& sample, Entry& batch) {
  if (window.size <= sample.targets) {
    throw std::logic_error("a window has fewer tokens than its sample");
  }
  std::int64_t row = std::ssize(batch.ordinals) * batch.length;
  batch.ordinals.push_back(static_cast<std::uint64_t>(sample.ordinal));
  for (const Part& part : {batch.positions.early, batch.positions.late}) {
    FillPart(window, sample.targets, part, row, batch);
    row += part.Size();
  }
}

}  // namespace

void FillEntry(const Turn& turn, std::int64_t length, Entry& batch, const Positions& positions,
               bool document_mask) {
  const std::span<const Sample> samples = turn.Samples();
  Clear(std::ssize(samples), length, positions, batch);
  if (document_mask) batch.begins.resize(batch.inputs.size());
  for (std::size_t i = 0; i < samples.size(); ++i) Add(turn[i], samples[i], batch);
}

}  // namespace trireme::data
