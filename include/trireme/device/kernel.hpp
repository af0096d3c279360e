// Kernel: one piece of a card's work in a timeline, with the slice of the host under which it was
// queued.
#ifndef TRIREME_DEVICE_KERNEL_HPP_
#define TRIREME_DEVICE_KERNEL_HPP_

#include <cstdint>
#include <string>
#include <type_traits>

#include "trireme/device/activities.hpp"
#include "trireme/device/slice.hpp"

namespace trireme::device {

struct Kernel {
  double begin = 0, end = 0;  // of Seconds() on the rank
  std::int64_t bytes = 0;     // of a copy or a fill
  std::int32_t step = 0, layer = -1, micro_batch = -1, chunk = -1;
  std::int32_t name = -1;   // index of the rank's names
  std::uint32_t graph = 0;  // part of a recorded graph, by CUPTI's number; 0: queued by itself
  std::int16_t queue = 0;   // 0: the computation's, 1: the input's, then others
  device::Activity::Kind kind = device::Activity::Kind::kKernel;
  SliceName task = SliceName::kStep;  // innermost slice of the host around the call that queued it
  Phase phase = Phase::kNone;
  bool tagged = false;  // whether that is known, and `layer` to `chunk`; else `step` is by the time
};
static_assert(std::is_trivially_copyable_v<Kernel>);  // travels between ranks as it is

// A kernel's name as a reader wants it, from its symbol: demangled, without result, arguments and
// name spaces, at most 80 bytes: "LayerNorm<float, 256>".
std::string ShortName(const std::string& symbol);

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_KERNEL_HPP_
