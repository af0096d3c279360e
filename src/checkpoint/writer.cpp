// Writer: who copies, who writes, and the three parts of a checkpoint: prepare, write, publish.
#include "trireme/checkpoint/writer.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <numeric>

#include "folder.hpp"
#include "safetensors.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/in_threads.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/shared_memory.hpp"
#include "trireme/device/memory.hpp"
#include "worker.hpp"

namespace trireme::checkpoint {

namespace {

constexpr std::int64_t kRoundBytes = std::int64_t{32} << 20;  // enough for full disk speed
constexpr std::int64_t kGroupBytes = std::int64_t{64} << 20;  // flushed and read back together
constexpr int kSlots = 2;              // one is filled while the other is written
constexpr double kSlowSeconds = 0.02;  // shorter writes say nothing about waiting

// Collective. The group of neighbouring ranks on a node that share a writer, the group's first
// rank. writers: groups per node; 0: one per rank.
comm::Communicator GroupOf(const comm::Communicator& world, int writers) {
  const comm::Communicator node = world.SplitNode();
  const int groups = writers == 0 ? node.Size() : std::min(writers, node.Size());
  return node.Split(node.Rank() * groups / node.Size(), node.Rank(), "writer");
}

}  // namespace

// Memory that a writer shares with the ranks whose bytes it writes. Each rank copies its part in;
// the writer's thread reads everything.
class GroupMemory {
 public:
  // Collective over `group`, which must lie on one node. bytes: the same on all its ranks. Throws
  // if a group of one cannot allocate; larger groups report it in Error().
  GroupMemory(const comm::Communicator& group, std::int64_t bytes) {
    if (group.Size() > 1) {
      shared_.emplace(group, bytes);
    } else {
      own_ = device::AllocateZeroed(bytes);
    }
  }

  int Error() const { return shared_ ? shared_->Error() : 0; }  // see comm::SharedMemory
  std::byte* Data() const {
    return shared_ ? shared_->Data() : static_cast<std::byte*>(own_.get());
  }

 private:
  std::optional<comm::SharedMemory> shared_;
  device::Buffer own_;  // for a group of one
};

// The hashes of all writers' segments, gathered on rank 0, which writes them down.
class GatheredSums {
 public:
  // Collective. Allocates 24 bytes per segment and 8 per rank on rank 0. plans: of this rank's
  // group. gives: this rank reports them for its group. World and plans must outlive this object.
  GatheredSums(const comm::Communicator& world, const std::vector<WritePlan>& plans, bool gives)
      : world_(world), plans_(plans), gives_(gives) {
    std::vector<std::int64_t> segments;
    for (const WritePlan& plan : plans) {
      segments.push_back(world.Sum(gives ? std::ssize(plan.segments) : std::int64_t{0}));
    }
    world.Together([&] {
      if (!world.IsRoot()) return;
      for (std::size_t file = 0; file < plans.size(); ++file) {
        files_.push_back({plans[file].layout.bytes, {}});
        files_.back().segments.resize(static_cast<std::size_t>(segments[file]));
      }
      counts_.resize(static_cast<std::size_t>(world.Size()));
      starts_.resize(counts_.size());
    });
  }

  // Collective, once the plans have their hashes. Allocates nothing.
  void Gather() {
    const comm::Recorded recorded(world_, comm::Call::kExchange);
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(sizeof(Segment), MPI_BYTE, &type);
    MPI_Type_commit(&type);
    for (std::size_t file = 0; file < plans_.size(); ++file) {
      const std::vector<Segment>& mine = plans_[file].segments;
      const int count = gives_ ? static_cast<int>(mine.size()) : 0;
      MPI_Gather(&count, 1, MPI_INT, counts_.data(), 1, MPI_INT, 0, world_.Handle());
      std::exclusive_scan(counts_.begin(), counts_.end(), starts_.begin(), 0);
      Segment* const all = world_.IsRoot() ? files_[file].segments.data() : nullptr;
      MPI_Gatherv(mine.data(), count, type, all, counts_.data(), starts_.data(), type, 0,
                  world_.Handle());
      if (world_.IsRoot()) std::ranges::sort(files_[file].segments, {}, &Segment::offset);
    }
    MPI_Type_free(&type);
  }

  // On rank 0: the hashes of the whole files, in the plans' order.
  const std::vector<FileSums>& Files() const { return files_; }
  // Bytes that this rank needs for lists of segments and the text of checksums.json: on rank 0 for
  // the segments of the whole files, elsewhere for those of the plans.
  std::int64_t MemoryBytes() const {
    constexpr std::int64_t kListed = 512;  // bytes per segment
    std::int64_t count = 0;
    for (std::size_t file = 0; file < plans_.size(); ++file) {
      count += std::ssize(world_.IsRoot() ? files_[file].segments : plans_[file].segments);
    }
    return kListed * count;
  }

 private:
  const comm::Communicator& world_;
  const std::vector<WritePlan>& plans_;
  const bool gives_;
  std::vector<FileSums> files_;       // [plans] on rank 0
  std::vector<int> counts_, starts_;  // [ranks] on rank 0
};

// A thread that flushes and reads back what a writer has written while the writer continues.
class Checker {
 public:
  // plans: of the files. cores: as in Worker.
  Checker(std::vector<int> cores, const std::vector<WritePlan>& plans)
      : plans_(plans), worker_(std::move(cores)) {}

  void Start() { worker_.Start(); }  // as in Worker
  // To be called when a checkpoint begins.
  void Begin(Output& output) {
    output_ = &output;
    written_.clear();  // left by a checkpoint that failed
    written_bytes_ = 0;
    flush_seconds_ = read_seconds_ = 0;
  }

  void Stop() { stopping_ = true; }  // nothing is read back any more; any thread may call it
  // Notes a written segment. Every 64 MiB the noted ones are flushed and read back, so that the
  // disk is never idle.
  void Written(const StagedSegment& segment) {
    written_.push_back(segment);
    written_bytes_ += plans_[segment.file].segments[segment.segment].length;
    if (written_bytes_ >= kGroupBytes) Queue(true);
  }
  // Reads back the rest, which is already flushed, and waits until all is read. Throws the failure.
  void Finish() {
    Queue(false);
    worker_.Finish();
  }

  bool Idle() const { return worker_.Idle(); }
  std::exception_ptr TakeFailure() { return worker_.TakeFailure(); }
  // Seconds of flushing and of reading back; valid once the thread is idle.
  double FlushSeconds() const { return flush_seconds_; }
  double ReadSeconds() const { return read_seconds_; }
  // Bytes that a writer needs for reading back.
  std::int64_t MemoryBytes() const {
    std::int64_t longest = 0;
    for (const WritePlan& plan : plans_) {
      for (const Segment& each : plan.segments) longest = std::max(longest, each.length);
    }
    return longest;
  }

 private:
  void Queue(bool flush) {
    written_bytes_ = 0;
    worker_.Queue([this, flush, segments = std::exchange(written_, {})] {
      const double start = Seconds();
      if (flush) output_->Flush(true);
      const double flushed = Seconds();
      output_->ReadBack(segments, [this] { return worker_.Stopping() || stopping_; });
      flush_seconds_ += flushed - start;
      read_seconds_ += Seconds() - flushed;
    });
  }

  const std::vector<WritePlan>& plans_;
  Output* output_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::vector<StagedSegment> written_;  // written but not yet queued
  std::int64_t written_bytes_ = 0;
  double flush_seconds_ = 0, read_seconds_ = 0;  // on the thread
  Worker worker_;                                // ends before the members above
};

Writer::Writer(const comm::Communicator& world, State state, WriterOptions options)
    : world_(world), state_(std::move(state)), options_(std::move(options)) {
  SetUp();
  if (shortage_.empty()) return;
  if (world.IsRoot()) {
    fmt::print(stderr,
               "warning: checkpoint.writers = {}: {}\n  Each rank writes for itself instead.\n",
               options_.writers, shortage_);
  }
  options_.writers = 0;
  SetUp();
}

Writer::~Writer() { checker_->Stop(); }

void Writer::SetUp() {
  memory_.reset();
  shortage_.clear();
  group_ = GroupOf(world_, options_.writers);
  plans_ = {MakeWritePlan(world_, group_, kModelFile, state_.model),
            MakeWritePlan(world_, group_, kOptimizerFile, state_.optimizer)};
  rounds_ =
      PlanRounds(plans_, options_.async ? std::numeric_limits<std::int64_t>::max() : kRoundBytes);
  direct_ = !options_.async && group_.Size() == 1 && !state_.read;
  slot_bytes_ = LargestRound(rounds_);
  sums_ = std::make_unique<GatheredSums>(world_, plans_, Leads());
  hasher_ = std::make_unique<Hasher>(options_.cores, plans_);
  checker_ = std::make_unique<Checker>(options_.cores, plans_);
  worker_ = std::make_unique<Worker>(options_.cores);
  const bool all_direct = world_.Min(direct_ ? std::int64_t{1} : 0) == 1;
  if (!all_direct) TakeMemory();
  if (!shortage_.empty()) return;
  // Missing memory or threads are reported here, not at the first checkpoint.
  world_.Together([&] {
    if (!Leads()) return;
    hasher_->Start();
    checker_->Start();
    worker_->Start();
  });
}

std::int64_t Writer::Bytes() const { return plans_[0].layout.bytes + plans_[1].layout.bytes; }

std::int64_t Writer::MemoryBytes() const { return slot_bytes_ * (options_.async ? 1 : kSlots); }

std::int64_t Writer::CheckBytes() const { return checker_->MemoryBytes() + sums_->MemoryBytes(); }

std::int64_t Writer::OwnBytes() const {
  return !Leads() ? 0 : CheckBytes() + (options_.async || !memory_ ? 0 : MemoryBytes());
}

bool Writer::Busy() const { return !worker_->Idle() || !checker_->Idle() || !hasher_->Idle(); }

const std::vector<kernels::StateBlock>& Writer::Blocks(std::size_t file) const {
  return file == 0 ? state_.model : state_.optimizer;
}

// Runs what may fail on this rank alone; ranks agree on the failure later. After a failure nothing
// more is attempted.
template <typename Body>
void Writer::Attempt(const Body& body) {
  if (failure_) return;
  try {
    body();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void Writer::TakeMemory() {
  const bool shares = group_.Size() > 1;
  if (shares) memory_ = std::make_unique<GroupMemory>(group_, MemoryBytes());
  world_.Together([&] {
    if (!shares) memory_ = std::make_unique<GroupMemory>(group_, MemoryBytes());
  });
  if (const int error = memory_->Error(); error != 0) {
    shortage_ =
        fmt::format("{} ranks of a node cannot share {}: {}: {}", group_.Size(),
                    Mebibytes(MemoryBytes()), ErrorText(error), comm::RoomForSharedMemory());
  }
  shortage_ = world_.FirstText(shortage_);
}

void Writer::Begin(Order order) {
  begin_seconds_ = Seconds();
  order_ = std::move(order);
  outcome_ = {};
  outcome_.step = order_.step;
  outcome_.bytes = Bytes();
  part_ = Part::kPrepare;
  // This part ends with an agreement of all ranks, so all of the group have copied by then.
  if (options_.async) CopyIn(rounds_.front(), memory_->Data());
  StartPrepare();
}

void Writer::StartPrepare() {
  if (!world_.IsRoot()) return;
  const auto prepare = [this] {
    Prepared prepared = Prepare(order_, plans_, options_.io_hints);
    // At least this session's last number + 1, even if its checkpoints cannot be read just now.
    sequence_ = std::max(sequence_ + 1, prepared.sequence);
    outcome_.warnings = std::move(prepared.warnings);
  };
  if (options_.io_hints.empty()) {
    Attempt([&] { worker_->Queue(prepare); });
  } else {
    Attempt(prepare);
  }
}

void Writer::StartWrite() {
  part_ = Part::kWrite;
  write_seconds_ = 0;
  if (options_.async || direct_) hasher_->HoldBack();  // the data stays: hashing can wait
  const auto open = [this] {
    output_ = std::make_unique<Output>(order_, plans_);
    checker_->Begin(*output_);
  };
  if (Leads()) Attempt([&] { worker_->Queue(open); });
  if (options_.async) {
    if (Leads()) Attempt([&] { QueueWrite(rounds_.front(), memory_->Data()); });
  } else {
    StageRounds();
  }
  if (Leads()) Attempt([&] { QueueVerify(); });
}

void Writer::QueueVerify() {
  worker_->Queue([this] {
    const double start = Seconds();
    hasher_->Release();
    output_->Flush(false);
    write_seconds_ += Seconds() - start;
    checker_->Finish();
    hasher_->Await();
    output_->Verify(rounds_);
  });
}

// Passes rounds through the slots: ranks fill one while the thread writes the other.
void Writer::StageRounds() {
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    if (direct_) {
      Attempt([&] { QueueWrite(rounds_[i], nullptr); });
      continue;
    }
    std::byte* const slot = memory_->Data() + static_cast<std::int64_t>(i % kSlots) * slot_bytes_;
    if (Leads()) {
      worker_->Await(kSlots - 1);
      hasher_->Await(kSlots - 1);
    }
    group_.Barrier();
    CopyIn(rounds_[i], slot);
    group_.Barrier();
    if (Leads()) Attempt([&] { QueueWrite(rounds_[i], slot); });
  }
}

void Writer::CopyIn(const Round& round, std::byte* slot) {
  Attempt([&] {
    InThreads(options_.threads, std::ssize(round.segments), [&](std::int64_t i, int) {
      const StagedSegment& staged = round.segments[static_cast<std::size_t>(i)];
      if (staged.member == group_.Rank()) CopySegment(staged, slot + staged.place);
    });
  });
}

const void* Writer::DirectData(const StagedSegment& staged) const {
  const OwnSegment& own = OwnOf(plans_[staged.file], staged.segment);
  if (own.block == OwnSegment::kHeader) return plans_[staged.file].layout.header.data();
  const kernels::StateBlock& block = Blocks(staged.file)[own.block];
  return static_cast<const char*>(block.data) + BytesOf(block.dtype, own.first - block.begin);
}

void Writer::CopySegment(const StagedSegment& staged, void* to) const {
  const OwnSegment& own = OwnOf(plans_[staged.file], staged.segment);
  if (own.block != OwnSegment::kHeader && state_.read) {
    state_.read(Blocks(staged.file)[own.block], own.first, own.last, to);
    return;
  }
  const std::int64_t bytes = plans_[staged.file].segments[staged.segment].length;
  std::memcpy(to, DirectData(staged), static_cast<std::size_t>(bytes));
}

void Writer::QueueWrite(const Round& round, const std::byte* slot) {
  const auto data = [this, slot](const StagedSegment& staged) {
    return slot == nullptr ? DirectData(staged) : slot + staged.place;
  };
  hasher_->Queue(round, data);
  worker_->Queue([this, &round, data] {
    const ThreadStopwatch watch;
    for (const StagedSegment& staged : round.segments) {
      if (worker_->Stopping()) return;
      output_->Write(staged, data(staged));
      checker_->Written(staged);
      // If the file system makes this thread wait, hashes are computed now, not at the flush.
      if (watch.All() > kSlowSeconds && watch.Waited() > watch.All() / 2) hasher_->Release();
    }
    write_seconds_ += watch.All();
  });
}

// Collective. The failure on any rank since the last agreement, which is then forgotten.
std::optional<std::string> Writer::AgreedFailure() {
  try {
    world_.Together([&] {
      worker_->Await();  // it releases rounds to the hasher
      hasher_->Await();
      for (const std::exception_ptr& failure :
           {worker_->TakeFailure(), checker_->TakeFailure(), std::exchange(failure_, nullptr)}) {
        if (failure) std::rethrow_exception(failure);
      }
    });
    return std::nullopt;
  } catch (const Error& error) {
    failure_ = nullptr;
    return error.what();
  }
}

void Writer::StartPublish() {
  part_ = Part::kPublish;
  output_.reset();
  if (!world_.IsRoot()) return;
  const auto publish = [this] {
    order_.run["sequence"] = outcome_.sequence = sequence_;
    Complete(order_, plans_, sums_->Files());
    for (auto& each : TidyUp(order_.folder, StepName(order_.step), order_.best, order_.retention)) {
      outcome_.warnings.push_back(std::move(each));
    }
  };
  Attempt([&] { worker_->Queue(publish); });
}

Outcome Writer::End(const std::string& failure) {
  part_ = Part::kNone;
  output_.reset();
  outcome_.failure = failure;
  outcome_.seconds = Seconds() - begin_seconds_;
  if (!failure.empty() && world_.IsRoot()) {
    const auto remove = [this] {
      if (order_.may_publish) order_.may_publish();
      std::error_code ignored;
      std::filesystem::remove_all(TemporaryOf(order_), ignored);
    };
    try {
      worker_->Queue(remove);
      worker_->Finish();
    } catch (const std::exception&) {  // the next checkpoint removes it
    }
  }
  return std::move(outcome_);
}

std::optional<Outcome> Writer::Advance() {
  if (const auto failure = AgreedFailure()) return End(*failure);
  if (part_ == Part::kPublish) {
    outcome_.warnings = ShareLines(world_, outcome_.warnings);
    return End({});
  }
  if (part_ == Part::kPrepare) {
    StartWrite();
  } else if (part_ == Part::kWrite) {
    sums_->Gather();
    outcome_.write_seconds = world_.Max(write_seconds_ + checker_->FlushSeconds());  // the slowest
    outcome_.verify_seconds = world_.Max(checker_->ReadSeconds());
    StartPublish();
  }
  return std::nullopt;
}

Outcome Writer::Finish() {
  std::optional<Outcome> outcome;
  while (!outcome) outcome = Advance();
  return *std::move(outcome);
}

}  // namespace trireme::checkpoint
