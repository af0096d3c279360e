// The order of the checks, a line for each, the verdict, and the folder for their files.
#include "trireme/tasks/selftest.hpp"

#include <fcntl.h>
#include <fmt/format.h>
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
#include <numeric>
#include <optional>
#include <system_error>
#include <vector>

#include "checks.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::tasks {

// The waiting process: reads the folder's path, then the end of the pipe, which comes with the end
// of the other process.

namespace {

[[noreturn]] void WaitAndClean(int pipe_end) {
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) {
    std::signal(signal, SIG_IGN);
  }
  // A launcher waits until nobody holds the streams that it reads.
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
  // Other ranks may be about to write their last files.
  constexpr int kTries = 20;
  constexpr useconds_t kPause = 100'000;
  std::error_code error;
  for (int i = 0; i < kTries && !path.empty() && std::filesystem::exists(path, error); ++i) {
    if (i > 0) usleep(kPause);
    std::filesystem::remove_all(path, error);
  }
  _exit(0);
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
  // Shorter than what a pipe takes at once.
  if (Retry([&] { return write(to_child_, path.data(), path.size()); }) < 0) return;
}

// Files: one folder for all ranks, and HDF5 through MPI-IO.

namespace {

constexpr hsize_t kEach = 50'000;  // elements of a rank

std::int64_t ValueAt(hsize_t index) { return static_cast<std::int64_t>(index) * 7 - 3; }

void Good(herr_t status, const char* what) {
  Expect(status >= 0, fmt::format("HDF5: {} failed", what),
         "The file system may refuse MPI-IO, or HDF5 stand on another MPI library (ldd tells).");
}

// Handles of one parallel file, closed in order. All calls are collective.
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
  herr_t Write(hsize_t begin, const std::vector<std::int64_t>& values) {
    const hid_t memory = Choose(begin);
    const herr_t status =
        H5Dwrite(set_, H5T_NATIVE_INT64, memory, space_, transfer_, values.data());
    H5Sclose(memory);
    return status;
  }
  herr_t Read(hsize_t begin, std::vector<std::int64_t>& values) {
    const hid_t memory = Choose(begin);
    const herr_t status = H5Dread(set_, H5T_NATIVE_INT64, memory, space_, transfer_, values.data());
    H5Sclose(memory);
    return status;
  }

 private:
  // Elements [begin, begin + kEach) of the file; returns their place in memory.
  hid_t Choose(hsize_t begin) const {
    const hsize_t count = kEach;
    H5Sselect_hyperslab(space_, H5S_SELECT_SET, &begin, nullptr, &count, nullptr);
    return H5Screate_simple(1, &count, nullptr);
  }
  hid_t access_, transfer_;
  hid_t space_ = -1, file_ = -1, set_ = -1;
};

}  // namespace

std::string CheckFolder(const comm::Communicator& world, const std::string& folder) {
  constexpr double kLeastFree = 64.0 * (1 << 20), kMib = 1 << 20;
  const std::string path = folder + "/seen";
  world.Together([&] {
    if (!world.IsRoot()) return;
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

std::string CheckHdf5(const comm::Communicator& world, const std::string& folder) {
  const std::string path = folder + "/parallel.h5";
  const auto rank = static_cast<hsize_t>(world.Rank()), size = static_cast<hsize_t>(world.Size());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  std::vector<std::int64_t> values(kEach);
  {
    ParallelFile file(world, path, true);
    world.Together([&] { Good(file.Open() ? 0 : -1, "making a parallel file"); });
    for (hsize_t i = 0; i < kEach; ++i) values[i] = ValueAt(rank * kEach + i);
    const herr_t status = file.Write(rank * kEach, values);
    world.Together([&] { Good(status, "a collective write"); });
  }
  world.Barrier();
  ParallelFile file(world, path, false);
  world.Together([&] { Good(file.Open() ? 0 : -1, "opening a parallel file"); });
  const hsize_t begin = (rank + 1) % size * kEach;
  std::fill(values.begin(), values.end(), 0);
  const herr_t status = file.Read(begin, values);
  world.Together([&] {
    Good(status, "a collective read");
    for (hsize_t i = 0; i < kEach; ++i) {
      Expect(values[i] == ValueAt(begin + i),
             "HDF5: what another rank wrote is read as something "
             "else");
    }
  });
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{}, {} KiB by each rank", major, minor, release,
                     kEach * sizeof(std::int64_t) / 1024);
}

// Kernels of this CPU, each against its definition computed in fp64.

namespace {

using kernels::Form;
using kernels::Matrix;

// Rounding of sums of this length in fp32, and of operands in bf16, relative to the largest
// element.
constexpr double kFp32 = 1e-5, kBf16 = 2e-2, kFp64 = 1e-13;

// Numbers in (-1, 1), the same everywhere.
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

// Largest difference of a [rows, columns] to `wanted`, relative to the largest wanted element.
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
  std::vector<double> wanted(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(a[static_cast<std::size_t>(i * k + l)]) *
               static_cast<double>(b[static_cast<std::size_t>(l * n + j)]);
      }
      wanted[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  std::vector<T> turned(b.size());  // b transposed: [n, k]
  for (std::int64_t l = 0; l < k; ++l) {
    for (std::int64_t j = 0; j < n; ++j) {
      turned[static_cast<std::size_t>(j * k + l)] = b[static_cast<std::size_t>(l * n + j)];
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

// Published vectors of the generator (Salmon et al. 2011), without which no run is reproducible.
void CheckRandomNumbers() {
  Expect(
      Philox({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      "random numbers are not those of Philox4x32-10");
  Expect(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
             PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
         "random numbers are not those of Philox4x32-10");
}

// softmax(q k^T / sqrt(d)) v with a causal mask, in fp64.
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
      for (std::int64_t key = first; key <= row; ++key) {
        double score = 0;
        for (std::int64_t i = 0; i < d; ++i) score += at(row, head * d + i) * at(key, keys + i);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
        sum += weight;
        for (std::int64_t i = 0; i < d; ++i) {
          out[static_cast<std::size_t>(row * heads * d + head * d + i)] +=
              weight * at(key, values + i);
        }
      }
      for (std::int64_t i = 0; i < d; ++i) {
        out[static_cast<std::size_t>(row * heads * d + head * d + i)] /= sum;
      }
    }
  }
  return out;
}

void CheckAttention(const device::Stream& stream) {
  kernels::AttentionShape shape;
  shape.sequences = 2;
  shape.length = 70;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 24;
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

}  // namespace

std::string CheckKernels(const comm::Runtime& runtime) {
  // Multiples of no tile, and one row, as generation has it.
  const std::vector<Shape> shapes = {{97, 131, 259}, {1, 200, 120}, {64, 64, 64}};
  const std::string bf16 = device::Bf16Instructions();
  runtime.World().Together([&] {
    CheckRandomNumbers();
    device::Stream plain, canonical, narrow;
    canonical.canonical = true;
    narrow.bf16 = true;
    for (const Shape& shape : shapes) {
      CheckProduct<float>(plain, shape, kFp32, "fp32");
      CheckProduct<float>(canonical, shape, kFp32, "canonical");
      CheckProduct<double>(plain, shape, kFp64, "fp64");
      if (!bf16.empty()) CheckProduct<float>(narrow, shape, kBf16, "bf16");
    }
    CheckAttention(plain);
  });
  return fmt::format("{}; products in fp32, fp64, canonical{}; attention", device::InstructionSet(),
                     bf16.empty() ? "" : ", bf16 (" + bf16 + ")");
}

// MPI: does each transfer that the program stands on bring what was sent?

namespace {

constexpr int kShort = 10,
              kLong = 200'000;  // elements: eager messages and those that are announced

const char* NameOfLevel(int level) {
  if (level == MPI_THREAD_MULTIPLE) return "multiple";
  if (level == MPI_THREAD_SERIALIZED) return "serialized";
  return level == MPI_THREAD_FUNNELED ? "funneled" : "single";
}

std::int64_t Value(int rank, int i) { return std::int64_t{rank} * 1'000'003 + i; }

// Each rank sends to the next one at every distance that is a power of two.
void SendAround(const comm::Communicator& world, int count) {
  const int size = world.Size(), rank = world.Rank();
  std::vector<std::int64_t> mine(static_cast<std::size_t>(count)), theirs(mine.size());
  for (int i = 0; i < count; ++i) mine[static_cast<std::size_t>(i)] = Value(rank, i);
  for (int distance = 1; distance < size || distance == 1; distance *= 2) {
    const int to = (rank + distance) % size, from = (rank - distance % size + size) % size;
    std::fill(theirs.begin(), theirs.end(), -1);
    MPI_Sendrecv(mine.data(), count, MPI_INT64_T, to, distance, theirs.data(), count, MPI_INT64_T,
                 from, distance, world.Handle(), MPI_STATUS_IGNORE);
    world.Together([&] {
      for (int i = 0; i < count; ++i) {
        Expect(theirs[static_cast<std::size_t>(i)] == Value(from, i),
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
    for (int i = 0; i < kLong; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Expect(values[at] == static_cast<double>(all) + static_cast<double>(i) * size,
             "an all-reduce in fp64 gave a wrong sum");
      Expect(floats[at] == static_cast<float>(all + size),
             "an all-reduce in fp32 gave a wrong sum");
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
  for (int i = 0; i < size; ++i) to_all[static_cast<std::size_t>(i)] = Value(world.Rank(), i);
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

}  // namespace

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
                     NameOfLevel(level));
}

void Expect(bool condition, const std::string& what, const std::string& hint) {
  if (!condition) throw RunError(what, hint);
}

namespace {

class Report {
 public:
  explicit Report(const Setting& setting) : world_(setting.runtime->World()), setting_(setting) {}

  // Runs a check and prints its line. Returns whether it passed; false without running it if an
  // earlier one failed that it `needs`.
  bool Check(const char* name, bool needs, const std::function<std::string()>& check) {
    const double start = Seconds();
    Begin(name);
    if (!needs) {
      End("not tried", "it needs what failed above");
      return false;
    }
    std::string detail;
    const std::optional<Error> failure = Failure(check, detail);
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
    if (world_.IsRoot()) {
      if (failed_ == 0) {
        fmt::print("\nall {} checks passed on {} rank{}, {:.1f} s\n", passed_, world_.Size(),
                   world_.Size() == 1 ? "" : "s", seconds);
      } else {
        fmt::print("\n{} of {} checks FAILED\n", failed_, failed_ + passed_);
      }
      std::fflush(stdout);
    }
    return failed_ == 0 ? ExitCode::kDone : ExitCode::kFailed;
  }

 private:
  // An error of one rank among several meets no handler here: the others wait for it.
  std::optional<Error> Failure(const std::function<std::string()>& check,
                               std::string& detail) const {
    if (world_.Size() > 1) {
      try {
        detail = check();
        return std::nullopt;
      } catch (const AgreedError& error) {
        return error;
      }
    }
    try {
      detail = check();
      return std::nullopt;
    } catch (const Error& error) {
      return error;
    }
  }

  // At once, so that the last line names what a lost rank was in.
  void Begin(const char* name) const {
    if (!world_.IsRoot()) return;
    fmt::print("{:<12}", name);
    std::fflush(stdout);
  }
  void End(const char* result, const std::string& detail) const {
    if (!world_.IsRoot()) return;
    fmt::print("{:<10}{}\n", result, detail);
    std::fflush(stdout);
  }

  const comm::Communicator& world_;
  const Setting& setting_;
  int passed_ = 0, failed_ = 0;
};

// Collective. A new folder, which goes with this process of world rank 0.
std::string MakeFolder(const Setting& setting) {
  const comm::Communicator& world = setting.runtime->World();
  std::string path;
  world.Together([&] {
    if (!world.IsRoot()) return;
    const char* const temporary = std::getenv("TMPDIR");
    std::string place = setting.folder;
    if (place.empty()) place = temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary;
    std::error_code error;
    path = (std::filesystem::absolute(place, error) / "trireme_self_test_XXXXXX")
               .lexically_normal()
               .string();
    if (mkdtemp(path.data()) == nullptr) {
      throw RunError(fmt::format("{}: no folder can be made in it: {}", place, ErrorText(errno)),
                     "Name one where you may write: trireme --self-test FOLDER.");
    }
    setting.cleaner->Folder(path);
  });
  return world.Broadcast(path);
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
  if (ready) report.Check("hdf5", true, [&] { return CheckHdf5(world, folder); });
  if (!ready) {
    for (const char* name : {"hdf5", "tokens", "layout", "training", "checkpoint", "generation"}) {
      report.Check(name, false, {});
    }
    return;
  }
  const std::vector<Keys> layouts = Layouts(world.Size());
  const SmallRuns runs(setting, folder);
  ready = report.Check("tokens", true, [&] { return runs.Tokenize(); });
  for (const Keys& layout : layouts) {
    report.Check("layout", ready, [&] { return runs.Verify(layout); });
  }
  // On one rank: the same layout twice.
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

ExitCode RunSelfTest(const Setting& setting) {
  const double start = Seconds();
  setting.signals->Watch();
  Report report(setting);
  CheckAll(setting, report);
  return report.Verdict(Seconds() - start);
}

}  // namespace trireme::tasks
