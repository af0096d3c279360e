// Ranks of the emulated NCCL: their communicators, the order and the room of their operations, and
// waiting for each other.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "nccl.h"
#include "nccl_operation.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace emulator {

// Meeting of the members of a communicator, and the loss of one on purpose.

namespace {

constexpr int kFirstTag = 20'000, kTags = 8'000;  // of members' messages to the maker of the id

// Contents of an id: its maker, and its number among the maker's.
struct Name {
  unsigned magic = 0x6e63636c;
  int maker = 0;
  int number = 0;
};

struct Introduction {
  int rank = 0, world_rank = 0, device = 0;
};

int WorldRank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// State of this process: operations so far, and the one that a test lets fail.
struct Process {
  Process() {
    const char* text = std::getenv("TRIREME_EMULATOR_NCCL_FAIL");
    int rank = -1;
    long long number = 0;
    if (text == nullptr || *text == '\0') return;
    char word[8] = "told";
    if (std::sscanf(text, "%d:%lld:%7s", &rank, &number, word) < 2 || !Known(word)) {
      Die("TRIREME_EMULATOR_NCCL_FAIL is not rank:operation or rank:operation:told, silent, "
          "stopped or killed");
    }
    if (rank == WorldRank()) last = number;
  }
  bool Known(const std::string& word) {
    how = word;
    return word == "told" || word == "silent" || word == "stopped" || word == "killed";
  }
  std::string how;
  long long last = 0;  // 0: none is
  long long come = 0;
  int names = 0;
  std::vector<std::weak_ptr<Members>> members;
};

Process& TheProcess() {
  static Process process;
  return process;
}

// As NCCL from 2.30 on has it.
bool MayShareGpus() {
  constexpr int kFirst = 23000;
  int version = 0;
  ncclGetVersion(&version);
  return version >= kFirst && Number("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
}

// The members by their rank in the communicator, on all of them.
std::vector<Introduction> Meet(const Name& name, int ranks, int rank) {
  const int tag = kFirstTag + name.number % kTags;
  std::vector<Introduction> all(static_cast<std::size_t>(ranks));
  const int bytes = ranks * static_cast<int>(sizeof(Introduction));
  Introduction own = {rank, WorldRank()};
  cudaGetDevice(&own.device);
  own.device = VisibleDevices().at(static_cast<std::size_t>(own.device));
  if (own.world_rank != name.maker) {
    MPI_Send(&own, sizeof own, MPI_BYTE, name.maker, tag, MPI_COMM_WORLD);
    MPI_Recv(all.data(), bytes, MPI_BYTE, name.maker, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return all;
  }
  all[static_cast<std::size_t>(rank)] = own;
  for (int others = 1; others < ranks; ++others) {
    Introduction other;
    MPI_Recv(&other, sizeof other, MPI_BYTE, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    all.at(static_cast<std::size_t>(other.rank)) = other;
  }
  for (const Introduction& member : all) {
    if (member.world_rank == own.world_rank) continue;
    MPI_Send(all.data(), bytes, MPI_BYTE, member.world_rank, tag, MPI_COMM_WORLD);
  }
  return all;
}

}  // namespace

Members::Members(const ncclUniqueId& id, int ranks, int rank, int blocks)
    : rank_(rank), ranks_(ranks), blocks_(blocks) {
  Name name;
  std::memcpy(&name, id.internal, sizeof name);
  if (name.magic != Name().magic) Die("a communicator of NCCL is made of what is no id");
  std::vector<int> world;
  std::set<int> devices;
  for (const Introduction& member : Meet(name, ranks, rank)) {
    world.push_back(member.world_rank);
    devices.insert(member.device);
  }
  const auto maker = static_cast<std::uint64_t>(name.maker);
  order_ =
      std::make_unique<LaunchOrder>(maker << 32 | static_cast<std::uint64_t>(name.number), world);
  if (static_cast<int>(devices.size()) < ranks && !MayShareGpus()) state_ = ncclInvalidUsage;
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_incl(all, ranks, world.data(), &some);
  MPI_Comm_create_group(MPI_COMM_WORLD, some, kFirstTag + name.number % kTags, &transfers_);
  MPI_Comm_dup(transfers_, &notices_);
  MPI_Group_free(&some);
  MPI_Group_free(&all);
}

Members::~Members() {
  // Aborted communicators may have transfers under way for ever.
  if (aborted_) return;
  RefuseAfterFinalize("the last operation of a communicator of NCCL goes");
  MPI_Comm_free(&notices_);
  MPI_Comm_free(&transfers_);
}

ncclResult_t Members::State() {
  if (state_ != ncclSuccess) return state_;
  int told = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, 0, notices_, &told, MPI_STATUS_IGNORE);
  if (told != 0) state_ = ncclRemoteError;
  return state_;
}

void Members::TellOfLoss() {
  state_ = ncclSystemError;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    MPI_Request notice = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, other, 0, notices_, &notice);
    MPI_Request_free(&notice);
  }
}

ncclUniqueId NewNcclId() {
  ncclUniqueId id{};
  Name name;
  name.maker = WorldRank();
  name.number = TheProcess().names++;
  std::memcpy(id.internal, &name, sizeof name);
  return id;
}

std::shared_ptr<Members> NewMembers(const ncclUniqueId& id, int ranks, int rank, int blocks) {
  auto members = std::make_shared<Members>(id, ranks, rank, blocks);
  auto& all = TheProcess().members;
  std::erase_if(all, [](const auto& gone) { return gone.expired(); });
  all.push_back(members);
  return members;
}

bool ComesToOperation() {
  Process& process = TheProcess();
  if (++process.come != process.last) return true;
  std::fprintf(stderr, "emulated NCCL: rank %d is lost at its operation %lld\n", WorldRank(),
               process.last);
  if (process.how == "stopped") std::raise(SIGSTOP);
  if (process.how == "killed") std::raise(SIGKILL);
  if (process.how != "told") return process.how == "stopped";  // goes on if it is woken
  for (const auto& weak : process.members) {
    if (const auto members = weak.lock()) members->TellOfLoss();
  }
  return false;
}

// LaunchOrder: the communicators of this process, and the comparison of notes.

namespace {

std::vector<LaunchOrder*>& Living() {
  static std::vector<LaunchOrder*> living;
  return living;
}

}  // namespace

LaunchOrder::LaunchOrder(std::uint64_t id, std::vector<int> world)
    : id_(id), world_(std::move(world)) {
  for (LaunchOrder* other : Living()) {
    const auto both = std::ranges::count_if(
        world_, [&](int rank) { return std::ranges::count(other->world_, rank) > 0; });
    if (both < 2) continue;
    shared_.push_back(other);
    other->shared_.push_back(this);
  }
  Living().push_back(this);
}

LaunchOrder::~LaunchOrder() {
  std::erase(Living(), this);
  for (LaunchOrder* other : shared_) std::erase(other->shared_, this);
}

std::int64_t LaunchOrder::Launched(std::uint64_t capture) const {
  if (capture == 0) return launched_;
  return capture == capture_ ? recorded_ : 0;
}

LaunchNote LaunchOrder::Launch(std::uint64_t capture) {
  LaunchNote note;
  note.in_graph = capture != 0 ? 1 : 0;
  note.number = Launched(capture) + 1;
  for (const LaunchOrder* other : shared_) {
    if (note.occupied == static_cast<std::int32_t>(note.counts.size())) break;
    note.counts[static_cast<std::size_t>(note.occupied++)] = {other->id_, other->Launched(capture)};
  }
  if (capture == 0) {
    launched_ = note.number;
  } else {
    capture_ = capture;
    recorded_ = note.number;
  }
  return note;
}

void LaunchOrder::Compare(const LaunchNote& own, int rank, const LaunchNote& others,
                          int other) const {
  if (own.in_graph != others.in_graph) return;
  for (std::int32_t i = 0; i < own.occupied; ++i) {
    const LaunchNote::Count& mine = own.counts[static_cast<std::size_t>(i)];
    const auto end = others.counts.begin() + others.occupied;
    const auto theirs = std::find_if(others.counts.begin(), end, [&](const auto& count) {
      return count.communicator == mine.communicator;
    });
    if (theirs == end || theirs->launched == mine.launched) continue;
    const auto found = std::ranges::find(Living(), mine.communicator, &LaunchOrder::id_);
    Die(fmt::format(
        "ranks launch operations of two communicators in different orders: before operation {} of "
        "{}, rank {} had launched {} operations of {}, rank {} had launched {}{}; NCCL's kernels "
        "may wait for each other for ever",
        own.number, Name(), world_.at(static_cast<std::size_t>(rank)), mine.launched,
        found != Living().end() ? (*found)->Name() : "a communicator that is gone",
        world_.at(static_cast<std::size_t>(other)), theirs->launched,
        own.in_graph != 0 ? " (in a graph)" : ""));
  }
}

std::string LaunchOrder::Name() const {
  return fmt::format("communicator {}.{} of ranks {}", id_ >> 32, id_ & 0xffffffffu,
                     fmt::join(world_, ", "));
}

// NcclRoom: the sums over the operations that have begun.

namespace {

int begun = 0, occupied = 0;  // operations, blocks
int most_occupied = 0;

}  // namespace

int BlocksOfNccl() {
  static const int blocks = static_cast<int>(Number("TRIREME_EMULATOR_NCCL_BLOCKS", 32));
  return blocks;
}

int MostBlocks() { return most_occupied; }

void ForgetMostBlocks() { most_occupied = 0; }

void NcclRoom::Take(int blocks) {
  static const int most = static_cast<int>(Number("TRIREME_EMULATOR_MULTIPROCESSORS", 132));
  static const int queues = static_cast<int>(Number("CUDA_DEVICE_MAX_CONNECTIONS", 8));
  ++begun;
  occupied += blocks;
  blocks_ = blocks;
  most_occupied = std::max(most_occupied, occupied);
  if (occupied > most) {
    Die(
        fmt::format("{} operations of NCCL that wait for other ranks occupy {} blocks of {} "
                    "multiprocessors (TRIREME_EMULATOR_MULTIPROCESSORS): no kernel can start",
                    begun, occupied, most));
  }
  if (begun >= queues) {
    Die(
        fmt::format("{} operations of NCCL that wait for other ranks occupy all {} hardware queues "
                    "(CUDA_DEVICE_MAX_CONNECTIONS): no kernel can start",
                    begun, queues));
  }
}

void NcclRoom::Leave() {
  if (blocks_ == 0) return;
  occupied -= std::exchange(blocks_, 0);
  --begun;
}

// NcclTurn: a queue of the operations that have not begun, or not ended.

struct NcclTurn::Place {
  std::string name;
  bool begun = false, ended = false;
  Patience patience;
};

namespace {

std::deque<std::weak_ptr<void>>& Places() {
  static std::deque<std::weak_ptr<void>> places;
  return places;
}

BeginOrder FindOrder(bool in_graph) {
  constexpr int kFirstNccl = 22600, kFirstEvents = 12030, kFirstInGraphs = 12090;
  const char* const asked = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  constexpr int kBuiltWith = 12090;
  int nccl = 0, driver = 0;
  ncclGetVersion(&nccl);
  cudaDriverGetVersion(&driver);
  const auto built_with = static_cast<int>(Number("TRIREME_EMULATOR_NCCL_CUDA", kBuiltWith));
  if (asked == nullptr || std::strcmp(asked, "0") == 0 || nccl < kFirstNccl) {
    return BeginOrder::kAny;
  }
  if (in_graph && driver < kFirstInGraphs) return BeginOrder::kSerial;
  return driver < kFirstEvents || built_with < kFirstEvents ? BeginOrder::kSerial
                                                            : BeginOrder::kLaunched;
}

}  // namespace

BeginOrder OrderOfBegins(bool in_graph) {
  static const BeginOrder outside = FindOrder(false), inside = FindOrder(true);
  return in_graph ? inside : outside;
}

std::chrono::seconds Patience::Limit() {
  static const std::chrono::seconds limit(Number("TRIREME_EMULATOR_PATIENCE", 100));
  return limit;
}

bool Patience::Over(std::chrono::seconds limit) {
  using Clock = std::chrono::steady_clock;
  if (since_ == Clock::time_point()) since_ = Clock::now();
  return Clock::now() - since_ > limit;
}

NcclTurn::NcclTurn(std::string name) : place_(std::make_shared<Place>()) {
  place_->name = std::move(name);
  Places().push_back(place_);
}

bool NcclTurn::Come() {
  if (place_ == nullptr) return true;
  auto& places = Places();
  const bool serial = OrderOfBegins(false) == BeginOrder::kSerial;
  while (!places.empty()) {
    const auto first = std::static_pointer_cast<Place>(places.front().lock());
    if (first == place_) return true;
    if (first != nullptr && !(serial ? first->ended : first->begun)) break;
    places.pop_front();
  }
  if (places.empty()) return true;
  if (!place_->patience.Over()) return false;
  const auto first = std::static_pointer_cast<Place>(places.front().lock());
  Die(fmt::format(
      "{} has waited for {} s to begin: {}, which the host launched before, has not {} "
      "(NCCL_LAUNCH_ORDER_IMPLICIT)",
      place_->name, Patience::Limit().count(), first->name, !first->begun ? "begun" : "ended"));
}

void NcclTurn::Begin() {
  if (place_ != nullptr) place_->begun = true;
}

void NcclTurn::End() {
  if (place_ != nullptr) place_->begun = place_->ended = true;
}

// Progress of the emulated GPU while a process waits in MPI: before calls of MPI that wait for
// other ranks, the streams of this process go on until the others have come. Weak definitions, so
// that a test may count calls with its own.

namespace {

template <typename Done>
void GoOnUntil(Done&& done) {
  while (!done()) {
    if (AllStreams().empty() || !RunALittle()) sched_yield();
  }
}

// Returns when all ranks have come: what follows waits for nobody's stream.
void Arrive(MPI_Comm comm) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  if (size == 1) return;
  MPI_Request all = MPI_REQUEST_NULL;
  PMPI_Ibarrier(comm, &all);
  GoOnUntil([&] {
    int done = 0;
    PMPI_Test(&all, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
}

}  // namespace

}  // namespace emulator

using emulator::Arrive;

extern "C" {

[[gnu::weak]] int MPI_Barrier(MPI_Comm comm) {
  Arrive(comm);
  return MPI_SUCCESS;
}

[[gnu::weak]] int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Bcast(data, count, type, root, comm);
}

[[gnu::weak]] int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type,
                                MPI_Op operation, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Allreduce(from, to, count, type, operation, comm);
}

[[gnu::weak]] int MPI_Reduce_scatter(const void* from, void* to, const int* counts,
                                     MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Reduce_scatter(from, to, counts, type, operation, comm);
}

[[gnu::weak]] int MPI_Allgather(const void* from, int sent, MPI_Datatype sent_type, void* to,
                                int taken, MPI_Datatype taken_type, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Allgather(from, sent, sent_type, to, taken, taken_type, comm);
}

[[gnu::weak]] int MPI_Allgatherv(const void* from, int sent, MPI_Datatype sent_type, void* to,
                                 const int* taken, const int* places, MPI_Datatype taken_type,
                                 MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Allgatherv(from, sent, sent_type, to, taken, places, taken_type, comm);
}

[[gnu::weak]] int MPI_Alltoallv(const void* from, const int* sent, const int* sent_places,
                                MPI_Datatype sent_type, void* to, const int* taken,
                                const int* taken_places, MPI_Datatype taken_type, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Alltoallv(from, sent, sent_places, sent_type, to, taken, taken_places, taken_type,
                        comm);
}

[[gnu::weak]] int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  Arrive(comm);
  return PMPI_Comm_split(comm, color, key, part);
}

[[gnu::weak]] int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* other) {
  Arrive(comm);
  return PMPI_Comm_dup(comm, other);
}

[[gnu::weak]] int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  emulator::GoOnUntil([&] {
    int done = 0;
    PMPI_Test(request, &done, status);
    return done != 0;
  });
  return MPI_SUCCESS;
}

}  // extern "C"
