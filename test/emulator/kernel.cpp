// Launches: checks the shape and the arguments, and runs the blocks one after another, in an order
// drawn by the dice, each in freshly spoilt shared memory.
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel.hpp"
#include "memory.hpp"
#include "settings.hpp"
#include "stream.hpp"
#include "trireme/device/cuda/launch.cuh"
#include "trireme/device/cuda/matrix.cuh"

namespace emulator {

// Static shared memory: addresses of the variables of all kernels, and filling those of one with
// NaN.

// Learns which variables a kernel uses by looking at their contents after a block.
class StaticShared {
 public:
  static StaticShared& The();
  void Spoil(const void* kernel) const;  // before a block
  // Behind the first block of a launch; now and then, and when the kernel is new.
  void Learn(const void* kernel);

 private:
  struct Variable {
    unsigned char* data;
    std::size_t bytes;
  };
  StaticShared();
  std::vector<Variable> variables_;                                 // of the whole program
  std::unordered_map<const void*, std::vector<std::size_t>> used_;  // by kernel
};

// Static shared memory: __shared__ gives a variable a tag that is part of its symbol, and the
// program's own symbol table has its address. In a stripped program nothing is filled.

namespace {

constexpr std::string_view kTag = "B15emulated_shared";
constexpr int kPoison = 0xFF;
constexpr std::uint32_t kLearnOneIn = 16;  // launches of a kernel that is known

// By how much the program lies above the addresses in its file.
std::uintptr_t LoadOffset() {
  std::uintptr_t offset = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* information, std::size_t, void* result) {
        *static_cast<std::uintptr_t*>(result) = information->dlpi_addr;
        return 1;  // the first is the program
      },
      &offset);
  return offset;
}

// The program's file, mapped for good; empty where it cannot be read.
std::string_view ProgramFile() {
  const int descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  struct stat status {};
  void* mapped = MAP_FAILED;
  if (fstat(descriptor, &status) == 0) {
    mapped = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE,
                  descriptor, 0);
  }
  close(descriptor);
  if (mapped == MAP_FAILED) return {};
  return {static_cast<const char*>(mapped), static_cast<std::size_t>(status.st_size)};
}

template <typename T>
T At(std::string_view file, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= file.size()) std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

}  // namespace

StaticShared& StaticShared::The() {
  static StaticShared shared;
  return shared;
}

StaticShared::StaticShared() {
  const std::string_view file = ProgramFile();
  const std::uintptr_t offset = LoadOffset();
  const auto header = At<ElfW(Ehdr)>(file, 0);
  const auto section = [&](std::size_t number) {
    return At<ElfW(Shdr)>(file, header.e_shoff + number * header.e_shentsize);
  };
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const auto symbols = section(i);
    if (symbols.sh_type != SHT_SYMTAB) continue;
    const auto names = section(symbols.sh_link);
    for (std::size_t at = 0; at + sizeof(ElfW(Sym)) <= symbols.sh_size; at += sizeof(ElfW(Sym))) {
      const auto symbol = At<ElfW(Sym)>(file, symbols.sh_offset + at);
      const std::size_t name = names.sh_offset + symbol.st_name;
      if ((symbol.st_info & 0xf) != STT_OBJECT || name >= file.size()) continue;
      if (std::string_view(file.data() + name).find(kTag) == std::string_view::npos) continue;
      variables_.push_back({reinterpret_cast<unsigned char*>(offset + symbol.st_value),
                            static_cast<std::size_t>(symbol.st_size)});
    }
  }
  for (const Variable& variable : variables_) std::memset(variable.data, kPoison, variable.bytes);
}

void StaticShared::Spoil(const void* kernel) const {
  const auto found = used_.find(kernel);
  if (found == used_.end()) return;
  for (const std::size_t i : found->second) {
    std::memset(variables_[i].data, kPoison, variables_[i].bytes);
  }
}

void StaticShared::Learn(const void* kernel) {
  const auto [entry, is_new] = used_.try_emplace(kernel);
  if (!is_new && TheDice().Below(kLearnOneIn) != 0) return;
  std::vector<std::size_t>& used = entry->second;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    const bool untouched = std::all_of(variable.data, variable.data + variable.bytes,
                                       [](unsigned char byte) { return byte == kPoison; });
    if (!untouched && std::find(used.begin(), used.end(), i) == used.end()) used.push_back(i);
  }
}

namespace {

const std::size_t kPage = PageBytes();
constexpr std::size_t kAlignment = 128;  // bytes, of dynamic shared memory
constexpr std::size_t kCanary = 128;     // bytes at least, behind it
constexpr int kMark = 0xA5;

// Dynamic shared memory that a kernel may take on a card, in bytes, by card and kernel.
std::map<std::pair<int, const void*>, std::size_t>& Allowances() {
  static std::map<std::pair<int, const void*>, std::size_t> allowances;
  return allowances;
}

// One block's dynamic shared memory, its canary, and a closed page.
class SharedBuffer {
 public:
  static SharedBuffer& The() {
    static SharedBuffer buffer;
    return buffer;
  }
  void* Data() const { return data_; }
  void Spoil(std::size_t bytes) {
    bytes_ = bytes;
    data_ = end_ - (bytes + kCanary + kAlignment - 1) / kAlignment * kAlignment;
    std::memset(data_, kPoison, bytes);
    std::memset(data_ + bytes, kMark, static_cast<std::size_t>(end_ - data_) - bytes);
  }
  void Check() const {
    for (const unsigned char* byte = data_ + bytes_; byte < end_; ++byte) {
      if (*byte == kMark) continue;
      Die(
          fmt::format("a kernel overran its {} bytes of dynamic shared memory: byte {} is written "
                      "(operation {}, block ({},{},{}))",
                      bytes_, byte - data_, running.number, blockIdx.x, blockIdx.y, blockIdx.z));
    }
  }

 private:
  SharedBuffer() {
    const std::size_t room = (kSharedLimit + 2 * kCanary + kPage - 1) / kPage * kPage;
    void* memory =
        mmap(nullptr, room + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) Die("no memory for a block's shared memory");
    end_ = static_cast<unsigned char*>(memory) + room;
    mprotect(end_, kPage, PROT_NONE);
    const auto guard = reinterpret_cast<std::uintptr_t>(end_);
    NoteGuarded(guard, guard + kPage, "overran the block's dynamic shared memory");
    data_ = end_;
  }
  unsigned char* data_;
  unsigned char* end_;
  std::size_t bytes_ = 0;
};

// Visits 0 .. count - 1 in steps of a stride that has no factor in common with count.
class Shuffled {
 public:
  explicit Shuffled(std::uint64_t count) : count_(count) {
    const auto end = static_cast<std::uint32_t>(count);
    next_ = TheDice().Below(end);
    do {
      stride_ = 1 + TheDice().Below(end);
    } while (std::gcd(stride_, count) != 1);
  }
  std::uint64_t Next() {
    next_ = (next_ + stride_) % count_;
    return next_;
  }

 private:
  std::uint64_t count_, next_, stride_;
};

struct Shape {
  const void* kernel;
  dim3 blocks, threads;
  std::size_t shared_bytes;
};

void RunGrid(const Shape& shape, const std::function<void()>& thread) {
  gridDim = shape.blocks;
  blockDim = shape.threads;
  ShapeBlock(blockDim.x, blockDim.y, blockDim.z);
  const std::uint64_t count = std::uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  Shuffled order(count);
  SharedBuffer& shared = SharedBuffer::The();
  StaticShared& fixed = StaticShared::The();
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t number = order.Next();
    blockIdx.x = static_cast<unsigned>(number % gridDim.x);
    blockIdx.y = static_cast<unsigned>(number / gridDim.x % gridDim.y);
    blockIdx.z = static_cast<unsigned>(number / gridDim.x / gridDim.y);
    shared.Spoil(shape.shared_bytes);
    fixed.Spoil(shape.kernel);
    RunBlock(thread);
    shared.Check();
    if (i == 0) fixed.Learn(shape.kernel);
  }
  fixed.Spoil(shape.kernel);
}

bool Fits(dim3 size, std::uint64_t x, std::uint64_t y, std::uint64_t z) {
  return size.x >= 1 && size.y >= 1 && size.z >= 1 && size.x <= x && size.y <= y && size.z <= z;
}

cudaError_t CheckShape(const Shape& shape) {
  const dim3& threads = shape.threads;
  if (!Fits(shape.blocks, 0x7fffffff, 65535, 65535) || !Fits(threads, 1024, 1024, 64) ||
      std::uint64_t{threads.x} * threads.y * threads.z > kMaxThreads ||
      std::uint64_t{shape.blocks.x} * shape.blocks.y * shape.blocks.z > 0xffffffffu) {
    return Refuse(cudaErrorInvalidConfiguration,
                  fmt::format("a kernel cannot run as ({},{},{}) blocks of ({},{},{}) threads",
                              shape.blocks.x, shape.blocks.y, shape.blocks.z, threads.x, threads.y,
                              threads.z));
  }
  if (shape.shared_bytes > SharedAllowance(shape.kernel)) {
    return Refuse(cudaErrorInvalidValue,
                  fmt::format("a kernel is launched with {} bytes of dynamic shared memory, but "
                              "may have {} (cudaFuncSetAttribute raises that)",
                              shape.shared_bytes, SharedAllowance(shape.kernel)));
  }
  return cudaSuccess;
}

}  // namespace

std::size_t SharedAllowance(const void* kernel) {
  const auto found = Allowances().find({CurrentDevice(), kernel});
  return found == Allowances().end() ? kSharedWithoutAsking : found->second;
}

void SetSharedAllowance(const void* kernel, std::size_t bytes) {
  Allowances()[{CurrentDevice(), kernel}] = bytes;
}

void* DynamicSharedMemory() { return SharedBuffer::The().Data(); }

cudaError_t QueueKernel(cudaStream_t stream, const void* kernel, dim3 blocks, dim3 threads,
                        std::size_t shared_bytes, const void* const* pointers, int pointer_count,
                        std::function<void()> thread) {
  const Shape shape{kernel, blocks, threads, shared_bytes};
  const cudaError_t wrong = CheckShape(shape);
  if (wrong != cudaSuccess) return wrong;
  std::vector<const void*> opened;
  for (int i = 0; i < pointer_count; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointers[i]);
    if (DeviceMemory().Contains(address)) {
      opened.push_back(pointers[i]);
    } else if (pointers[i] != nullptr && !PinnedMemory().Contains(address)) {
      Die(fmt::format("pointer argument {} of a kernel, {}, is no address of device memory", i,
                      pointers[i]));
    }
  }
  const auto run = [shape, opened = std::move(opened), thread = std::move(thread)] {
    for (const void* data : opened) DeviceAccess::Prepare(data);
    running.what = "kernel";
    RunGrid(shape, thread);
    return true;
  };
  return Enqueue(stream, run, {.kind = Label::Kind::kKernel, .kernel = kernel});
}

// Matrices of a warp by the layouts of PTX's documents, and copies that reach shared memory as late
// as they may.

namespace {

using Kind = MatrixRequest::Kind;
constexpr int kLanes = 32, kBanks = 32, kBankBytes = 4, kRowBytes = 16, kRows = 8, kMatrices = 4;

MatrixLoads loads;

const MatrixRequest& Request(std::uint64_t address) {
  return *reinterpret_cast<const MatrixRequest*>(address);
}

float Half(unsigned word, int half) {
  return std::bit_cast<float>(half == 0 ? word << 16 : word & 0xFFFF0000u);
}

// Element [row][column] of each lane's registers, as MultiplyMatrices has it.
void Multiply(const std::uint64_t (&requests)[kLanes]) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const MatrixRequest& request = Request(requests[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) {
        a[group + i % 2 * 8][pair + i / 2 * 8 + half] = Half(request.a[i], half);
      }
      for (int i = 0; i < 2; ++i) b[pair + i * 8 + half][group] = Half(request.b[i], half);
    }
  }
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row) {
    for (int inner = 0; inner < 16; ++inner) {
      for (int column = 0; column < 8; ++column)
        sums[row][column] += a[row][inner] * b[inner][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float* d = Request(requests[lane]).d;
    for (int i = 0; i < 4; ++i) d[i] += sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

// Rows of one matrix in the same bank take one turn each.
void CountTurns(const std::uint64_t (&requests)[kLanes], int matrix) {
  int rows[kBanks * kBankBytes / kRowBytes] = {};
  for (int row = 0; row < kRows; ++row) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(Request(requests[matrix * kRows + row]).row);
    if (address % kRowBytes != 0) {
      Die(fmt::format("a row of a matrix begins at {:#x}, not on a boundary of 16 bytes", address));
    }
    ++rows[address / kRowBytes % std::size(rows)];
  }
  ++loads.turns;
  loads.more += *std::max_element(std::begin(rows), std::end(rows)) - 1;
}

void Load(const std::uint64_t (&requests)[kLanes], bool transposed) {
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
    CountTurns(requests, matrix);
    unsigned short elements[kRows][kRows];
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(elements[row], Request(requests[matrix * kRows + row]).row, kRowBytes);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int group = lane / 4, pair = lane % 4 * 2;
      const unsigned low = transposed ? elements[pair][group] : elements[group][pair];
      const unsigned high = transposed ? elements[pair + 1][group] : elements[group][pair + 1];
      Request(requests[lane]).to[matrix] = low | high << 16;
    }
  }
}

struct Copy {
  void* shared;
  const void* global;
  bool inside;
  int group;
};
struct Copies {
  std::vector<Copy> under_way;
  int groups = 0;  // closed ones
};
Copies copies[kMaxThreads];

}  // namespace

void DoForLanes(const std::uint64_t (&requests)[kLanes]) {
  const Kind kind = Request(requests[0]).kind;
  for (const std::uint64_t request : requests) {
    if (Request(request).kind != kind)
      Die("lanes of one warp ask for different operations on matrices");
  }
  if (kind == Kind::kMultiply) return Multiply(requests);
  Load(requests, kind == Kind::kLoadTransposed);
}

void DoInWarp(MatrixRequest& request) {
  MeetInWarp(WarpOperation::kMatrix, ~0u, reinterpret_cast<std::uint64_t>(&request), 0);
}

void BeginCopy(void* shared, const void* global, bool inside) {
  using trireme::device::cuda::kCopyBytes;
  const auto to = reinterpret_cast<std::uintptr_t>(shared);
  const auto from = reinterpret_cast<std::uintptr_t>(global);
  if (to % kCopyBytes != 0 || from % kCopyBytes != 0) {
    Die(fmt::format("a copy from {:#x} to {:#x} is not on boundaries of 16 bytes", from, to));
  }
  std::memset(shared, kPoison, kCopyBytes);
  Copies& mine = copies[current_thread];
  mine.under_way.push_back({shared, global, inside, mine.groups});
}

void CloseCopies() { ++copies[current_thread].groups; }

void AwaitCopies(int pending) {
  if (mutations_watched && IsOmitted(Mutation::kCopyWait, __builtin_return_address(0))) return;
  Copies& mine = copies[current_thread];
  const auto done = [&](const Copy& copy) {
    if (copy.group >= mine.groups - pending) return false;
    if (copy.inside) {
      std::memcpy(copy.shared, copy.global, trireme::device::cuda::kCopyBytes);
    } else {
      std::memset(copy.shared, 0, trireme::device::cuda::kCopyBytes);
    }
    return true;
  };
  std::erase_if(mine.under_way, done);
}

void EndCopies(int thread) {
  Copies& mine = copies[thread];
  if (!mine.under_way.empty()) {
    Die(fmt::format("a thread of a kernel ends with {} copies to shared memory under way",
                    mine.under_way.size()));
  }
  mine.groups = 0;
}

MatrixLoads CountedMatrixLoads() { return loads; }

}  // namespace emulator
