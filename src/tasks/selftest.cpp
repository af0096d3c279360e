// trireme --self-test: the list of checks, one printed line per check, the verdict, and the
// temporary folder for the checks' files.
#include "trireme/tasks/selftest.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <hdf5.h>
#include <mpi.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "root.hpp"
#include "trireme/app/job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/verify.hpp"

namespace trireme::tasks {

namespace {

// Body of the cleaning child process. It reads the folder's path from the pipe, then waits for
// end-of-file, which comes when the parent process ends, and removes the folder.
[[noreturn]] void WaitAndClean(int pipe_end) {
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) {
    std::signal(signal, SIG_IGN);
  }
  // Release the standard streams: a launcher waits until no process holds them.
  const int null = open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null >= 0) dup2(null, stream);
  }
  std::string path;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t got = Retry([&] { return read(pipe_end, part.data(), part.size()); });
    if (got <= 0) break;
    path.append(part.data(), static_cast<std::size_t>(got));
  }
  // Retry: other ranks may still be writing their last files.
  constexpr int kTries = 20;
  constexpr useconds_t kPause = 100'000;
  std::error_code error;
  for (int i = 0; i < kTries && !path.empty() && std::filesystem::exists(path, error); ++i) {
    if (i > 0) usleep(kPause);
    std::filesystem::remove_all(path, error);
  }
  _exit(0);
}

// Throws RunError(what) unless `condition`. Call it within Together, so that all ranks learn of it.
void Expect(bool condition, const std::string& what, const std::string& hint = {}) {
  if (!condition) throw RunError(what, hint);
}

// Checks of files: one folder that all ranks see, and HDF5 through MPI-IO.

constexpr hsize_t kEach = 50'000;  // elements written per rank

std::int64_t ValueAt(hsize_t index) { return static_cast<std::int64_t>(index) * 7 - 3; }

void Good(herr_t status, const char* what) {
  Expect(status >= 0, fmt::format("HDF5: {} failed", what),
         "The file system may refuse MPI-IO, or HDF5 stand on another MPI library (ldd tells).");
}

// Handles of one parallel HDF5 file, closed in order. All calls are collective.
class ParallelFile {
 public:
  ParallelFile(const comm::Communicator& world, const std::string& path, bool create)
      : access_(H5Pcreate(H5P_FILE_ACCESS)), transfer_(H5Pcreate(H5P_DATASET_XFER)) {
    H5Pset_fapl_mpio(access_, world.Handle(), MPI_INFO_NULL);
    H5Pset_dxpl_mpio(transfer_, H5FD_MPIO_COLLECTIVE);
    const hsize_t all = kEach * static_cast<hsize_t>(world.Size());
    space_ = H5Screate_simple(1, &all, nullptr);
    if (create) {
      file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access_);
      set_ = H5Dcreate2(file_, "numbers", H5T_STD_I64LE, space_, H5P_DEFAULT, H5P_DEFAULT,
                        H5P_DEFAULT);
    } else {
      file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access_);
      set_ = H5Dopen2(file_, "numbers", H5P_DEFAULT);
    }
  }
  ~ParallelFile() {
    H5Dclose(set_);
    H5Sclose(space_);
    H5Fclose(file_);
    H5Pclose(transfer_);
    H5Pclose(access_);
  }
  ParallelFile(const ParallelFile&) = delete;
  ParallelFile& operator=(const ParallelFile&) = delete;

  bool Open() const { return file_ >= 0 && set_ >= 0; }
  // Collective. Calls H5Dwrite or H5Dread for elements [begin, begin + kEach).
  template <typename Call, typename T>
  herr_t Transfer(Call call, hsize_t begin, T* values) {
    const hsize_t count = kEach;
    H5Sselect_hyperslab(space_, H5S_SELECT_SET, &begin, nullptr, &count, nullptr);
    const hid_t memory = H5Screate_simple(1, &count, nullptr);
    const herr_t status = call(set_, H5T_NATIVE_INT64, memory, space_, transfer_, values);
    H5Sclose(memory);
    return status;
  }

 private:
  hid_t access_, transfer_;
  hid_t space_ = -1, file_ = -1, set_ = -1;
};

// The checks. All are collective. Each returns a detail for its printed line, and throws an
// AgreedError if something does not work.

// Checks that all ranks see `folder` and that it has room. Returns its name and its free space.
std::string CheckFolder(const comm::Communicator& world, const std::string& folder) {
  constexpr double kLeastFree = 64.0 * (1 << 20), kMib = 1 << 20;
  const std::string path = folder + "/seen";
  AtRoot(world, [&] {
    std::ofstream file(path);
    file << "here\n";
    file.close();
    Expect(!file.fail(), fmt::format("{}: cannot be written: {}", path, ErrorText(errno)));
  });
  double free = 0;
  world.Together([&] {
    std::string word;
    std::ifstream(path) >> word;
    Expect(word == "here", fmt::format("{}: not seen by every rank", folder),
           "Name a folder of a file system that all nodes share: trireme --self-test FOLDER.");
    free = static_cast<double>(FreeBytes(folder));  // negative: unknown
    Expect(free < 0 || free >= kLeastFree,
           fmt::format("{}: only {:.0f} MiB free", folder, free / kMib), "64 MiB are needed.");
  });
  return free < 0 ? folder : fmt::format("{}, {:.0f} MiB free", folder, free / kMib);
}

// All ranks write one dataset through HDF5 and MPI-IO; each reads back a part that another wrote.
std::string CheckHdf5(const comm::Communicator& world, const std::string& folder) {
  const std::string path = folder + "/parallel.h5";
  const auto rank = static_cast<hsize_t>(world.Rank()), size = static_cast<hsize_t>(world.Size());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  std::vector<std::int64_t> values(kEach);
  {
    ParallelFile file(world, path, true);
    world.Together([&] { Good(file.Open() ? 0 : -1, "making a parallel file"); });
    for (hsize_t i = 0; i < kEach; ++i) values[i] = ValueAt(rank * kEach + i);
    const herr_t status = file.Transfer(H5Dwrite, rank * kEach, values.data());
    world.Together([&] { Good(status, "a collective write"); });
  }
  world.Barrier();
  ParallelFile file(world, path, false);
  world.Together([&] { Good(file.Open() ? 0 : -1, "opening a parallel file"); });
  const hsize_t begin = (rank + 1) % size * kEach;
  std::fill(values.begin(), values.end(), 0);
  const herr_t status = file.Transfer(H5Dread, begin, values.data());
  world.Together([&] {
    Good(status, "a collective read");
    for (hsize_t i = 0; i < kEach; ++i) {
      Expect(values[i] == ValueAt(begin + i),
             "HDF5: what another rank wrote is read as something else");
    }
  });
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{}, {} KiB by each rank", major, minor, release,
                     kEach * sizeof(std::int64_t) / 1024);
}

// Checks of this CPU's kernels: each result against its definition, computed in fp64.

using kernels::Form;
using kernels::Matrix;

// Relative tolerances for rounding: of sums in fp32, of operands in bf16, and of sums in fp64.
constexpr double kFp32 = 1e-5, kBf16 = 2e-2, kFp64 = 1e-13;

// Number `index` of pseudo-random sequence `which`, in (-1, 1); the same on every machine.
double Number(std::uint32_t which, std::uint32_t index) {
  const PhiloxCounter bits = Philox({index, which, 0, 0}, MakeKey(1, Purpose::kVerify));
  return 2 * UniformFrom(bits[0]) - 1;
}

template <typename T>
std::vector<T> Numbers(std::uint32_t which, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(Number(which, static_cast<std::uint32_t>(i)));
  }
  return values;
}

template <typename T>
Matrix View(std::vector<T>& values, std::int64_t rows, std::int64_t columns) {
  return {values.data(), sizeof(T) == sizeof(double) ? Dtype::kFloat64 : Dtype::kFloat32, rows,
          columns, columns};
}

// Largest difference between `got` and `wanted`, relative to the largest element of `wanted`.
template <typename T>
double Difference(const std::vector<T>& got, const std::vector<double>& wanted) {
  double most = 0, difference = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    most = std::max(most, std::abs(wanted[i]));
    const double here = std::abs(static_cast<double>(got[i]) - wanted[i]);
    difference = std::isfinite(here) ? std::max(difference, here) : INFINITY;
  }
  return difference / most;
}

struct Shape {
  std::int64_t m, n, k;
};

template <typename T>
void CheckProduct(const device::Stream& stream, const Shape& shape, double tolerance,
                  const char* name) {
  const auto [m, n, k] = shape;
  std::vector<T> a = Numbers<T>(1, m * k), b = Numbers<T>(2, k * n);
  std::vector<double> wanted;  // [m, n]
  std::vector<T> turned;       // b transposed: [n, k]
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const T factor = b[static_cast<std::size_t>(l * n + j)];
        sum += static_cast<double>(a[static_cast<std::size_t>(i * k + l)]) *
               static_cast<double>(factor);
        if (i == 0) turned.push_back(factor);
      }
      wanted.push_back(sum);
    }
  }
  for (const bool transposed : {false, true}) {
    std::vector<T> c(wanted.size(), static_cast<T>(NAN));
    kernels::MatrixMultiply(stream, Form::kPlain, View(a, m, k),
                            transposed ? Form::kTransposed : Form::kPlain,
                            transposed ? View(turned, n, k) : View(b, k, n), View(c, m, n), false);
    const double difference = Difference(c, wanted);
    Expect(difference <= tolerance,
           fmt::format("a product of matrices ({}, {} x {} x {}) differs by {:.1e} (tolerance "
                       "{:.0e}) from its definition",
                       name, m, n, k, difference, tolerance),
           "Was the program built for this processor? trireme --version tells of its libraries.");
  }
}

// Checks the random-number generator against published vectors (Salmon et al. 2011): without these
// numbers no run is reproducible.
void CheckRandomNumbers() {
  constexpr std::uint32_t kAll = 0xffffffff;
  Expect(Philox({0, 0, 0, 0}, {0, 0}) ==
                 PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8} &&
             Philox({kAll, kAll, kAll, kAll}, {kAll, kAll}) ==
                 PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
         "random numbers are not those of Philox4x32-10");
}

// Reference attention in fp64: softmax(q k^T / sqrt(d)) v with a causal mask.
std::vector<double> PlainAttention(const kernels::AttentionShape& shape,
                                   const std::vector<float>& qkv) {
  const std::int64_t rows = shape.sequences * shape.length, width = shape.Width();
  const std::int64_t d = shape.head_dim, heads = shape.heads;
  std::vector<double> out(static_cast<std::size_t>(rows * heads * d));
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return static_cast<double>(qkv[static_cast<std::size_t>(row * width + column)]);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t first = row / shape.length * shape.length;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t keys = heads * d + head / (heads / shape.kv_heads) * d;
      const std::int64_t values = keys + shape.kv_heads * d;
      double sum = 0;
      double* const to = out.data() + (row * heads + head) * d;
      for (std::int64_t key = first; key <= row; ++key) {
        double score = 0;
        for (std::int64_t i = 0; i < d; ++i) score += at(row, head * d + i) * at(key, keys + i);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
        sum += weight;
        for (std::int64_t i = 0; i < d; ++i) to[i] += weight * at(key, values + i);
      }
      for (std::int64_t i = 0; i < d; ++i) to[i] /= sum;
    }
  }
  return out;
}

void CheckAttention(const device::Stream& stream) {
  const kernels::AttentionShape shape{
      .sequences = 2, .length = 70, .heads = 4, .kv_heads = 2, .head_dim = 24};
  const std::int64_t rows = shape.sequences * shape.length;
  std::vector<float> qkv = Numbers<float>(3, rows * shape.Width());
  std::vector<float> out(static_cast<std::size_t>(rows * shape.heads * shape.head_dim), NAN);
  std::vector<float> lse(static_cast<std::size_t>(rows * shape.heads));
  std::vector<float> scratch(
      static_cast<std::size_t>(kernels::AttentionScratch(stream, shape, Dtype::kFloat32, false)));
  kernels::AttentionForward(stream, shape, View(qkv, rows, shape.Width()), {},
                            View(out, rows, shape.heads * shape.head_dim),
                            View(lse, rows, shape.heads), View(scratch, 1, std::ssize(scratch)));
  const double difference = Difference(out, PlainAttention(shape, qkv));
  Expect(difference <= kFp32, fmt::format("attention differs by {:.1e} (tolerance {:.0e}) from its "
                                          "definition",
                                          difference, kFp32));
}

// Checks random numbers, matrix products and attention on this CPU against reference values.
std::string CheckKernels(const comm::Runtime& runtime) {
  // Sizes that are no multiple of a tile, a single row as in generation, and a regular size.
  const std::vector<Shape> shapes = {{97, 131, 259}, {1, 200, 120}, {64, 64, 64}};
  const std::string bf16 = device::Bf16Instructions();
  runtime.World().Together([&] {
    CheckRandomNumbers();
    device::Stream plain, canonical, narrow, rounded;
    canonical.canonical = true;
    narrow.bf16 = rounded.bf16 = rounded.bf16_by_fp32 = true;
    for (const Shape& shape : shapes) {
      CheckProduct<float>(plain, shape, kFp32, "fp32");
      CheckProduct<float>(canonical, shape, kFp32, "canonical");
      CheckProduct<double>(plain, shape, kFp64, "fp64");
      CheckProduct<float>(rounded, shape, kBf16, "bf16 by fp32");
      if (!bf16.empty()) CheckProduct<float>(narrow, shape, kBf16, "bf16");
    }
    CheckAttention(plain);
  });
  return fmt::format("{}; products in fp32, fp64, canonical{}; attention", device::InstructionSet(),
                     bf16.empty() ? "" : ", bf16 (" + bf16 + ")");
}

// Checks of MPI: messages and the usual collectives must deliver what was sent.

// Elements per message: short ones travel eagerly, long ones by rendezvous.
constexpr int kShort = 10, kLong = 200'000;

std::int64_t Value(int rank, int i) { return std::int64_t{rank} * 1'000'003 + i; }

// Each rank sends to the rank 1, 2, 4, ... places further on.
void SendAround(const comm::Communicator& world, int count) {
  const int size = world.Size(), rank = world.Rank();
  std::vector<std::int64_t> mine(static_cast<std::size_t>(count)), theirs(mine.size());
  std::iota(mine.begin(), mine.end(), Value(rank, 0));
  for (int distance = 1; distance < size || distance == 1; distance *= 2) {
    const int to = (rank + distance) % size, from = (rank - distance % size + size) % size;
    std::fill(theirs.begin(), theirs.end(), -1);
    MPI_Sendrecv(mine.data(), count, MPI_INT64_T, to, distance, theirs.data(), count, MPI_INT64_T,
                 from, distance, world.Handle(), MPI_STATUS_IGNORE);
    world.Together([&] {
      for (std::int64_t expected = Value(from, 0); const std::int64_t value : theirs) {
        Expect(value == expected++,
               fmt::format("a message of {} bytes from rank {} to rank {} arrived changed",
                           count * sizeof(std::int64_t), from, rank));
      }
    });
  }
}

void Reduce(const comm::Communicator& world) {
  const int size = world.Size(), rank = world.Rank();
  const std::int64_t all = std::int64_t{size} * (size - 1) / 2;
  const std::int64_t sum = world.Sum(std::int64_t{rank});
  const double most = world.Max(static_cast<double>(rank));
  std::vector<double> values(kLong);
  std::iota(values.begin(), values.end(), rank);
  world.Sum(values);
  std::vector<float> floats(kLong, static_cast<float>(rank + 1));
  MPI_Allreduce(MPI_IN_PLACE, floats.data(), kLong, MPI_FLOAT, MPI_SUM, world.Handle());
  world.Together([&] {
    Expect(sum == all && most == size - 1, "a reduction of one number gave another result");
    for (std::size_t i = 0; i < kLong; ++i) {
      Expect(values[i] == static_cast<double>(all) + static_cast<double>(i) * size,
             "an all-reduce in fp64 gave a wrong sum");
      Expect(floats[i] == static_cast<float>(all + size), "an all-reduce in fp32 gave a wrong sum");
    }
  });
}

void Share(const comm::Communicator& world) {
  const int size = world.Size();
  std::vector<std::int64_t> data(kLong, world.Rank());
  const int root = size - 1;
  world.Broadcast(data.data(), kLong * std::int64_t{sizeof(std::int64_t)}, root);
  const std::vector<std::string> ranks = world.Gather(std::to_string(world.Rank()));
  std::vector<std::int64_t> to_all(static_cast<std::size_t>(size)), from_all(to_all.size());
  std::iota(to_all.begin(), to_all.end(), Value(world.Rank(), 0));
  MPI_Alltoall(to_all.data(), 1, MPI_INT64_T, from_all.data(), 1, MPI_INT64_T, world.Handle());
  world.Together([&] {
    for (const std::int64_t value : data) Expect(value == root, "a broadcast arrived changed");
    for (int i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Expect(ranks[at] == std::to_string(i), "a gather is out of order");
      Expect(from_all[at] == Value(i, world.Rank()), "an all-to-all arrived changed");
    }
  });
}

// Checks messages from rank to rank, sums, broadcasts and the thread level.
std::string CheckMessages(const comm::Runtime& runtime) {
  const comm::Communicator& world = runtime.World();
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  world.Together([&] {
    Expect(level >= MPI_THREAD_FUNNELED, "MPI lets no thread but one exist beside it",
           "Load an MPI library with thread support.");
  });
  SendAround(world, kShort);
  SendAround(world, kLong);
  Reduce(world);
  Share(world);
  const std::vector<std::string>& hosts = runtime.Hosts().Names();
  return fmt::format("{} rank{} on {} host{}, threads {}", world.Size(),
                     world.Size() == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s",
                     level == MPI_THREAD_MULTIPLE     ? "multiple"
                     : level == MPI_THREAD_SERIALIZED ? "serialized"
                                                      : "funneled");
}

// Checks of the program's own tasks: a deck that takes seconds, run on the ranks at hand.

using Keys = std::vector<std::string>;  // deck overrides "section.key=value"

// The batch suits up to 64 data ranks; every size that a layout divides is a multiple of 4.
constexpr const char* kDeck = R"(# The self-test's run: seconds on one rank.
[data]
sequence_length = 16
stride = 16
batch = 64
[tokenize]
kind = harbour
harbour_tokens = 20000
[model]
dim = 32
heads = 4
layers = 4
ffn = 64
max_positions = 16
dropout = 0.1
[optimizer]
learning_rate = 5e-3
[schedule]
steps = 12
warmup_steps = 3
[checkpoint]
every_steps = 0
[monitor]
every_steps = 1
validate_every_steps = 0
sample_tokens = 0
tensorboard = no
report = no
[generate]
prompt = the
tokens = 8
top_k = 1
)";
constexpr int kMiddle = 6;  // Resume stops after this step

// kDeck's losses on one rank in fp64. fp32 stays within 1e-6; other processors and libraries round
// differently, hence the tolerance.
constexpr std::array<double, 12> kLosses = {7.122058668, 7.078612910, 6.982400354, 6.859474039,
                                            6.733997869, 6.636097112, 6.532077255, 6.460273464,
                                            6.407843222, 6.329597659, 6.303047729, 6.296034353};
constexpr double kTolerance = 1e-4;

// Redirects world rank 0's standard output into a file while it exists.
class Screen {
 public:
  Screen(const comm::Communicator& world, const std::string& path) {
    if (!world.IsRoot()) return;
    std::fflush(stdout);
    const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    if (!file.Valid()) return;
    kept_ = dup(STDOUT_FILENO);
    dup2(file.Get(), STDOUT_FILENO);
  }
  ~Screen() {
    if (kept_ < 0) return;
    std::fflush(stdout);
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

 private:
  int kept_ = -1;
};

std::string Joined(const Keys& keys) {
  return keys.empty() ? "one rank" : fmt::format("{}", fmt::join(keys, " "));
}

Keys operator+(Keys left, const Keys& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// Layouts to test that this number of ranks permits, as deck overrides.
std::vector<Keys> Layouts(int ranks) {
  constexpr int kMostData = 64;
  if (ranks == 1) return {{}};
  const int most = ranks % 4 == 0 ? 4 : 2;  // ranks along an axis other than data
  const std::vector<std::pair<Keys, int>> all = {
      // Deck keys, and the number of ranks along all axes but data.
      {{fmt::format("grid.data={}", ranks)}, 1},
      {{"grid.sharding=parameters"}, 1},
      {{fmt::format("grid.tensor={}", most)}, most},
      {{fmt::format("grid.pipeline={}", most)}, most},
      {{"grid.context=2"}, 2},
      {{"grid.tensor=2", "grid.pipeline=2"}, 4},
      {{"grid.tensor=2", "grid.pipeline=2", "grid.sharding=optimizer"}, 4}};
  std::vector<Keys> layouts;
  for (const auto& [keys, others] : all) {
    if (ranks % others == 0 && ranks / others <= kMostData) layouts.push_back(keys);
  }
  return layouts;
}

// Runs the program's tasks on kDeck, with all files in `folder`.
class SmallRuns {
 public:
  SmallRuns(const Setting& setting, std::string folder)
      : setting_(setting), world_(setting.runtime->World()), folder_(std::move(folder)) {
    AtRoot(world_, [&] {
      std::ofstream deck(folder_ + "/deck.in");
      deck << kDeck;
      deck.close();
      Expect(!deck.fail(), folder_ + "/deck.in: cannot be written");
    });
  }

  // Tokenises the built-in corpus into a token file.
  std::string Tokenize() const {
    Run({"job.task=tokenize", "run.device=cpu"}, "", RunTokenize);
    return "the built-in corpus, 20,000 tokens";
  }

  // job.task = verify in fp64, grid against one rank: gradients, updates, losses, a resumed run.
  std::string Verify(const Keys& layout) const {
    Run(layout + Keys{"job.task=verify", "run.device=cpu", "job.output=" + folder_ + "/verify"}, "",
        RunVerify);
    return Joined(layout);
  }

  // Trains all of kDeck and compares the losses with kLosses. device: value of run.device.
  std::string Train(const Keys& layout, const std::string& name, const std::string& device) const {
    const std::string run = folder_ + "/" + name;
    Run(layout + Keys{"job.output=" + run, "run.device=" + device}, "", RunTraining);
    return fmt::format("{}: {} losses within {:.0e} of the recorded ones", Joined(layout),
                       kLosses.size(), std::max(CompareLosses(run), 1e-8));
  }

  // Trains to step kMiddle in layout `first`, resumes in layout `second`, compares the losses.
  std::string Resume(const Keys& first, const Keys& second) const {
    const std::string run = folder_ + "/resumed";
    const Keys keys = {"job.output=" + run, "run.device=cpu"};
    Run(first + keys + Keys{fmt::format("schedule.stop_at={}", kMiddle)}, "", RunTraining);
    Run(second + keys, run, RunTraining);
    CompareLosses(run);
    return fmt::format("written by {}, read by {}", Joined(first), Joined(second));
  }

  // Generates greedily in both layouts; the texts must be equal.
  std::string Generate(const Keys& first, const Keys& second) const {
    std::string text;
    for (const Keys& layout : {first, second}) {
      Run(layout + Keys{"job.task=generate", "run.device=cpu"}, folder_ + "/resumed", RunGenerate);
      AtRoot(world_, [&] {
        std::ostringstream shown;
        shown << std::ifstream(folder_ + "/screen").rdbuf();
        Expect(shown.str().starts_with("the "), "generation answered: " + shown.str());
        Expect(
            text.empty() || text == shown.str(),
            fmt::format("another text from {}: '{}', not '{}'", Joined(layout), shown.str(), text));
        text = shown.str();
      });
    }
    return fmt::format("8 tokens, the same by {} and {}", Joined(first), Joined(second));
  }

 private:
  void Run(const Keys& keys, const std::string& resume,
           const std::function<ExitCode(app::Job&)>& task) const {
    app::CommandLine line;
    line.deck = folder_ + "/deck.in";
    line.resume = resume;
    line.overrides = Keys{"data.file=" + folder_ + "/harbour.h5"} + keys;
    const Screen screen(world_, folder_ + "/screen");
    app::Job job = app::MakeJob(*setting_.runtime, line, *setting_.schema, *setting_.signals);
    const ExitCode code = task(job);
    if (code == ExitCode::kStopped) throw AgreedError(code, "stopped by a signal");
  }

  // Largest relative difference between the run's losses and kLosses, over all steps.
  double CompareLosses(const std::string& run) const {
    double most = 0;
    AtRoot(world_, [&] {
      std::ifstream records(run + "/metrics.jsonl");
      std::size_t steps = 0;
      for (std::string line; std::getline(records, line);) {
        const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
        if (record.is_discarded() || record.value("kind", "") != "step") continue;
        const auto step = record.at("step").get<std::size_t>();
        Expect(step == ++steps && step <= kLosses.size(),
               fmt::format("the records of steps are not in order: step {}", step));
        const double loss = record.at("loss").is_number() ? record.at("loss").get<double>() : NAN;
        const double difference = std::abs(loss - kLosses.at(step - 1)) / kLosses.at(step - 1);
        Expect(difference <= kTolerance,
               fmt::format("the loss of step {} is {:.7f}, recorded is {:.7f} (tolerance {:.0e})",
                           step, loss, kLosses.at(step - 1), kTolerance),
               "job.task = verify with a deck of yours tells more.");
        most = std::max(most, difference);
      }
      Expect(steps == kLosses.size(),
             fmt::format("{} steps have a record, not {}", steps, kLosses.size()));
    });
    return world_.Max(most);
  }

  const Setting& setting_;
  const comm::Communicator& world_;
  std::string folder_;
};

class Report {
 public:
  explicit Report(const Setting& setting) : world_(setting.runtime->World()), setting_(setting) {}

  // Runs a check and prints its line. needs: whether the earlier checks that it depends on passed;
  // if not, it is skipped. Returns whether it ran and passed.
  bool Check(const char* name, bool needs, const std::function<std::string()>& check) {
    const double start = Seconds();
    Begin(name);
    if (!needs) {
      End("not tried", "it needs what failed above");
      return false;
    }
    std::string detail;
    std::optional<Error> failure;
    try {
      detail = check();
    } catch (const Error& error) {
      // An error of one rank alone cannot be reported: the other ranks wait for this one.
      if (world_.Size() > 1 && dynamic_cast<const AgreedError*>(&error) == nullptr) throw;
      failure = error;
    }
    const bool stopped = world_.Max(std::int64_t{setting_.signals->Received()}) != 0;
    if (stopped || (failure && failure->Code() == ExitCode::kStopped)) {
      End("stopped", "");
      throw AgreedError(ExitCode::kStopped, "self-test: stopped by a signal");
    }
    ++(failure ? failed_ : passed_);
    End(failure ? "FAILED" : "ok",
        failure ? failure->what() : fmt::format("{} ({:.1f} s)", detail, Seconds() - start));
    return !failure;
  }
  void Say(const char* name, const std::string& text) {
    Begin(name);
    End("-", text);
  }

  ExitCode Verdict(double seconds) const {
    if (world_.IsRoot() && failed_ == 0) {
      tasks::Say("\nall {} checks passed on {} rank{}, {:.1f} s", passed_, world_.Size(),
                 world_.Size() == 1 ? "" : "s", seconds);
    } else if (world_.IsRoot()) {
      tasks::Say("\n{} of {} checks FAILED", failed_, failed_ + passed_);
    }
    return failed_ == 0 ? ExitCode::kDone : ExitCode::kFailed;
  }

 private:
  // Prints the name before the check runs: if a rank is lost, the last line says in which check.
  void Begin(const char* name) const {
    if (!world_.IsRoot()) return;
    fmt::print("{:<12}", name);
    std::fflush(stdout);
  }
  void End(const char* result, const std::string& detail) const {
    if (world_.IsRoot()) tasks::Say("{:<10}{}", result, detail);
  }

  const comm::Communicator& world_;
  const Setting& setting_;
  int passed_ = 0, failed_ = 0;
};

// Collective. Makes a new folder, which is removed when world rank 0's process ends.
std::string MakeFolder(const Setting& setting) {
  return FromRoot(setting.runtime->World(), [&] {
    const char* const temporary = std::getenv("TMPDIR");
    std::string place = setting.folder;
    if (place.empty()) place = temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary;
    std::error_code error;
    std::string path = (std::filesystem::absolute(place, error) / "trireme_self_test_XXXXXX")
                           .lexically_normal()
                           .string();
    if (mkdtemp(path.data()) == nullptr) {
      throw RunError(fmt::format("{}: no folder can be made in it: {}", place, ErrorText(errno)),
                     "Name one where you may write: trireme --self-test FOLDER.");
    }
    setting.cleaner->Folder(path);
    return path;
  });
}

void CheckGpus(const Setting& setting, const SmallRuns& runs, bool ready, Report& report) {
  if (!device::GpuBuilt()) {
    report.Say("gpu", "not built in (-DTRIREME_CUDA=ON): nothing was tried");
    return;
  }
  const comm::Communicator& world = setting.runtime->World();
  std::string why = device::WhyNoGpu();
  if (world.Max(std::int64_t{!why.empty()}) != 0) {
    report.Say("gpu", why.empty() ? "a rank sees no card: nothing was tried" : why);
    return;
  }
  report.Check("gpu", ready, [&] {
    const auto cards = static_cast<std::int64_t>(device::GpuIds().size());
    const std::string shared = setting.runtime->Node().Size() > cards ? "yes" : "no";
    return runs.Train({"run.share_device=" + shared}, "gpu", "cuda");
  });
}

void CheckAll(const Setting& setting, Report& report) {
  const comm::Runtime& runtime = *setting.runtime;
  const comm::Communicator& world = runtime.World();
  report.Check("messages", true, [&] { return CheckMessages(runtime); });
  report.Check("kernels", true, [&] { return CheckKernels(runtime); });
  std::string folder;
  bool ready = report.Check("folder", true, [&] {
    folder = MakeFolder(setting);
    return CheckFolder(world, folder);
  });
  if (!ready) {
    for (const char* name : {"hdf5", "tokens", "layout", "training", "checkpoint", "generation"}) {
      report.Check(name, false, {});
    }
    return;
  }
  report.Check("hdf5", true, [&] { return CheckHdf5(world, folder); });
  const std::vector<Keys> layouts = Layouts(world.Size());
  const SmallRuns runs(setting, folder);
  ready = report.Check("tokens", true, [&] { return runs.Tokenize(); });
  for (const Keys& layout : layouts) {
    report.Check("layout", ready, [&] { return runs.Verify(layout); });
  }
  // On one rank there is one layout: first and second are the same.
  const Keys &first = layouts.front(), &second = layouts.back();
  report.Check("training", ready, [&] { return runs.Train(first, "first", "cpu"); });
  if (layouts.size() > 1) {
    report.Check("training", ready, [&] { return runs.Train(second, "second", "cpu"); });
  }
  const bool written =
      report.Check("checkpoint", ready, [&] { return runs.Resume(first, second); });
  report.Check("generation", written, [&] { return runs.Generate(first, second); });
  CheckGpus(setting, runs, ready, report);
}

}  // namespace

Cleaner::Cleaner() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return;
  child_ = fork();
  if (child_ == 0) {
    close(ends[1]);
    WaitAndClean(ends[0]);
  }
  close(ends[0]);
  if (child_ < 0) {
    close(ends[1]);
    return;
  }
  to_child_ = ends[1];
}

Cleaner::~Cleaner() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  if (to_child_ >= 0) close(to_child_);
  if (child_ > 0) Retry([&] { return waitpid(child_, nullptr, 0); });
}

void Cleaner::Folder(const std::string& path) {
  path_ = path;
  if (to_child_ < 0) return;
  // The path is shorter than a pipe's buffer, so one write takes all of it.
  if (Retry([&] { return write(to_child_, path.data(), path.size()); }) < 0) return;
}

ExitCode RunSelfTest(const Setting& setting) {
  const double start = Seconds();
  setting.signals->Watch();
  // Warns of too few cores before the first line.
  app::PlaceThreads(*setting.runtime, device::Options{}, false);
  // Launchers forward standard error apart from standard output: the warning goes first.
  constexpr useconds_t kForwarded = 100'000;
  usleep(kForwarded);
  Report report(setting);
  CheckAll(setting, report);
  return report.Verdict(Seconds() - start);
}

}  // namespace trireme::tasks
