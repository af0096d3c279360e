// NcclOperation: operands are copied to the host when the stream reaches it, results to the device
// when MPI has finished; MPI touches no device memory in between.
#include "nccl_operation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdint>
#include <cstring>
#include <utility>

#include "stream.hpp"

namespace emulator {
namespace {

constexpr int kTag = 0;

int Checked(std::size_t bytes) {
  if (bytes > INT_MAX) Die(fmt::format("an operation of NCCL of {} bytes", bytes));
  return static_cast<int>(bytes);
}

float Widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t Rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <typename T>
T Combined(ncclRedOp_t reduction, T a, T b) {
  return reduction == ncclSum ? a + b : std::max(a, b);
}

// [ranks, count] -> [count], in the order of the ranks.
template <typename T>
void ReduceRows(ncclRedOp_t reduction, const T* rows, int ranks, std::size_t count, T* to) {
  for (std::size_t i = 0; i < count; ++i) {
    T sum = rows[i];
    for (int rank = 1; rank < ranks; ++rank) {
      sum = Combined(reduction, sum, rows[static_cast<std::size_t>(rank) * count + i]);
    }
    to[i] = sum;
  }
}

void ReduceRows(ncclRedOp_t reduction, const std::uint16_t* rows, int ranks, std::size_t count,
                std::uint16_t* to) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = Widened(rows[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      sum = Combined(reduction, sum, Widened(rows[static_cast<std::size_t>(rank) * count + i]));
    }
    to[i] = Rounded(sum);
  }
}

}  // namespace

std::size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return 4;
    case ncclFloat64:
      return 8;
    case ncclBfloat16:
      return 2;
    default:
      return 0;
  }
}

bool NcclOperation::operator()() {
  if (members_->Aborted()) return Abandon();
  if (lost_ || members_->State() != ncclSuccess) return false;
  if (transfers_.empty()) {
    lost_ = !ComesToOperation();
    if (lost_) return false;
    transfers_.resize(calls_.size());
    for (std::size_t i = 0; i < calls_.size(); ++i) Post(calls_[i], transfers_[i]);
  }
  bool all = true;
  for (Transfer& transfer : transfers_) {
    int done = 0;
    // The status of a request that was complete before is empty: keep the first.
    if (transfer.request != MPI_REQUEST_NULL) {
      MPI_Test(&transfer.request, &done, &transfer.status);
      all = all && done != 0;
    }
  }
  if (!all) return false;
  for (std::size_t i = 0; i < calls_.size(); ++i) Finish(calls_[i], transfers_[i]);
  transfers_.clear();
  return true;
}

// MPI may still write into the buffers, for as long as the process lives.
bool NcclOperation::Abandon() {
  static std::vector<Transfer> abandoned;
  std::move(transfers_.begin(), transfers_.end(), std::back_inserter(abandoned));
  transfers_.clear();
  return true;
}

void NcclOperation::Post(const Call& call, Transfer& transfer) const {
  const auto ranks = static_cast<std::size_t>(members_->Size());
  const bool root = members_->Rank() == call.peer;
  const std::size_t bytes = call.count * SizeOf(call.type);
  const int size = Checked(bytes);
  const MPI_Comm comm = members_->Handle();
  MPI_Request* request = &transfer.request;
  const auto take = [&](std::size_t all) {
    const auto* from = static_cast<const std::byte*>(call.from);
    transfer.out.assign(from, from + all);
  };
  transfer.in.resize(bytes);
  switch (call.kind) {
    case Call::Kind::kAllReduce:
    case Call::Kind::kAllGather:
      take(bytes);
      transfer.in.resize(ranks * bytes);
      MPI_Iallgather(transfer.out.data(), size, MPI_BYTE, transfer.in.data(), size, MPI_BYTE, comm,
                     request);
      return;
    case Call::Kind::kReduce:
      take(bytes);
      transfer.in.resize(root ? ranks * bytes : 0);
      MPI_Igather(transfer.out.data(), size, MPI_BYTE, transfer.in.data(), size, MPI_BYTE,
                  call.peer, comm, request);
      return;
    case Call::Kind::kReduceScatter:
      take(ranks * bytes);
      transfer.in.resize(ranks * bytes);
      MPI_Ialltoall(transfer.out.data(), size, MPI_BYTE, transfer.in.data(), size, MPI_BYTE, comm,
                    request);
      return;
    case Call::Kind::kBroadcast:
      if (root) std::memcpy(transfer.in.data(), call.from, bytes);
      MPI_Ibcast(transfer.in.data(), size, MPI_BYTE, call.peer, comm, request);
      return;
    case Call::Kind::kSend:
      take(bytes);
      MPI_Issend(transfer.out.data(), size, MPI_BYTE, call.peer, kTag, comm, request);
      return;
    case Call::Kind::kReceive:
      MPI_Irecv(transfer.in.data(), size, MPI_BYTE, call.peer, kTag, comm, request);
      return;
  }
}

void NcclOperation::Finish(const Call& call, const Transfer& transfer) const {
  switch (call.kind) {
    case Call::Kind::kReduce:
      if (members_->Rank() == call.peer) Reduce(call, transfer);
      return;
    case Call::Kind::kAllReduce:
    case Call::Kind::kReduceScatter:
      return Reduce(call, transfer);
    case Call::Kind::kSend:
      return;
    case Call::Kind::kReceive: {
      int bytes = 0;
      MPI_Get_count(&transfer.status, MPI_BYTE, &bytes);
      if (static_cast<std::size_t>(bytes) != transfer.in.size()) {
        Die(fmt::format("ncclRecv of {} bytes meets an ncclSend of {}", transfer.in.size(), bytes));
      }
      break;
    }
    case Call::Kind::kBroadcast:
    case Call::Kind::kAllGather:
      break;
  }
  if (!transfer.in.empty()) std::memcpy(call.to, transfer.in.data(), transfer.in.size());
}

void NcclOperation::Reduce(const Call& call, const Transfer& transfer) const {
  const auto reduce = [&]<typename T>(T) {
    ReduceRows(call.reduction, reinterpret_cast<const T*>(transfer.in.data()), members_->Size(),
               call.count, static_cast<T*>(call.to));
  };
  if (call.type == ncclFloat64) return reduce(double{});
  if (call.type == ncclFloat32) return reduce(float{});
  reduce(std::uint16_t{});
}

}  // namespace emulator
