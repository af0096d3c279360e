// Planned transfers: one that MPI could not count is refused, with the deck's key; a log is told.
#include <fmt/format.h>

#include <limits>

#include "trireme/base/error.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/work_log.hpp"

namespace trireme::comm {

namespace {

// Key of the deck that a transfer of a group follows from, and changes that make it shorter.
struct Advice {
  const char* key;
  const char* what_helps;
};
Advice AdviceFor(Group group) {
  switch (group) {
    case Group::kPipeline:
      return {"grid.pipeline",
              "a smaller data.micro_batch, or more ranks along grid.context or grid.tensor with "
              "grid.sequence_parallel"};
    case Group::kTensor:
      return {"grid.tensor", "a smaller data.micro_batch, or more ranks along grid.context"};
    case Group::kContext:
      return {"grid.context", "a smaller data.micro_batch, or more ranks along this axis"};
    case Group::kShard:
      return {"grid.sharding", "more ranks along grid.tensor, or grid.sharding = none"};
    case Group::kData:
      return {"grid.bucket_mib", "a smaller grid.bucket_mib, or more ranks along grid.tensor"};
    default:
      return {NameOf(group), "more ranks along grid.tensor"};
  }
}

}  // namespace

// Real groups refuse too, one by one as a bug would be; plans are refused before anything is taken.
void Collectives::CheckPlanned(Transfer transfer, std::int64_t count) const {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (!IsPlanned() || count <= kMost) return;
  const Advice advice = AdviceFor(name_);
  throw InputError(fmt::format("{}: one {} of the {} group has {} elements, and MPI counts to {}",
                               advice.key, NameOf(transfer), NameOf(name_), count, kMost),
                   fmt::format("What helps: {}.", advice.what_helps));
}

Places Collectives::PlacesOf(Transfer transfer, const Counts& counts) const {
  if (IsPlanned()) {
    std::int64_t total = 0;
    for (int rank = 0; rank < Size(); ++rank) total += counts.Of(rank, Size());
    CheckPlanned(transfer, total);
  }
  return {transfer, counts, Size()};
}

// Tells the log of a planned rank, if it has one.
void Collectives::Log(Request& request, int peer, int tag) const {
  device::WorkLog* const log = IsPlanned() ? ledger_->Log() : nullptr;
  if (log == nullptr) return;
  const bool collective =
      request.transfer_ != Transfer::kSend && request.transfer_ != Transfer::kReceive;
  request.ticket_ = log->Start({.group = static_cast<std::int8_t>(name_),
                                .transfer = static_cast<std::int8_t>(request.transfer_),
                                .payload = static_cast<std::int8_t>(payload_),
                                .ranks = Size(),
                                .bytes = request.payload_,
                                .peer = collective ? -1 : peer,
                                .tag = collective ? -1 : tag});
  request.log_ = log;
}

}  // namespace trireme::comm
