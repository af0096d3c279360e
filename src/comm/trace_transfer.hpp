// Slices of transfers in a timeline: one while it was under way, one while the rank waited for it.
#ifndef TRIREME_SRC_COMM_TRACE_TRANSFER_HPP_
#define TRIREME_SRC_COMM_TRACE_TRANSFER_HPP_

#include <cstdint>

#include "trireme/comm/ledger.hpp"
#include "trireme/trace/recorder.hpp"

namespace trireme::comm {

inline trace::Slice SliceOf(Group group, Transfer transfer, std::int64_t bytes) {
  trace::Slice slice;
  slice.name = trace::Name::kTransfer;
  slice.category = trace::Category::kTransfer;
  slice.queue = trace::Queue::kTransfers;
  slice.group = static_cast<std::int8_t>(group);
  slice.transfer = static_cast<std::int8_t>(transfer);
  slice.bytes = bytes;
  return slice;
}

// The wait for a complete transfer on the host's queue: `waited` seconds up to the transfer's end.
void TraceWait(trace::Recorder& recorder, const trace::Slice& transfer, double waited);
// The same slice as a wait.
trace::Slice WaitFor(const trace::Slice& transfer);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_TRACE_TRANSFER_HPP_
