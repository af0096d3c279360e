// Checkpoints against plain input and output of the same bytes on the same file system. The two
// sides of each figure run in turn, so that a noisy machine is as noisy for both; a figure is the
// median of the pairs' ratios, with the least and the largest.
//
//   mpirun -n 8 trireme_checkpoint_benchmark FOLDER MIB [writers=1] [what=all] [pairs=5] [LOCAL]
//
// LOCAL, a sixth argument: the nodes' storage for what=local, FOLDER/local unless stated; the first
// half of the ranks is one host, the second half another one.
// FOLDER: on the file system to measure, on a disk: one in memory cannot drop what it holds, so
// that its cold reads are warm ones. MIB: of both tensor files together, at least a second of
// writing. writers: of each node; 0: every rank. what: a comma-separated list of write, read,
// stall, hash, local; all; or, for restoring on fewer ranks than wrote (target: at most 1.5 times
// the seconds of 8 to 8):
//   mpirun -n 8 trireme_checkpoint_benchmark FOLDER MIB 1 keep      writes FOLDER/kept, 8 ranks
//   mpirun -n 8 trireme_checkpoint_benchmark FOLDER MIB 1 restore   reads it on as many
//   mpirun -n 3 trireme_checkpoint_benchmark FOLDER MIB 1 restore   and on 3; same MIB
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/runtime.hpp"

namespace trireme::benchmark {

// Input and output without the program's engine, against which checkpoints are measured: positioned
// transfers of one file by the writers of each node, and non-blocking MPI-IO.

inline constexpr std::int64_t kPieceBytes = std::int64_t{4}
                                            << 20;  // of a transfer, as checkpoints'

// Drops the system's copies of a synced file, so that the next read comes from the disk. A file
// system in memory keeps them.
void Forget(const std::string& path);

// A contiguous share of one file of `bytes` bytes for each writer: the first ranks of `writers`
// equal groups of each node, as checkpoint::Writer takes them; 0: all ranks.
class PlainFile {
 public:
  PlainFile(const comm::Communicator& world, const std::string& path, std::int64_t bytes,
            int writers);

  bool Writes() const { return writes_; }
  std::int64_t ShareBytes() const { return end_ - begin_; }
  std::vector<char>& Memory() { return memory_; }  // the share; of ranks that write only

  // Collective. The slowest writer's seconds. The file is new, its space reserved before.
  double Write();          // pieces, then fsync
  double Read(bool cold);  // pieces into memory
  // hash_seconds: of a thread that makes XXH3 of each piece beside the writing; null: without.
  double WriteHashing(double* hash_seconds);
  void Remove();  // collective

 private:
  void Create();

  const comm::Communicator& world_;
  const std::string path_;
  const std::int64_t bytes_;
  bool writes_ = false;
  std::int64_t begin_ = 0, end_ = 0;
  std::vector<char> memory_;
};

struct Overlapped {
  double stall = 0;    // seconds in which the steps waited
  double to_disk = 0;  // from the begin until all bytes are flushed
  int steps = 0;       // passed meanwhile
};

// Collective. A copy of `mine` into the memory of the node's writers, then MPI_File_iwrite_at of
// their shares of `path`, moved on by MPI_Testsome between calls of `step`, and MPI_File_sync at
// the end.
Overlapped WriteByMpi(const comm::Communicator& world, const std::string& path, int writers,
                      const std::vector<char>& mine, const std::function<void()>& step);

// Plain positioned transfers and MPI-IO.

namespace {

// Group of a rank of a node, as checkpoint::Writer forms them.
comm::Communicator GroupOf(const comm::Communicator& world, int writers) {
  const comm::Communicator node = world.SplitNode();
  const int groups = writers == 0 ? node.Size() : std::min(writers, node.Size());
  return node.Split(node.Rank() * groups / node.Size(), node.Rank());
}

void Must(bool done, const std::string& what) {
  if (!done) throw RunError(what + ": " + std::strerror(errno));
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(::open(path.c_str(), flags, 0666)) {
    Must(fd_ >= 0, path);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int Get() const { return fd_; }

  // Calls transfer(memory, bytes, offset) until the piece is whole.
  template <typename Transfer>
  void Whole(char* memory, std::int64_t bytes, std::int64_t offset,
             const Transfer& transfer) const {
    while (bytes > 0) {
      const ssize_t done = transfer(fd_, memory, static_cast<std::size_t>(bytes), offset);
      Must(done > 0, path_);
      memory += done;
      bytes -= done;
      offset += done;
    }
  }

 private:
  const std::string path_;
  const int fd_;
};

}  // namespace

void Forget(const std::string& path) {
  const File file(path, O_RDONLY);
  ::posix_fadvise(file.Get(), 0, 0, POSIX_FADV_DONTNEED);
}

PlainFile::PlainFile(const comm::Communicator& world, const std::string& path, std::int64_t bytes,
                     int writers)
    : world_(world), path_(path), bytes_(bytes), writes_(GroupOf(world, writers).IsRoot()) {
  std::int64_t index = 0, count = 0;
  for (int rank = 0; const std::string& flag : world.Gather(writes_ ? "w" : "")) {
    if (rank++ < world.Rank() && !flag.empty()) ++index;
    if (!flag.empty()) ++count;
  }
  if (!writes_) return;
  begin_ = bytes * index / count;
  end_ = bytes * (index + 1) / count;
  memory_.resize(static_cast<std::size_t>(end_ - begin_));
  std::iota(memory_.begin(), memory_.end(), static_cast<char>(world.Rank()));
}

void PlainFile::Create() {
  world_.Together([&] {
    if (!world_.IsRoot()) return;
    ::unlink(path_.c_str());
    const File file(path_, O_RDWR | O_CREAT | O_EXCL);
    Must(::fallocate(file.Get(), 0, 0, bytes_) == 0 || ::ftruncate(file.Get(), bytes_) == 0, path_);
  });
}

double PlainFile::Write() { return WriteHashing(nullptr); }

double PlainFile::WriteHashing(double* hash_seconds) {
  Create();
  double hashing = 0, seconds = 0;
  std::uint64_t sum = 0;
  world_.Together([&] {
    if (!writes_) return;
    const double start = Seconds();
    const File file(path_, O_RDWR);
    const auto pieces = [&](const auto& body) {
      for (std::int64_t at = begin_; at < end_; at += kPieceBytes) {
        body(memory_.data() + (at - begin_), std::min(kPieceBytes, end_ - at), at);
      }
    };
    pieces([&](char* from, std::int64_t bytes, std::int64_t at) {
      file.Whole(from, bytes, at, ::pwrite);
    });
    std::jthread hasher;  // beside the flush, as a checkpoint's
    if (hash_seconds != nullptr) {
      hasher = std::jthread([&] {
        const double hash_start = Seconds();
        pieces([&](const char* from, std::int64_t bytes, std::int64_t) {
          sum ^= XXH3_64bits(from, static_cast<std::size_t>(bytes));
        });
        hashing = Seconds() - hash_start;
      });
    }
    Must(::fsync(file.Get()) == 0, path_);
    if (hasher.joinable()) hasher.join();
    seconds = Seconds() - start;
  });
  // A sum that is used cannot be left out by the compiler.
  if (hash_seconds != nullptr) *hash_seconds = world_.Max(hashing + (sum == 1 ? 1e-12 : 0));
  return world_.Max(seconds);
}

double PlainFile::Read(bool cold) {
  world_.Together([&] {
    if (cold && writes_) Forget(path_);
  });
  double seconds = 0;
  world_.Together([&] {
    if (!writes_) return;
    const double start = Seconds();
    const File file(path_, O_RDONLY);
    for (std::int64_t at = begin_; at < end_; at += kPieceBytes) {
      file.Whole(memory_.data() + (at - begin_), std::min(kPieceBytes, end_ - at), at, ::pread);
    }
    seconds = Seconds() - start;
  });
  return world_.Max(seconds);
}

void PlainFile::Remove() {
  world_.Barrier();
  if (world_.IsRoot()) ::unlink(path_.c_str());
  world_.Barrier();
}

namespace {

// Memory of a writer that its group copies into.
class Window {
 public:
  Window(const comm::Communicator& group, std::int64_t bytes) {
    void* base = nullptr;
    MPI_Win_allocate_shared(group.IsRoot() ? bytes : 0, 1, MPI_INFO_NULL, group.Handle(),
                            static_cast<void*>(&base), &window_);
    MPI_Aint size = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, 0, &size, &unit, static_cast<void*>(&base));
    data_ = static_cast<char*>(base);
    if (group.IsRoot()) std::memset(data_, 0, static_cast<std::size_t>(bytes));
    group.Barrier();
  }
  ~Window() { MPI_Win_free(&window_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  char* Data() const { return data_; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  char* data_ = nullptr;
};

// The pieces of a share on their way.
class Pieces {
 public:
  Pieces(MPI_File file, const char* memory, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kPieceBytes) {
      MPI_File_iwrite_at(file, at, memory + (at - begin),
                         static_cast<int>(std::min(kPieceBytes, end - at)), MPI_BYTE,
                         &requests_.emplace_back());
    }
    indices_.resize(requests_.size());
  }
  // True once all are written.
  bool Test() {
    int done = 0;
    if (!requests_.empty()) {
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, indices_.data(),
                   MPI_STATUSES_IGNORE);
    }
    return requests_.empty() || done == MPI_UNDEFINED;
  }

 private:
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
};

}  // namespace

Overlapped WriteByMpi(const comm::Communicator& world, const std::string& path, int writers,
                      const std::vector<char>& mine, const std::function<void()>& step) {
  const comm::Communicator group = GroupOf(world, writers);
  const comm::Communicator leaders = world.Split(group.IsRoot() ? 0 : 1, world.Rank());
  std::int64_t place = 0, share = 0, begin = 0;  // in the group, of the group, in the file
  for (int rank = 0; const std::string& bytes : group.Gather(std::to_string(mine.size()))) {
    if (rank++ < group.Rank()) place += std::stoll(bytes);
    share += std::stoll(bytes);
  }
  for (int rank = 0; const std::string& bytes : leaders.Gather(std::to_string(share))) {
    if (rank++ < leaders.Rank()) begin += std::stoll(bytes);
  }
  const Window window(group, share);
  if (world.IsRoot()) ::unlink(path.c_str());
  world.Barrier();

  Overlapped result;
  const double start = Seconds();
  std::memcpy(window.Data() + place, mine.data(), mine.size());
  group.Barrier();
  MPI_File file = MPI_FILE_NULL;
  if (group.IsRoot()) {
    const int code = MPI_File_open(leaders.Handle(), path.c_str(),
                                   MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    if (code != MPI_SUCCESS) throw RunError(path + ": MPI cannot open it");
  }
  Pieces pieces(file, window.Data(), begin, group.IsRoot() ? begin + share : begin);
  result.stall = Seconds() - start;
  for (bool done = false; !done;) {
    step();
    const double moved = Seconds();
    done = pieces.Test();
    result.stall += Seconds() - moved;
    done = world.Max(done ? std::int64_t{0} : 1) == 0;
    ++result.steps;
  }
  const double flushed = Seconds();
  if (group.IsRoot()) {
    MPI_File_sync(file);
    MPI_File_close(&file);
  }
  world.Barrier();
  result.stall = world.Max(result.stall + Seconds() - flushed);
  result.to_disk = world.Max(Seconds() - start);
  return result;
}

// A training state and a step to save it beside, for the benchmark of checkpoints.

inline constexpr double kStepSeconds = 0.05;

// A model and its moments: of each three large tensors cut over the ranks, and small ones that are
// whole on one rank each.
class Memory {
 public:
  Memory(const comm::Communicator& world, std::int64_t mib) {
    const std::int64_t elements = (mib << 20) / static_cast<std::int64_t>(sizeof(float));
    for (std::vector<kernels::StateBlock>* list : {&state_.model, &state_.optimizer}) {
      constexpr std::int64_t kSmall = 16384, kLarge = 3;  // elements of a small one; number
      const std::int64_t all = elements / 2, small = all / 4 / kSmall;
      const std::int64_t large = (all - small * kSmall) / kLarge;
      for (std::int64_t i = 0; i < kLarge; ++i) {
        const std::int64_t rank = world.Rank(), size = world.Size();
        Add(*list, fmt::format("large.{}", i), large, large * rank / size,
            large * (rank + 1) / size);
      }
      for (std::int64_t i = 0; i < small; ++i) {
        const bool here = i % world.Size() == world.Rank();
        Add(*list, fmt::format("small.{}", i), kSmall, 0, here ? kSmall : 0);
      }
    }
  }
  const checkpoint::State& State() const { return state_; }
  std::int64_t Bytes() const {
    return checkpoint::CopyBytes(state_.model) + checkpoint::CopyBytes(state_.optimizer);
  }

 private:
  void Add(std::vector<kernels::StateBlock>& list, const std::string& name, std::int64_t count,
           std::int64_t begin, std::int64_t end) {
    auto& data = memory_.emplace_back(static_cast<std::size_t>(end - begin));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 8191);
    list.push_back({.name = name,
                    .shape = {count},
                    .dtype = Dtype::kFloat32,
                    .begin = begin,
                    .end = end,
                    .data = data.empty() ? nullptr : data.data()});
  }

  std::vector<std::vector<float>> memory_;
  checkpoint::State state_;
};

// Arithmetic that takes kStepSeconds on an idle core.
class Step {
 public:
  Step() {
    const double start = Seconds();
    while (Seconds() - start < kStepSeconds) Work(1), ++rounds_;
  }
  void operator()() { Work(rounds_); }

 private:
  void Work(std::int64_t rounds) {
    for (std::int64_t i = 0; i < rounds * 4096; ++i) value_ = value_ * 1.0000001 + 1e-9;
  }
  volatile double value_ = 1;
  std::int64_t rounds_ = 0;
};

}  // namespace trireme::benchmark

using namespace trireme;
using namespace trireme::benchmark;

namespace {

struct Setup {
  const comm::Communicator& world;
  std::string folder = {};
  std::int64_t mib = 0;
  int writers = 1;
  std::string what = "all";
  int pairs = 5;
  std::string local = {};
};

struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

void Say(const Setup& setup, const std::string& what, const std::vector<double>& values,
         const std::string& note) {
  if (!setup.world.IsRoot()) return;
  const Spread spread = SpreadOf(values);
  fmt::print("{:<52} {:8.3f}  ({:.3f} to {:.3f})  {}\n", what, spread.median, spread.least,
             spread.most, note);
}

checkpoint::Outcome Checked(checkpoint::Outcome outcome) {
  if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
  return outcome;
}

checkpoint::Order OrderOf(const std::string& folder) {
  return {.folder = folder, .step = 1, .run = {{"step", 1}}};
}

void Clear(const Setup& setup, const std::string& folder) {
  setup.world.Barrier();
  if (setup.world.IsRoot()) std::filesystem::remove_all(folder);
  setup.world.Barrier();
}

// Both sides in an order that changes from pair to pair.
template <typename One, typename Other>
void InTurn(int pair, const One& one, const Other& other) {
  if (pair % 2 == 0) one();
  other();
  if (pair % 2 != 0) one();
}

void Write(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/write";
  checkpoint::Writer writer(setup.world, memory.State(), {.writers = setup.writers});
  PlainFile plain(setup.world, setup.folder + "/plain", writer.Bytes(), setup.writers);
  std::vector<double> flushed, whole, verified, speed;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    double put = 0, got = 0;
    checkpoint::Outcome outcome;
    InTurn(
        pair,
        [&] {
          put = plain.Write();
          got = plain.Read(true);
          plain.Remove();
        },
        [&] {
          writer.Begin(OrderOf(folder));
          outcome = Checked(writer.Finish());
          Clear(setup, folder);
        });
    flushed.push_back(put / outcome.write_seconds);
    whole.push_back(put / (outcome.seconds - outcome.verify_seconds));
    verified.push_back(got / outcome.verify_seconds);
    speed.push_back(static_cast<double>(outcome.bytes) / outcome.write_seconds / 1e9);
  }
  Say(setup, "write: written and flushed, GB/s", speed, "");
  Say(setup, "write: speed of writing and flushing / plain", flushed, "target: at least 0.8");
  Say(setup, "write: speed of all but reading back / plain", whole, "target: at least 0.8");
  Say(setup, "write: speed of reading back / plain cold read", verified, "reported apart");
}

double Restore(const Setup& setup, const Memory& memory, const std::string& folder, bool cold) {
  const std::string checkpoint = checkpoint::Find(setup.world, folder);
  const bool reads = setup.world.SplitNode().IsRoot();
  setup.world.Together([&] {
    if (!cold || !reads) return;
    for (const char* file : {"/model", "/optimizer"}) Forget(checkpoint + file + ".safetensors");
  });
  setup.world.Barrier();
  const double start = Seconds();
  checkpoint::ReadTensors(setup.world, checkpoint, "model", memory.State().model);
  checkpoint::ReadTensors(setup.world, checkpoint, "optimizer", memory.State().optimizer);
  return setup.world.Max(Seconds() - start);
}

void Keep(const Setup& setup, const Memory& memory, const std::string& folder) {
  Clear(setup, folder);
  checkpoint::Writer writer(setup.world, memory.State(), {.writers = setup.writers});
  writer.Begin(OrderOf(folder));
  Checked(writer.Finish());
}

// One process of a node reads, on both sides.
void Read(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/read";
  Keep(setup, memory, folder);
  const std::int64_t bytes = setup.world.Sum(memory.Bytes());
  PlainFile plain(setup.world, setup.folder + "/plain", bytes, 1);
  plain.Write();
  for (const bool cold : {true, false}) {
    std::vector<double> ratios, speed;
    for (int pair = 0; pair < setup.pairs; ++pair) {
      double one = 0, other = 0;
      InTurn(
          pair, [&] { one = plain.Read(cold); },
          [&] { other = Restore(setup, memory, folder, cold); });
      ratios.push_back(one / other);
      speed.push_back(static_cast<double>(bytes) / other / 1e9);
    }
    const std::string name = cold ? "read from the disk" : "read from the system's memory";
    Say(setup, name + ", GB/s", speed, "");
    Say(setup, name + ": speed / plain", ratios, cold ? "target: at least 0.8" : "no target");
  }
  plain.Remove();
  Clear(setup, folder);
}

// An asynchronous save as the training loop moves it on; stall: time in Begin and Advance.
Overlapped WriteBeside(const Setup& setup, checkpoint::Writer& writer, const std::string& folder,
                       Step& step) {
  Overlapped result;
  setup.world.Barrier();
  const double start = Seconds();
  writer.Begin(OrderOf(folder));
  result.stall = Seconds() - start;
  std::optional<checkpoint::Outcome> outcome;
  for (; !outcome; ++result.steps) {
    step();
    const bool busy = setup.world.Max(writer.Busy() ? std::int64_t{1} : 0) != 0;
    if (busy) continue;
    const double moved = Seconds();
    outcome = writer.Advance();
    result.stall += Seconds() - moved;
  }
  result.stall = setup.world.Max(result.stall);
  result.to_disk = Checked(*outcome).seconds;
  return result;
}

void Stall(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/stall";
  checkpoint::Writer waiting(setup.world, memory.State(), {.writers = setup.writers});
  checkpoint::Writer beside(setup.world, memory.State(), {.async = true, .writers = setup.writers});
  const std::vector<char> mine(static_cast<std::size_t>(memory.Bytes()), 'x');
  Step step;
  std::vector<double> ratios, mpi_ratios, against, disk, ours, theirs;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    Overlapped thread, mpi;
    double whole = 0;
    InTurn(
        pair,
        [&] {
          waiting.Begin(OrderOf(folder));
          whole = Checked(waiting.Finish()).seconds;
          Clear(setup, folder);
        },
        [&] {
          InTurn(
              pair / 2,
              [&] {
                thread = WriteBeside(setup, beside, folder, step);
                Clear(setup, folder);
              },
              [&] {
                mpi = WriteByMpi(setup.world, setup.folder + "/mpi", setup.writers, mine,
                                 [&] { step(); });
                Clear(setup, setup.folder + "/mpi");
              });
        });
    ratios.push_back(thread.stall / whole);
    mpi_ratios.push_back(mpi.stall / whole);
    against.push_back(thread.stall / mpi.stall);
    disk.push_back(thread.to_disk / mpi.to_disk);
    ours.push_back(thread.stall);
    theirs.push_back(mpi.stall);
  }
  Say(setup, "stall of the writing thread / a synchronous save", ratios, "target: at most 0.05");
  Say(setup, "stall of non-blocking MPI-IO / a synchronous save", mpi_ratios, "");
  Say(setup, "stall of the thread, s", ours, "");
  Say(setup, "stall of MPI-IO, s", theirs, "");
  Say(setup, "stall: thread / MPI-IO", against,
      SpreadOf(against).median < 1 ? "the thread is better" : "MPI-IO is better");
  Say(setup, "time to disk: thread / MPI-IO", disk, "the thread also hashes, reads back, renames");
}

void HashShare(const Setup& setup, const Memory& memory) {
  PlainFile file(setup.world, setup.folder + "/hash", setup.world.Sum(memory.Bytes()),
                 setup.writers);
  std::vector<double> shares, differences;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    double with = 0, without = 0, hashing = 0;
    InTurn(
        pair, [&] { with = file.WriteHashing(&hashing); }, [&] { without = file.Write(); });
    shares.push_back(hashing / with);
    differences.push_back(with / without - 1);
  }
  file.Remove();
  Say(setup, "checksums: their thread's seconds / all", shares, "beside the writing: no target");
  Say(setup, "checksums: writing with / without, less 1", differences, "target: at most 0.03");
}

// Local checkpoints with copies on a partner host against a synchronous save to the run folder.
void Local(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/run";
  const auto ranks = static_cast<std::size_t>(setup.world.Size());
  std::vector<std::string> hosts(ranks, "a");
  for (std::size_t rank = ranks / 2; rank < ranks; ++rank) hosts[rank] = "b";
  const std::string& own = hosts[static_cast<std::size_t>(setup.world.Rank())];
  const checkpoint::LocalRun run{
      .folder = setup.local + "/" + own, .id = "0123456789abcdef", .session = "1"};
  checkpoint::Writer writer(setup.world, memory.State(), {.writers = setup.writers});
  std::vector<double> ratios, local, shared, found;
  {
    checkpoint::LocalWriter nodes({setup.world, comm::Hosts(hosts)}, memory.State(), run, {});
    if (setup.world.IsRoot()) {
      fmt::print("{} of state, {} of it copied to partners\n", nodes.Bytes(), nodes.CopiedBytes());
    }
    for (int pair = 0; pair < setup.pairs; ++pair) {
      InTurn(
          pair,
          [&] {
            const auto outcome = nodes.Write(pair + 1, 1, {{"step", pair + 1}});
            if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
            local.push_back(outcome.seconds);
          },
          [&] {
            writer.Begin(OrderOf(folder));
            shared.push_back(Checked(writer.Finish()).seconds);
            Clear(setup, folder);
          });
      ratios.push_back(local.back() / shared.back());
      const double start = Seconds();
      const auto search = checkpoint::FindLocal({setup.world, comm::Hosts(hosts)}, run, {});
      for (const char* file : {"model", "optimizer"}) {
        const bool model = file[0] == 'm';
        search.found->Read({setup.world, comm::Hosts(hosts)}, file,
                           model ? memory.State().model : memory.State().optimizer);
      }
      found.push_back(setup.world.Max(Seconds() - start));
    }
    nodes.RemoveAll();
  }
  Say(setup, "local, with partners' copies, s", local, "");
  Say(setup, "run folder, synchronous, s", shared, "");
  Say(setup, "local / run folder", ratios, "");
  Say(setup, "found, checked and restored, s", found, "");
}

void RestoreKept(const Setup& setup, const Memory& memory) {
  std::vector<double> cold, warm;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    cold.push_back(Restore(setup, memory, setup.folder + "/kept", true));
    warm.push_back(Restore(setup, memory, setup.folder + "/kept", false));
  }
  const std::string on = fmt::format("restored on {} ranks", setup.world.Size());
  const double gigabytes = static_cast<double>(setup.world.Sum(memory.Bytes())) / 1e9;
  Say(setup, on + " from the disk, s", cold,
      fmt::format("{:.2f} GB/s; target: at most 1.5 times 8 ranks'",
                  gigabytes / SpreadOf(cold).median));
  Say(setup, on + " from the system's memory, s", warm,
      fmt::format("{:.2f} GB/s", gigabytes / SpreadOf(warm).median));
}

ExitCode Measure(const Setup& setup) {
  if (setup.world.IsRoot()) {
    std::filesystem::create_directories(setup.folder);
    fmt::print("{} ranks, {} MiB, {} writers a node, {} pairs in {}\nmedian (least to largest)\n",
               setup.world.Size(), setup.mib, setup.writers, setup.pairs, setup.folder);
  }
  const Memory memory(setup.world, setup.mib);
  const auto asked = [&](const std::string& name) {
    return setup.what == "all" ||
           ("," + setup.what + ",").find("," + name + ",") != std::string::npos;
  };
  if (setup.what == "keep") Keep(setup, memory, setup.folder + "/kept");
  if (setup.what == "restore") RestoreKept(setup, memory);
  if (asked("write")) Write(setup, memory);
  if (asked("read")) Read(setup, memory);
  if (asked("stall")) Stall(setup, memory);
  if (asked("hash")) HashShare(setup, memory);
  if (asked("local")) Local(setup, memory);
  return ExitCode::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] {
    Setup setup{.world = runtime.World()};
    if (argc > 1) setup.folder = argv[1];
    if (argc > 2) setup.mib = std::atoll(argv[2]);
    if (argc > 3) setup.writers = std::atoi(argv[3]);
    if (argc > 4) setup.what = argv[4];
    if (argc > 5) setup.pairs = std::max(1, std::atoi(argv[5]));
    setup.local = argc > 6 ? argv[6] : setup.folder + "/local";
    if (setup.folder.empty() || setup.mib < 1) {
      throw AgreedError(ExitCode::kBadInput,
                        "usage: trireme_checkpoint_benchmark FOLDER MIB [writers] "
                        "[write,read,stall,hash,local|all|keep|restore] [pairs] [LOCAL]");
    }
    return Measure(setup);
  });
}
