// Launches: checks the shape and the arguments, and runs the blocks one after another, in an order
// drawn by the dice, each in freshly spoilt shared memory.
#include "kernel.hpp"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "block.hpp"
#include "fault.hpp"
#include "memory.hpp"
#include "queue.hpp"
#include "settings.hpp"
#include "static_shared.hpp"
#include "stream.hpp"
#include "trireme/device/cuda/launch.cuh"

namespace emulator {
namespace {

const std::size_t kPage = PageBytes();
constexpr std::size_t kAlignment = 128;  // bytes, of dynamic shared memory
constexpr std::size_t kCanary = 128;     // bytes at least, behind it
constexpr int kPoison = 0xFF, kMark = 0xA5;

// Of cards and kernels.
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

}  // namespace emulator
