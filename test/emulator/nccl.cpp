// NCCL's calls, emulated: arguments are checked as NCCL checks them, and a little stricter; calls
// become operations of a stream.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "nccl.h"
#include "nccl_operation.hpp"
#include "settings.hpp"
#include "stream.hpp"

struct ncclComm {
  std::shared_ptr<emulator::Members> members;
  cudaStream_t stream = nullptr;  // of its operations, since the first
};

namespace emulator {

namespace {

struct Pending {  // of a group that is open: the calls in one communicator
  ncclComm_t comm;
  std::vector<Call> calls;
};

struct Group {
  int depth = 0;
  ncclResult_t result = ncclSuccess;  // the first failure in it
  std::vector<Pending> pending;
};
Group& TheGroup() {
  static Group group;
  return group;
}

std::string& LastError() {
  static std::string text;
  return text;
}

// A line of NCCL's log, where one is asked for in a file.
void Log(const std::string& text) {
  static std::FILE* const file = [] {
    const char* const level = std::getenv("NCCL_DEBUG");
    const char* const path = std::getenv("NCCL_DEBUG_FILE");
    const bool asked = level != nullptr && path != nullptr && std::string(level) == "INFO";
    std::FILE* const opened = asked ? std::fopen(path, "w") : nullptr;
    if (opened != nullptr) std::setvbuf(opened, nullptr, _IOLBF, 0);
    return opened;
  }();
  if (file != nullptr) std::fprintf(file, "emulated:1:1 [0] NCCL INFO %s\n", text.c_str());
}

// As NCCL tells of a communicator that is a ring.
void LogStart(int rank, int ranks, int blocks) {
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  for (int channel = 0; channel < blocks; ++channel) {
    Log(fmt::format("Ring {:02} : {} -> {} -> {}", channel, last, rank, next));
  }
  for (int channel = 0; channel < blocks; ++channel) {
    Log(fmt::format("Channel {:02}/0 : {}[{}] -> {}[{}] via P2P/EMULATED", channel, rank, rank,
                    next, next));
  }
  Log(fmt::format("{} coll channels, 0 collnet channels, 0 nvls channels, {} p2p channels", blocks,
                  blocks));
}

// As NCCL tells on a communicator's rank 0 what it has taken for a collective.
void LogChoice(const Call& call, const Members& members) {
  static const std::map<Call::Kind, const char*> names = {
      {Call::Kind::kAllReduce, "AllReduce"},
      {Call::Kind::kReduce, "Reduce"},
      {Call::Kind::kReduceScatter, "ReduceScatter"},
      {Call::Kind::kBroadcast, "Broadcast"},
      {Call::Kind::kAllGather, "AllGather"}};
  const auto name = names.find(call.kind);
  if (name == names.end() || members.Rank() != 0) return;
  Log(fmt::format("{}: {} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..{}}}",
                  name->second, call.count * SizeOf(call.type), members.Blocks() - 1));
}

std::size_t BytesOfCommunicator() {
  static const std::size_t bytes = Number("TRIREME_EMULATOR_NCCL_MEMORY_MIB", 0) << 20;
  return bytes;
}

ncclResult_t RefuseCall(ncclResult_t result, const std::string& message) {
  LastError() = message;
  if (TheGroup().depth > 0 && TheGroup().result == ncclSuccess) TheGroup().result = result;
  return result;
}

ncclResult_t Queue(Pending&& pending) {
  const cudaStream_t stream = pending.comm->stream;
  const bool serial = IsCapturing(stream) && OrderOfBegins(true) == BeginOrder::kSerial;
  for (const Call& call : pending.calls) LogChoice(call, *pending.comm->members);
  const Label label = {.kind = Label::Kind::kKernel, .name = "_Z23ncclDevKernel_Emulated_1Pv"};
  NcclOperation operation(pending.comm->members, std::move(pending.calls), CaptureOf(stream));
  const cudaError_t code = serial ? EnqueueInTurn(stream, std::move(operation), label)
                                  : Enqueue(stream, std::move(operation), label);
  if (code == cudaSuccess) return ncclSuccess;
  return RefuseCall(ncclUnhandledCudaError, cudaGetErrorString(code));
}

// Elements of the operands of a call in a group of `ranks`, 0 where there is none on this rank.
std::pair<std::size_t, std::size_t> Lengths(const Call& call, int rank, int ranks) {
  const std::size_t all = call.count * static_cast<std::size_t>(ranks);
  const bool root = rank == call.peer;
  switch (call.kind) {
    case Call::Kind::kAllReduce:
      return {call.count, call.count};
    case Call::Kind::kReduce:
      return {call.count, root ? call.count : 0};
    case Call::Kind::kReduceScatter:
      return {all, call.count};
    case Call::Kind::kBroadcast:
      return {root ? call.count : 0, call.count};
    case Call::Kind::kAllGather:
      return {call.count, all};
    case Call::Kind::kSend:
      return {call.count, 0};
    case Call::Kind::kReceive:
      return {0, call.count};
  }
  return {};
}

// Operands may be the same where NCCL says that this is in place, and overlap nowhere else.
bool OverlapWrongly(const Call& call, int rank, std::size_t from_bytes, std::size_t to_bytes) {
  const auto* from = static_cast<const char*>(call.from);
  const auto* to = static_cast<const char*>(call.to);
  if (from_bytes == 0 || to_bytes == 0 || from + from_bytes <= to || to + to_bytes <= from) {
    return false;
  }
  const std::size_t at = static_cast<std::size_t>(rank) * call.count * SizeOf(call.type);
  if (call.kind == Call::Kind::kReduceScatter) return to != from + at;
  if (call.kind == Call::Kind::kAllGather) return from != to + at;
  return from != to;
}

ncclResult_t Check(const Call& call, ncclComm_t comm, cudaStream_t stream) {
  if (comm == nullptr) return RefuseCall(ncclInvalidArgument, "no communicator");
  Members& members = *comm->members;
  if (members.State() != ncclSuccess) {
    return RefuseCall(members.State(), "the communicator has failed before");
  }
  if (SizeOf(call.type) == 0) return RefuseCall(ncclInvalidArgument, "a type that is not emulated");
  if (call.reduction != ncclSum && call.reduction != ncclMax) {
    return RefuseCall(ncclInvalidArgument, "a reduction that is not emulated");
  }
  if (call.peer < 0 || call.peer >= members.Size()) {
    return RefuseCall(ncclInvalidArgument,
                      fmt::format("rank {} in a group of {}", call.peer, members.Size()));
  }
  if (comm->stream == nullptr) comm->stream = stream;
  if (comm->stream != stream || !IsStream(stream)) {
    return RefuseCall(ncclInvalidUsage,
                      "a communicator's operations in several streams, or in none");
  }
  const auto [from, to] = Lengths(call, members.Rank(), members.Size());
  const std::size_t from_bytes = from * SizeOf(call.type), to_bytes = to * SizeOf(call.type);
  if ((from > 0 && !IsDeviceMemory(call.from, from_bytes)) ||
      (to > 0 && !IsDeviceMemory(call.to, to_bytes))) {
    return RefuseCall(ncclInvalidArgument, "an operand that is not wholly in device memory");
  }
  if (OverlapWrongly(call, members.Rank(), from_bytes, to_bytes)) {
    return RefuseCall(ncclInvalidArgument, "operands that overlap");
  }
  return ncclSuccess;
}

std::int64_t calls_so_far = 0;

// name: default, the function of NCCL that calls it.
ncclResult_t Add(const Call& call, ncclComm_t comm, cudaStream_t stream,
                 const char* name = __builtin_FUNCTION()) {
  RefuseAfterFinalize(name);
  const ncclResult_t checked = Check(call, comm, stream);
  if (checked != ncclSuccess) return checked;
  ++calls_so_far;
  Group& group = TheGroup();
  if (group.depth == 0) return Queue({comm, {call}});
  for (Pending& pending : group.pending) {
    if (pending.comm == comm) {
      pending.calls.push_back(call);
      return ncclSuccess;
    }
  }
  group.pending.push_back({comm, {call}});
  return ncclSuccess;
}

}  // namespace

std::int64_t NcclCalls() { return calls_so_far; }

// NcclOperation: operands are copied to the host when the stream reaches it, results to the device
// when MPI has finished; MPI touches no device memory in between.

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

using emulator::Call;

ncclResult_t ncclGetVersion(int* version) {
  const char* const asked = std::getenv("TRIREME_EMULATOR_NCCL_VERSION");
  constexpr int kNewer = 22602;  // than the header that programs were compiled with
  *version = asked == nullptr ? kNewer : std::atoi(asked);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return emulator::LastError().c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  emulator::RefuseAfterFinalize();
  *id = emulator::NewNcclId();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  emulator::RefuseAfterFinalize();
  *comm = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks || config == nullptr || config->blocking == 0) {
    return emulator::RefuseCall(ncclInvalidArgument,
                                "a communicator's ranks, or one that is not blocking");
  }
  const bool limited = config->maxCTAs != NCCL_CONFIG_UNDEF_INT;
  auto members =
      emulator::NewMembers(id, ranks, rank, limited ? config->maxCTAs : emulator::BlocksOfNccl());
  if (members->State() == ncclInvalidUsage) {
    return emulator::RefuseCall(ncclInvalidUsage, "Duplicate GPU detected");
  }
  if (emulator::DeviceMemory().LiveBytes() + emulator::BytesOfCommunicator() >
      emulator::CardBytes()) {
    return emulator::RefuseCall(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
  }
  emulator::DeviceMemory().Take(emulator::BytesOfCommunicator());
  emulator::LogStart(rank, ranks, members->Blocks());
  *comm = new ncclComm{.members = std::move(members)};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  emulator::RefuseAfterFinalize();
  if (comm != nullptr && comm->members->InGraphs()) {
    emulator::Die("ncclCommDestroy of " + comm->members->Order().Name() +
                  " while a CUDA graph holds operations of it: graphs are destroyed before");
  }
  // One that is aborted keeps its memory: another thread may abort it.
  if (comm != nullptr) emulator::DeviceMemory().GiveBack(emulator::BytesOfCommunicator());
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  emulator::RefuseAfterFinalize();
  if (comm != nullptr) comm->members->Abort();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  emulator::RefuseAfterFinalize();
  if (comm == nullptr) return emulator::RefuseCall(ncclInvalidArgument, "no communicator");
  *error = comm->members->State();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  emulator::RefuseAfterFinalize();
  ++emulator::TheGroup().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  emulator::RefuseAfterFinalize();
  emulator::Group& group = emulator::TheGroup();
  if (group.depth == 0) return emulator::RefuseCall(ncclInvalidUsage, "the end of no group");
  if (--group.depth > 0) return ncclSuccess;
  const auto pending = std::exchange(group.pending, {});
  const ncclResult_t result = std::exchange(group.result, ncclSuccess);
  if (result != ncclSuccess) return result;
  for (const emulator::Pending& calls : pending) {
    const ncclResult_t queued = emulator::Queue(emulator::Pending(calls));
    if (queued != ncclSuccess) return queued;
  }
  return ncclSuccess;
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream) {
  return emulator::Add({Call::Kind::kReduce, from, to, count, type, reduction, root}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return emulator::Add({Call::Kind::kBroadcast, from, to, count, type, ncclSum, root}, comm,
                       stream);
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return emulator::Add({Call::Kind::kAllReduce, from, to, count, type, reduction, 0}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return emulator::Add({Call::Kind::kReduceScatter, from, to, count, type, reduction, 0}, comm,
                       stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return emulator::Add({Call::Kind::kAllGather, from, to, count, type, ncclSum, 0}, comm, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return emulator::Add({Call::Kind::kSend, from, nullptr, count, type, ncclSum, peer}, comm,
                       stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return emulator::Add({Call::Kind::kReceive, nullptr, to, count, type, ncclSum, peer}, comm,
                       stream);
}
