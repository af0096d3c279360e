// NCCL's calls, emulated: arguments are checked as NCCL checks them, and a little stricter; calls
// become operations of a stream.
#include "nccl.h"

#include <fmt/format.h>
#include <cstdio>
#include <cstdlib>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "nccl_operation.hpp"
#include "nccl_room.hpp"
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
