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
constexpr std::size_t kNote = sizeof(LaunchNote);  // bytes in front of a rank's operand

bool IsMessage(const Call& call) {
  return call.kind == Call::Kind::kSend || call.kind == Call::Kind::kReceive;
}

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

NcclOperation::NcclOperation(std::shared_ptr<Members> members, std::vector<Call> calls,
                             std::uint64_t capture)
    : members_(std::move(members)), calls_(std::move(calls)) {
  if (capture != 0) {
    part_of_graph_ = members_->PartOfGraph();
  } else if (OrderOfBegins(false) != BeginOrder::kAny) {
    turn_ = NcclTurn("an operation of " + members_->Order().Name());
  }
  // Messages of some members are no operation of the others.
  if (members_->Size() > 2 && std::ranges::all_of(calls_, IsMessage)) return;
  note_ = std::make_shared<const LaunchNote>(members_->Order().Launch(capture));
}

bool NcclOperation::operator()() {
  if (members_->Aborted()) return Abandon();
  if (lost_ || members_->State() != ncclSuccess) return false;
  if (transfers_.empty()) {
    if (!turn_.Come()) return false;
    lost_ = !ComesToOperation();
    if (lost_) return false;
    transfers_.resize(calls_.size());
    turn_.Begin();
    room_.Take(members_->Blocks());
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
  if (!all) {
    if (patience_.Over(2 * Patience::Limit())) {
      Die(fmt::format("an operation of {} has waited for {} s for other ranks",
                      members_->Order().Name(), 2 * Patience::Limit().count()));
    }
    return false;
  }
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    Unwrap(calls_[i], transfers_[i]);
    Finish(calls_[i], transfers_[i]);
  }
  transfers_.clear();
  room_.Leave();
  turn_.End();
  return true;
}

// MPI may still write into the buffers, for as long as the process lives.
bool NcclOperation::Abandon() {
  static std::vector<Transfer> abandoned;
  std::move(transfers_.begin(), transfers_.end(), std::back_inserter(abandoned));
  transfers_.clear();
  room_.Leave();
  turn_.End();
  return true;
}

// [rows, bytes] at `from`, with this rank's note in front of each row.
std::vector<std::byte> NcclOperation::Noted(const void* from, std::size_t rows,
                                            std::size_t bytes) const {
  std::vector<std::byte> noted(rows * (kNote + bytes));
  for (std::size_t row = 0; row < rows; ++row) {
    std::byte* const to = noted.data() + row * (kNote + bytes);
    std::memcpy(to, note_.get(), kNote);
    if (bytes == 0) continue;
    std::memcpy(to + kNote, static_cast<const std::byte*>(from) + row * bytes, bytes);
  }
  return noted;
}

void NcclOperation::Post(const Call& call, Transfer& transfer) const {
  const auto ranks = static_cast<std::size_t>(members_->Size());
  const bool root = members_->Rank() == call.peer;
  const std::size_t bytes = call.count * SizeOf(call.type);
  const std::size_t row = IsMessage(call) ? bytes : kNote + bytes;
  const int size = Checked(row);
  const MPI_Comm comm = members_->Handle();
  MPI_Request* request = &transfer.request;
  std::vector<std::byte>&in = transfer.in, &out = transfer.out;
  switch (call.kind) {
    case Call::Kind::kAllReduce:
    case Call::Kind::kAllGather:
      out = Noted(call.from, 1, bytes);
      in.resize(ranks * row);
      MPI_Iallgather(out.data(), size, MPI_BYTE, in.data(), size, MPI_BYTE, comm, request);
      return;
    case Call::Kind::kReduce:
      out = Noted(call.from, 1, bytes);
      in.resize(root ? ranks * row : 0);
      MPI_Igather(out.data(), size, MPI_BYTE, in.data(), size, MPI_BYTE, call.peer, comm, request);
      return;
    case Call::Kind::kReduceScatter:
      out = Noted(call.from, ranks, bytes);
      in.resize(ranks * row);
      MPI_Ialltoall(out.data(), size, MPI_BYTE, in.data(), size, MPI_BYTE, comm, request);
      return;
    case Call::Kind::kBroadcast:
      in = root ? Noted(call.from, 1, bytes) : std::vector<std::byte>(row);
      MPI_Ibcast(in.data(), size, MPI_BYTE, call.peer, comm, request);
      return;
    case Call::Kind::kSend:
      out.assign(static_cast<const std::byte*>(call.from),
                 static_cast<const std::byte*>(call.from) + bytes);
      MPI_Issend(out.data(), size, MPI_BYTE, call.peer, kTag, comm, request);
      return;
    case Call::Kind::kReceive:
      in.resize(bytes);
      MPI_Irecv(in.data(), size, MPI_BYTE, call.peer, kTag, comm, request);
      return;
  }
}

void NcclOperation::Unwrap(const Call& call, Transfer& transfer) const {
  if (IsMessage(call)) return;
  const std::size_t bytes = call.count * SizeOf(call.type);
  const std::size_t rows = transfer.in.size() / (kNote + bytes);
  std::byte* const in = transfer.in.data();
  for (std::size_t row = 0; row < rows; ++row) {
    const std::byte* const from = in + row * (kNote + bytes);
    LaunchNote note;
    std::memcpy(&note, from, kNote);
    const int sender = rows == 1 ? call.peer : static_cast<int>(row);
    members_->Order().Compare(*note_, members_->Rank(), note, sender);
    std::memmove(in + row * bytes, from + kNote, bytes);
  }
  transfer.in.resize(rows * bytes);
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
