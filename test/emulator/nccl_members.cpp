// Meeting of the members of a communicator, and the loss of one on purpose.
#include "nccl_members.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "settings.hpp"
#include "stream.hpp"

namespace emulator {
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

}  // namespace emulator
