// Scheduling of a block's threads: a thread runs until it has to wait; then the next one is drawn,
// usually of the same warp (its stacks are in the cache), of any now and then. A thread that has
// not begun runs on any free fiber, so that a kernel without barriers needs one fiber in all.
#include <fmt/format.h>
#include <sys/mman.h>
#include <boost/context/detail/fcontext.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuda_runtime.h"
#include "kernel.hpp"
#include "memory.hpp"
#include "settings.hpp"
#include "stream.hpp"

// Defined by AddressSanitizer alone.
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size)
    __attribute__((weak));
}

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulator {

// Stacks to switch between within one OS thread, on Boost.Context's bare switch.

// State of an execution that does not run now.
struct Execution {
  void* context = nullptr;
  const void* bottom = nullptr;  // of its stack, for AddressSanitizer
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;
};

// Goes on in `to`; returns when somebody switches to `from`.
void Switch(Execution& from, Execution& to);

// A new execution, which calls `main` when it is switched to for the first time. Its stack, with a
// guard, is never given back: at most kMaxFibers of them. `main` must not return.
inline constexpr int kMaxFibers = 1025;
Execution* MakeFiber(void (*main)());

// Stacks of fibers, in one mapping with a closed page below each; AddressSanitizer, if present, is
// told of every switch.

namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

const std::size_t kPage = PageBytes();
const std::size_t kStack = (std::size_t{256} << 10) - kPage;  // room for instrumented frames too
const std::size_t kSlot = kStack + kPage;
// Tops of stacks that differ in their low bits fall on different lines of the caches.
constexpr std::size_t kStagger = 64 * 5;

Execution* leaving = nullptr;  // last one that switched
Execution fibers[kMaxFibers];
void (*mains[kMaxFibers])();
int made = 0;
std::uintptr_t stacks = 0;

void Arrive(transfer_t from, void* fake_stack) {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(fake_stack, &leaving->bottom, &leaving->stack_bytes);
  }
  leaving->context = from.fctx;
}

void Enter(transfer_t from) {
  Arrive(from, nullptr);
  reinterpret_cast<void (*)()>(from.data)();
}

void Jump(Execution& from, Execution& to, void* data) {
  leaving = &from;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.stack_bytes);
  }
  const transfer_t back = jump_fcontext(static_cast<fcontext_t>(to.context), data);
  Arrive(back, from.fake_stack);
}

}  // namespace

void Switch(Execution& from, Execution& to) {
  const std::ptrdiff_t number = &to - fibers;
  void* main =
      number >= 0 && number < kMaxFibers ? reinterpret_cast<void*>(mains[number]) : nullptr;
  Jump(from, to, main);
}

Execution* MakeFiber(void (*main)()) {
  if (stacks == 0) {
    void* memory = mmap(nullptr, kSlot * kMaxFibers, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) Die("no memory for the stacks of a block's threads");
    stacks = reinterpret_cast<std::uintptr_t>(memory);
    NoteGuarded(stacks, stacks + kSlot * kMaxFibers, "overflowed a thread's stack");
  }
  if (made == kMaxFibers) Die("more fibers than threads of a block");
  const auto bottom = stacks + kSlot * static_cast<std::size_t>(made) + kPage;
  mprotect(reinterpret_cast<void*>(bottom), kStack, PROT_READ | PROT_WRITE);
  const std::size_t top = kStack - static_cast<std::size_t>(made) * kStagger % 4096 / 64 * 64;
  mains[made] = main;
  Execution& fiber = fibers[made++];
  fiber.bottom = reinterpret_cast<const void*>(bottom);
  fiber.stack_bytes = top;
  fiber.context = make_fcontext(reinterpret_cast<void*>(bottom + top), top, Enter);
  return &fiber;
}

int current_thread = 0;

namespace {

constexpr int kLanes = 32;
constexpr int kWarps = kMaxThreads / kLanes;
constexpr std::uint32_t kStayInWarp = 16;  // one draw in so many is free to leave the warp

struct Thread {
  Execution* fiber;  // holds the waiting thread; null: it has not begun
  std::uint64_t value, result;
  int source;
};

// Lanes that wait for the rest of their mask.
struct Meeting {
  unsigned mask, arrived;
  WarpOperation operation;
};

struct Warp {
  unsigned ready, alive;
  int meeting_count;
  Meeting meetings[kLanes];
};

struct Block {
  int threads = 0, alive = 0, at_barrier = 0;
  unsigned ready_warps = 0;
  Thread thread[kMaxThreads];
  uint3 place[kMaxThreads];
  Warp warp[kWarps];
  const std::function<void()>* body = nullptr;
  Execution host;                // caller of RunBlock
  Execution* running = nullptr;  // fiber
  Execution* idle[kMaxFibers];   // fibers that run no thread
  int idle_count = 0;
};
Block block;

const char* Name(WarpOperation operation) {
  switch (operation) {
    case WarpOperation::kSync:
      return "__syncwarp";
    case WarpOperation::kShuffle:
      return "a shuffle";
    case WarpOperation::kVote:
      return "a vote";
    case WarpOperation::kMatrix:
      return "an operation on matrices";
  }
  return "";
}

void MakeReady(int warp, unsigned lanes) {
  block.warp[warp].ready |= lanes;
  block.ready_warps |= 1u << warp;
}

// One of the bits of `set`, which is not empty; of those above a random one, the next.
int Draw(unsigned set, unsigned random) {
  const int turn = static_cast<int>(random & 31);
  return (std::countr_zero(std::rotr(set, turn)) + turn) & 31;
}

[[noreturn]] void ReportDeadlock() {
  int at_meetings = 0;
  const char* where = "";
  for (int warp = 0; warp < kWarps; ++warp) {
    const Warp& w = block.warp[warp];
    for (int i = 0; i < w.meeting_count && warp * kLanes < block.threads; ++i) {
      at_meetings += std::popcount(w.meetings[i].arrived);
      where = Name(w.meetings[i].operation);
    }
  }
  Die(
      fmt::format("deadlock in kernel: {} threads at __syncthreads, {} at {} (block ({},{},{}) of "
                  "{} threads, {} of them returned)",
                  block.at_barrier, at_meetings, at_meetings > 0 ? where : "a shuffle", blockIdx.x,
                  blockIdx.y, blockIdx.z, block.threads, block.threads - block.alive));
}

// Draws the thread that runs next and takes it from the ready ones; -1: all have returned.
int DrawThread() {
  if (block.ready_warps == 0) {
    if (block.alive == 0) return -1;
    ReportDeadlock();
  }
  const std::uint32_t random = TheDice().Next();
  int warp = current_thread / kLanes;
  if (block.warp[warp].ready == 0 || (random >> 10) % kStayInWarp == 0) {
    warp = Draw(block.ready_warps, random >> 5);
  }
  Warp& w = block.warp[warp];
  const int lane = Draw(w.ready, random);
  w.ready &= ~(1u << lane);
  if (w.ready == 0) block.ready_warps &= ~(1u << warp);
  return warp * kLanes + lane;
}

void SetCurrent(int thread) {
  current_thread = thread;
  threadIdx = block.place[thread];
}

void RunThreads();

// Leaves the running fiber for that of thread `next`, or for a free one where it has not begun.
void GoOnWith(int next) {
  Execution* from = block.running;
  Execution* to = block.thread[next].fiber;
  if (to == nullptr) {
    to = block.idle_count > 0 ? block.idle[--block.idle_count] : MakeFiber(RunThreads);
  }
  SetCurrent(next);
  block.running = to;
  Switch(*from, *to);
}

// The running thread waits: others run until it is drawn again.
void Wait() {
  const int self = current_thread;
  const int next = DrawThread();
  if (next == self) return;
  block.thread[self].fiber = block.running;
  GoOnWith(next);
}

void ReleaseBarrier() {
  block.at_barrier = 0;
  for (int warp = 0; warp * kLanes < block.threads; ++warp) {
    if (block.warp[warp].alive != 0) MakeReady(warp, block.warp[warp].alive);
  }
}

// All have come: hands out what each asked for.
void Complete(int warp, Meeting& meeting) {
  Warp& w = block.warp[warp];
  Thread* lanes = &block.thread[warp * kLanes];
  const unsigned arrived = meeting.arrived;
  std::uint64_t votes = 0;
  if (meeting.operation == WarpOperation::kVote) {
    for (unsigned rest = arrived; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (lanes[lane].value != 0) votes |= std::uint64_t{1} << lane;
    }
  }
  if (meeting.operation == WarpOperation::kMatrix) {
    if (arrived != ~0u) Die("an operation on matrices takes all 32 lanes of a warp");
    std::uint64_t requests[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) requests[lane] = lanes[lane].value;
    DoForLanes(requests);
  }
  for (unsigned rest = arrived; rest != 0; rest &= rest - 1) {
    Thread& thread = lanes[std::countr_zero(rest)];
    // The value of a lane that does not take part is undefined: NaN.
    thread.result = meeting.operation == WarpOperation::kVote ? votes
                    : (arrived >> (thread.source & 31)) & 1u  ? lanes[thread.source & 31].value
                                                              : ~std::uint64_t{0};
  }
  meeting = w.meetings[--w.meeting_count];
  MakeReady(warp, arrived);
}

void Leave() {
  EndCopies(current_thread);
  const int warp = current_thread / kLanes;
  Warp& w = block.warp[warp];
  w.alive &= ~(1u << (CurrentLane()));
  --block.alive;
  if (block.alive > 0 && block.at_barrier == block.alive) ReleaseBarrier();
  for (int i = w.meeting_count - 1; i >= 0; --i) {
    if (w.meetings[i].arrived == (w.meetings[i].mask & w.alive)) Complete(warp, w.meetings[i]);
  }
}

// Main function of every fiber: runs threads that have not begun, one after another, for ever.
void RunThreads() {
  for (;;) {
    (*block.body)();
    Leave();
    const int next = DrawThread();
    if (next >= 0 && block.thread[next].fiber == nullptr) {
      SetCurrent(next);
      continue;
    }
    Execution* self = block.running;
    block.idle[block.idle_count++] = self;
    if (next >= 0) {
      GoOnWith(next);
    } else {
      Switch(*self, block.host);
    }
  }
}

}  // namespace

void BlockBarrier() {
  if (mutations_watched && IsOmitted(Mutation::kBarrier, __builtin_return_address(0))) return;
  if (++block.at_barrier == block.alive) ReleaseBarrier();
  Wait();
}

std::uint64_t MeetInWarp(WarpOperation operation, unsigned mask, std::uint64_t value, int source) {
  if (mutations_watched && operation == WarpOperation::kSync &&
      IsOmitted(Mutation::kWarpBarrier, __builtin_return_address(0))) {
    return 0;
  }
  const int warp = current_thread / kLanes;
  const unsigned bit = 1u << (CurrentLane());
  Warp& w = block.warp[warp];
  Thread& self = block.thread[current_thread];
  if ((mask & bit) == 0) {
    Die(fmt::format("lane {} calls {} with mask {:#010x}, which does not name it", CurrentLane(),
                    Name(operation), mask));
  }
  Meeting* meeting = nullptr;
  for (int i = 0; i < w.meeting_count; ++i) {
    Meeting& other = w.meetings[i];
    if (other.mask == mask) {
      meeting = &other;
    } else if ((other.mask & mask & w.alive) != 0) {
      Die(fmt::format("mismatched masks in a warp: {} with {:#010x} meets {} with {:#010x}",
                      Name(operation), mask, Name(other.operation), other.mask));
    }
  }
  if (meeting == nullptr) {
    meeting = &w.meetings[w.meeting_count++];
    *meeting = {.mask = mask, .arrived = 0, .operation = operation};
  }
  if (meeting->operation != operation) {
    Die(fmt::format("lanes of one warp meet in different operations: {} and {}", Name(operation),
                    Name(meeting->operation)));
  }
  self.value = value;
  self.source = source;
  meeting->arrived |= bit;
  if (meeting->arrived == (mask & w.alive)) Complete(warp, *meeting);
  Wait();
  return self.result;
}

void ShapeBlock(unsigned across, unsigned down, unsigned deep) {
  block.threads = static_cast<int>(across * down * deep);
  int thread = 0;
  for (unsigned z = 0; z < deep; ++z) {
    for (unsigned y = 0; y < down; ++y) {
      for (unsigned x = 0; x < across; ++x) block.place[thread++] = {x, y, z};
    }
  }
}

void RunBlock(const std::function<void()>& thread) {
  block.body = &thread;
  block.alive = block.threads;
  block.at_barrier = 0;
  block.ready_warps = 0;
  for (int t = 0; t < block.threads; ++t) block.thread[t].fiber = nullptr;
  for (int warp = 0; warp * kLanes < block.threads; ++warp) {
    const int lanes = block.threads - warp * kLanes;
    block.warp[warp].alive = lanes >= kLanes ? ~0u : (1u << lanes) - 1u;
    block.warp[warp].ready = 0;
    block.warp[warp].meeting_count = 0;
    MakeReady(warp, block.warp[warp].alive);
  }
  current_thread = static_cast<int>(TheDice().Below(static_cast<std::uint32_t>(block.threads)));
  block.running = &block.host;
  GoOnWith(DrawThread());
}

}  // namespace emulator
