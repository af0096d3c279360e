#include "allocations.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

extern "C" {
extern char __executable_start;  // the linker's: where the program's own code lies
extern char etext;
void* __real_malloc(std::size_t bytes);
void* __real_calloc(std::size_t count, std::size_t bytes);
void* __real_realloc(void* old, std::size_t bytes);
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes);
}

namespace trireme::test {

namespace {

constexpr int kFrames = 5;  // of the program that are kept, the innermost first
constexpr int kDepth = 40;
constexpr std::size_t kMost = 20000;  // stacks kept; more are only counted

using Stack = std::array<void*, kFrames>;

// State that operator new cannot be given as an argument.
std::atomic<bool> counting{false};
std::atomic<std::size_t> allocations{0};
std::array<Stack, kMost> stacks;
thread_local bool inside = false;

bool IsOwn(const void* address) {
  return address >= &__executable_start && address < static_cast<const void*>(&etext);
}

// Works on behalf of whoever called it.
bool IsHelper(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  return std::strstr(info.dli_fname, "libstdc++") != nullptr ||
         std::strstr(info.dli_fname, "libfmt") != nullptr;
}

// address: in the function that allocates.
void Note(const void* address) {
  if (!counting || inside) return;
  inside = true;
  void* frames[kDepth];
  const int depth = backtrace(frames, kDepth);
  int caller = static_cast<int>(std::find(frames, frames + depth, address) - frames);
  while (caller < depth && !IsOwn(frames[caller]) && IsHelper(frames[caller])) ++caller;
  if (caller < depth && IsOwn(frames[caller])) {
    const std::size_t number = allocations++;
    if (number < kMost) {
      Stack& stack = stacks[number];
      stack = {};
      for (int kept = 0; caller < depth && kept < kFrames; ++caller) {
        if (IsOwn(frames[caller])) stack[static_cast<std::size_t>(kept++)] = frames[caller];
      }
    }
  }
  inside = false;
}

void* NewMemory(std::size_t bytes, const void* address) {
  Note(address);
  if (void* memory = __real_malloc(std::max<std::size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}

void* NewAligned(std::size_t bytes, std::align_val_t alignment, const void* address) {
  Note(address);
  void* memory = nullptr;
  if (__real_posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes) == 0) {
    return memory;
  }
  throw std::bad_alloc();
}

// The program's load address: what its addresses have more than its file's.
std::uintptr_t LoadBias() {
  Dl_info info;
  link_map* program = nullptr;
  const int found =
      dladdr1(&__executable_start, &info, reinterpret_cast<void**>(&program), RTLD_DL_LINKMAP);
  return found == 0 ? 0 : program->l_addr;
}

// "Function at file:line" for each of these addresses, by addr2line; the line needs -g1. What it
// cannot name stays a number.
std::map<void*, std::string> NamesOf(const std::vector<void*>& addresses) {
  std::map<void*, std::string> names;
  for (void* address : addresses) names[address] = fmt::format("{}", address);
  std::array<char, 4096> text{};
  if (readlink("/proc/self/exe", text.data(), text.size() - 1) < 0) return names;
  // An address's functions: the innermost inlined one first, the one that was called last.
  std::string command = fmt::format("addr2line -a -C -f -i -p -s -e '{}'", text.data());
  for (void* address : addresses) {
    // A return address may already belong to the next line.
    const auto place = reinterpret_cast<std::uintptr_t>(address) - LoadBias() - 1;
    command += fmt::format(" {:#x}", place);
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> answer(popen((command + " 2>&1").c_str(), "r"),
                                                     pclose);
  std::size_t next = 0;
  while (answer && std::fgets(text.data(), text.size(), answer.get()) != nullptr) {
    std::string line = text.data();
    line.resize(line.find_last_not_of('\n') + 1);
    if (line.rfind("0x", 0) == 0) ++next;
    const std::size_t name = line.rfind("0x", 0) == 0 ? line.find(": ") + 2 : line.find("by) ") + 4;
    if (next > 0 && next <= addresses.size()) names[addresses[next - 1]] = line.substr(name);
  }
  return names;
}

}  // namespace

AllocationCount::AllocationCount() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads the unwinder, which allocates
  allocations = 0;
  counting = true;
}

void AllocationCount::Stop() { counting = false; }

std::int64_t AllocationCount::Count() const { return static_cast<std::int64_t>(allocations); }

std::string AllocationCount::Places() const {
  std::map<Stack, int> counts;
  for (std::size_t i = 0; i < std::min<std::size_t>(allocations, kMost); ++i) ++counts[stacks[i]];
  std::vector<void*> addresses;
  for (const auto& [stack, count] : counts) {
    for (void* address : stack) {
      if (address != nullptr) addresses.push_back(address);
    }
  }
  const std::map<void*, std::string> names = NamesOf(addresses);
  std::vector<std::pair<int, std::string>> lines;
  for (const auto& [stack, count] : counts) {
    std::string line;
    for (void* address : stack) {
      if (address == nullptr) break;
      line += (line.empty() ? "" : "\n         < ") + names.at(address);
    }
    lines.emplace_back(count, line);
  }
  std::sort(lines.rbegin(), lines.rend());
  std::string text;
  for (const auto& [count, line] : lines) text += fmt::format("{:>6} x {}\n", count, line);
  return text;
}

}  // namespace trireme::test

using trireme::test::NewAligned;
using trireme::test::NewMemory;

void* operator new(std::size_t bytes) { return NewMemory(bytes, __builtin_return_address(0)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return NewAligned(bytes, alignment, __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" {
void* __wrap_malloc(std::size_t bytes) {
  trireme::test::Note(__builtin_return_address(0));
  return __real_malloc(bytes);
}
void* __wrap_calloc(std::size_t count, std::size_t bytes) {
  trireme::test::Note(__builtin_return_address(0));
  return __real_calloc(count, bytes);
}
void* __wrap_realloc(void* old, std::size_t bytes) {
  trireme::test::Note(__builtin_return_address(0));
  return __real_realloc(old, bytes);
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  trireme::test::Note(__builtin_return_address(0));
  return __real_aligned_alloc(alignment, bytes);
}
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  trireme::test::Note(__builtin_return_address(0));
  return __real_posix_memalign(memory, alignment, bytes);
}
}
