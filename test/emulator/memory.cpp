// Guarded memory, and what happens to accesses that a GPU would refuse.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "memory.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace emulator {

// Guarded memory, from one reserved range of addresses per kind.

namespace {

const std::size_t kPage = PageBytes();
constexpr std::size_t kGrain = 16;                      // bytes: the widest access of a thread
constexpr std::size_t kGap = std::size_t{1} << 20;      // closed, between allocations
constexpr std::size_t kFilled = std::size_t{64} << 20;  // bytes of an allocation that start as NaN
constexpr std::size_t kLargePages = std::size_t{4} << 20;  // from here on large pages pay
constexpr int kPoison = 0xFF;

std::size_t RoundUp(std::size_t bytes, std::size_t grain) {
  return (bytes + grain - 1) / grain * grain;
}

void* Pages(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

int access_depth = 0;

// Bytes around the data within their pages must be as they were filled.
void CheckCanaries(const Allocation& allocation) {
  if (!allocation.filled) return;
  const auto spoiled = [](std::uintptr_t from, std::uintptr_t to) {
    const auto* first = reinterpret_cast<const unsigned char*>(from);
    const auto* last = reinterpret_cast<const unsigned char*>(to);
    return std::any_of(first, last, [](unsigned char byte) { return byte != kPoison; });
  };
  const std::uintptr_t behind = allocation.data + allocation.bytes;
  if (spoiled(behind, allocation.end)) {
    Die(fmt::format("found at its free: an allocation of {} bytes was overrun by 1 to {} bytes",
                    allocation.bytes, allocation.end - behind));
  }
  if (allocation.bytes <= kFilled && spoiled(allocation.begin, allocation.data)) {
    Die(fmt::format("found at its free: bytes before an allocation of {} bytes were written",
                    allocation.bytes));
  }
}

}  // namespace

Memory::Memory(Kind kind) : kind_(kind) {
  std::size_t reserved = std::size_t{8} << 40;
  void* base = MAP_FAILED;
  for (; base == MAP_FAILED && reserved >= (std::size_t{1} << 32); reserved /= 2) {
    base = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED) break;
  }
  if (base == MAP_FAILED) Die("no addresses can be reserved for device memory (ulimit -v?)");
  base_ = next_ = reinterpret_cast<std::uintptr_t>(base);
  limit_ = base_ + reserved;
}

void* Memory::Allocate(std::size_t bytes) {
  WatchFaults();
  Allocation made{};
  const std::size_t length = RoundUp(RoundUp(bytes, kGrain), kPage);
  if (length + 2 * kGap > limit_ - next_) return nullptr;
  made.begin = next_ + kGap;
  made.end = made.begin + length;
  made.data = made.end - RoundUp(bytes, kGrain);
  made.bytes = bytes;
  const int access = kind_ == Kind::kDevice ? PROT_NONE : PROT_READ | PROT_WRITE;
  if (mmap(Pages(made.begin), length, access,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return nullptr;
  }
  if (length >= kLargePages) madvise(Pages(made.begin), length, MADV_HUGEPAGE);
  if (kind_ == Kind::kPinned) Fill(made);
  next_ = made.end + kGap;
  allocations_.push_back(made);
  live_bytes_ += bytes;
  return Pages(made.data);
}

bool Memory::Free(void* data) {
  Allocation* found = Holding(data, 0);
  if (found == nullptr || found->data != reinterpret_cast<std::uintptr_t>(data)) return false;
  const std::size_t length = found->end - found->begin;
  mprotect(Pages(found->begin), length, PROT_READ);
  CheckCanaries(*found);
  // Gives the pages back and keeps the addresses closed.
  mmap(Pages(found->begin), length, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  found->live = false;
  live_bytes_ -= found->bytes;
  return true;
}

Allocation* Memory::Find(std::uintptr_t address) {
  const auto after =
      std::upper_bound(allocations_.begin(), allocations_.end(), address,
                       [](std::uintptr_t a, const Allocation& b) { return a < b.begin; });
  return after == allocations_.begin() ? nullptr : &*(after - 1);
}

Allocation* Memory::Holding(const void* data, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (!Contains(address)) return nullptr;
  Allocation* found = Find(address);
  if (found == nullptr || !found->live || address < found->data) return nullptr;
  const std::size_t offset = address - found->data;
  return offset <= found->bytes && bytes <= found->bytes - offset ? found : nullptr;
}

void Memory::Fill(Allocation& allocation) {
  const std::size_t length = allocation.end - allocation.begin;
  std::memset(Pages(allocation.begin), kPoison, std::min(length, kFilled));
  const std::uintptr_t behind = allocation.data + allocation.bytes;
  std::memset(Pages(behind), kPoison, allocation.end - behind);
  allocation.filled = true;
}

void Memory::Clear(void* data, std::size_t bytes) {
  Allocation& allocation = *Holding(data, bytes);
  const bool untouched = !allocation.filled;
  const bool all = bytes == allocation.bytes;
  if (untouched && all) {
    // Pages are zero as they come from the system; bytes around the data are poisoned.
    allocation.filled = true;
    if (!allocation.open) Open(allocation);
    std::memset(Pages(allocation.begin), kPoison, allocation.data - allocation.begin);
    const std::uintptr_t behind = allocation.data + bytes;
    std::memset(Pages(behind), kPoison, allocation.end - behind);
    return;
  }
  if (!allocation.open) Open(allocation);
  std::memset(data, 0, bytes);
}

void Memory::Open(Allocation& allocation) {
  mprotect(Pages(allocation.begin), allocation.end - allocation.begin, PROT_READ | PROT_WRITE);
  if (!allocation.filled) Fill(allocation);
  allocation.open = true;
  open_.push_back(static_cast<std::size_t>(&allocation - allocations_.data()));
}

void Memory::CloseAll() {
  for (const std::size_t index : open_) {
    Allocation& allocation = allocations_[index];
    allocation.open = false;
    if (!allocation.live) continue;
    mprotect(Pages(allocation.begin), allocation.end - allocation.begin, PROT_NONE);
  }
  open_.clear();
}

Memory& DeviceMemory() {
  static Memory memory(Memory::Kind::kDevice);
  return memory;
}

Memory& PinnedMemory() {
  static Memory memory(Memory::Kind::kPinned);
  return memory;
}

bool IsDeviceMemory(const void* pointer, std::size_t bytes) {
  return DeviceMemory().Holding(pointer, bytes) != nullptr;
}

DeviceAccess::DeviceAccess() { ++access_depth; }

DeviceAccess::~DeviceAccess() {
  if (--access_depth == 0) DeviceMemory().CloseAll();
}

bool DeviceAccess::Active() { return access_depth > 0; }

void DeviceAccess::Prepare(const void* data) {
  Allocation* found = DeviceMemory().Holding(data, 0);
  if (found != nullptr && !found->open) DeviceMemory().Open(*found);
}

// Handler of SIGSEGV: opens device memory that an operation touches for the first time, and reports
// any other access.

Running running;

namespace {

constexpr int kExitStatus = 134;  // a shell's for an abort
constexpr std::size_t kHandlerStack = std::size_t{256} << 10;

struct Guarded {
  std::uintptr_t begin, end;
  const char* did;
};
constexpr int kMaxGuarded = 8;
Guarded guarded[kMaxGuarded];
int guarded_count = 0;
struct sigaction previous;

[[noreturn]] void Leave(const char* message, int length) {
  const auto written = write(STDERR_FILENO, message, static_cast<std::size_t>(length));
  static_cast<void>(written);
  _exit(kExitStatus);
}

// "kernel 17 <<<(4,1,1), (32,1,1)>>>, block (1,0,0), thread (3,0,0)" or "host code".
void DescribeRunning(char* text, std::size_t room) {
  if (running.what == nullptr) {
    std::snprintf(text, room, "host code");
  } else if (std::strcmp(running.what, "kernel") != 0) {
    std::snprintf(text, room, "%s (operation %llu)", running.what,
                  static_cast<unsigned long long>(running.number));
  } else {
    std::snprintf(text, room,
                  "a kernel (operation %llu, blocks (%u,%u,%u) of (%u,%u,%u) threads), in block "
                  "(%u,%u,%u), thread (%u,%u,%u),",
                  static_cast<unsigned long long>(running.number), gridDim.x, gridDim.y, gridDim.z,
                  blockDim.x, blockDim.y, blockDim.z, blockIdx.x, blockIdx.y, blockIdx.z,
                  threadIdx.x, threadIdx.y, threadIdx.z);
  }
}

[[noreturn]] void Report(Memory& memory, const char* kind, std::uintptr_t address) {
  char who[256], text[640];
  DescribeRunning(who, sizeof(who));
  const Allocation* found = memory.Find(address);
  const auto end = found == nullptr ? 0 : found->data + found->bytes;
  // In the gap between two, whichever is nearer.
  const Allocation* next = memory.Find(address + (std::uintptr_t{1} << 20));
  const bool before = found == nullptr || (address >= found->end && next != found && next->live &&
                                           next->data - address < address - end);
  int length = 0;
  if (before) {
    length = std::snprintf(text, sizeof(text),
                           "emulated CUDA: %s touched %llu bytes before %s of %llu bytes\n", who,
                           static_cast<unsigned long long>(next->data - address), kind,
                           static_cast<unsigned long long>(next->bytes));
  } else if (!found->live) {
    length = std::snprintf(text, sizeof(text),
                           "emulated CUDA: use after free: %s touched byte %lld of %s of %llu "
                           "bytes that had been freed\n",
                           who, static_cast<long long>(address - found->data), kind,
                           static_cast<unsigned long long>(found->bytes));
  } else if (address >= found->end) {
    length = std::snprintf(text, sizeof(text),
                           "emulated CUDA: %s overran %s of %llu bytes: touched byte %llu\n", who,
                           kind, static_cast<unsigned long long>(found->bytes),
                           static_cast<unsigned long long>(address - found->data));
  } else {
    length = std::snprintf(text, sizeof(text),
                           "emulated CUDA: host code touched device memory: byte %lld of an "
                           "allocation of %llu bytes\n",
                           static_cast<long long>(address - found->data),
                           static_cast<unsigned long long>(found->bytes));
  }
  Leave(text, length);
}

void OnFault(int signal, siginfo_t* information, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(information->si_addr);
  Memory& device = DeviceMemory();
  if (device.Contains(address)) {
    Allocation* found = device.Find(address);
    const bool inside = found != nullptr && found->live && address < found->end;
    if (inside && DeviceAccess::Active() && !found->open) {
      device.Open(*found);
      return;
    }
    Report(device, "an allocation of device memory", address);
  }
  if (PinnedMemory().Contains(address)) Report(PinnedMemory(), "page-locked memory", address);
  char who[256], text[512];
  DescribeRunning(who, sizeof(who));
  for (int i = 0; i < guarded_count; ++i) {
    if (address < guarded[i].begin || address >= guarded[i].end) continue;
    Leave(text, std::snprintf(text, sizeof(text), "emulated CUDA: %s %s\n", who, guarded[i].did));
  }
  if (running.what != nullptr) {
    Leave(text, std::snprintf(text, sizeof(text),
                              "emulated CUDA: %s touched %p, which is no memory, or is an address "
                              "that the access is not aligned to\n",
                              who, information->si_addr));
  }
  // Not ours: as it would have been.
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, information, context);
  } else {
    sigaction(signal, &previous, nullptr);
  }
}

}  // namespace

void WatchFaults() {
  struct sigaction now;
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == OnFault) return;
  previous = now;
  // A stack of the handler's own: the thread's may have overflowed.
  static void* stack = nullptr;
  if (stack == nullptr) {
    stack =
        mmap(nullptr, kHandlerStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = kHandlerStack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, nullptr);
}

void NoteGuarded(std::uintptr_t begin, std::uintptr_t end, const char* did) {
  if (guarded_count == kMaxGuarded) Die("more guarded ranges than planned");
  guarded[guarded_count++] = {begin, end, did};
}

void Die(const std::string& message) {
  std::fflush(stdout);
  const std::string line = "emulated CUDA: " + message + "\n";
  Leave(line.data(), static_cast<int>(line.size()));
}

}  // namespace emulator
