// Slices of transfers in a timeline: one while it was under way, one while the rank waited for it.
#ifndef TRIREME_SRC_COMM_TRACE_TRANSFER_HPP_
#define TRIREME_SRC_COMM_TRACE_TRANSFER_HPP_

#include <cstdint>

#include "trireme/comm/ledger.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::comm {

inline device::Slice SliceOf(Group group, Transfer transfer, std::int64_t bytes) {
  device::Slice slice;
  slice.name = device::SliceName::kTransfer;
  slice.category = device::SliceCategory::kTransfer;
  slice.queue = device::SliceQueue::kTransfers;
  slice.group = static_cast<std::int8_t>(group);
  slice.transfer = static_cast<std::int8_t>(transfer);
  slice.bytes = bytes;
  return slice;
}

// The wait for a complete transfer on the host's queue: `waited` seconds up to the transfer's end.
void TraceWait(device::Recorder& recorder, const device::Slice& transfer, double waited);
// The same slice as a wait.
device::Slice WaitFor(const device::Slice& transfer);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_TRACE_TRANSFER_HPP_
