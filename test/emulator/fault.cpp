// Handler of SIGSEGV: opens device memory that an operation touches for the first time, and reports
// any other access.
#include "fault.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "memory.hpp"
#include "stream.hpp"

namespace emulator {

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
