// Stacks of fibers, in one mapping with a closed page below each; AddressSanitizer, if present, is
// told of every switch.
#include "fiber.hpp"

#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdint>

#include "fault.hpp"
#include "settings.hpp"
#include "stream.hpp"

// Defined by AddressSanitizer alone.
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size)
    __attribute__((weak));
}

namespace emulator {
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

}  // namespace emulator
