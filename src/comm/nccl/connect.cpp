// NcclChannel: creates its links. MPI carries the NCCL ids.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <nccl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "nccl.hpp"
#include "nccl_channel.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm::nccl {

namespace {

constexpr std::int64_t kTrialBytes = 256;

// Trial messages that cross: twice the bytes that NCCL takes from a sender before the receiver
// arrives (4 MiB per block). The time limit is a hundred times what a slow network needs.
constexpr std::int64_t kCrossingBytes = std::int64_t{32} << 20;
constexpr double kCrossingSeconds = 10;

ncclUniqueId NewId() {
  ncclUniqueId id{};
  Check(ncclGetUniqueId(&id), "a name for a communicator");
  return id;
}

// The name and version of NCCL, and its order of launches.

// NCCL's version number: 22803 is 2.28.3; 0: unknown.
int Version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

// Whether NCCL orders launches itself and the driver is for a CUDA before `first` (12030 is 12.3).
// driver: set to the driver's CUDA version, in the same form.
bool OrdersWithDriverBefore(int first, int& driver) {
  const char* const ordered = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return ordered != nullptr && std::atoi(ordered) != 0 && OrdersLaunches() &&
         cudaDriverGetVersion(&driver) == cudaSuccess && driver < first;
}

// NCCL's log: a file in memory that NCCL opens through /proc, and the few facts taken from it.

constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
constexpr const char* kOwnVariables[] = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"};

// NCCL has one log per process and opens it once.
struct Kept {
  bool decided = false;
  int file = -1;  // file in memory; -1: the log is not kept
  bool sealed = false;
  std::size_t named = 0;  // bytes already attributed to a communicator
  std::vector<std::pair<std::string, std::string>> communicators;
};

Kept& TheLog() {
  static Kept kept;
  return kept;
}

std::int64_t Size(int file) {
  struct stat facts {};
  return fstat(file, &facts) == 0 ? facts.st_size : 0;
}

std::string Text() {
  const int file = TheLog().file;
  std::string text(static_cast<std::size_t>(file < 0 ? 0 : Size(file)), '\0');
  const ssize_t read = text.empty() ? 0 : pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read)));
  return text;
}

// The word that follows `mark` in a line, up to the next blank; "" if `mark` is not there.
std::string WordBehind(const std::string& line, std::string_view mark) {
  const std::size_t at = line.find(mark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + mark.size();
  return line.substr(begin, line.find(' ', begin) - begin);
}

template <typename Body>
void ForLines(const std::string& lines, Body&& body) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) body(line);
}

}  // namespace

void NcclChannel::ConnectCollectives(const ChannelSetup& setup) {
  trial_ = device::AllocateZeroed(kTrialBytes, device::Kind::kCuda);
  ncclUniqueId id{};
  group_.Together([&] {
    if (group_.IsRoot()) id = NewId();
  });
  group_.Broadcast(&id, sizeof id);
  const int rank = group_.Rank(), size = group_.Size();
  const int most_blocks = MostBlocksOfCollective(setup);
  collectives_ = std::make_unique<Link>(Name(), id, size, rank, most_blocks);
  place_ = {.rank = rank, .ranks = size, .neighbours = setup.group == Group::kShard};
  QueueCollective({.from = trial_.get(), .to = trial_.get(), .count = 1}, *collectives_, place_);
  Await(*collectives_);
  if (setup.shifts || place_.neighbours) ConnectNeighbours(1);
  if (place_.neighbours) ConnectNeighbours(-1);
}

// way: 1 connects to the next rank around the ring, -1 to the previous one.
void NcclChannel::ConnectNeighbours(int way) {
  const int size = place_.ranks;
  const Places sent(Transfer::kSend, 1, (place_.rank + way + size) % size, size);
  const Places taken(Transfer::kReceive, 1, (place_.rank - way + size) % size, size);
  void* const second = static_cast<std::byte*>(trial_.get()) + kTrialBytes / 2;
  QueueCollective({.transfer = Transfer::kAllToAll,
                   .from = trial_.get(),
                   .to = second,
                   .places = &sent,
                   .taken = &taken},
                  *collectives_, place_);
  Await(*collectives_);
}

// Connects one edge after another in an order that all ranks share: first those with a sender of
// even rank, so that edges without a common rank connect at the same time.
void NcclChannel::ConnectEdges(const ChannelSetup& setup) {
  const int size = group_.Size();
  const auto connect = [&](int tag, int way) {
    for (const int parity : {0, 1}) {
      for (int sender = parity; sender < size; sender += 2) {
        const int receiver = sender + way;
        const bool closes = receiver < 0 || receiver == size;
        if (closes && !setup.closed) continue;
        ConnectEdge(sender, (receiver + size) % size, tag);
      }
    }
  };
  for (const int tag : setup.to_next) connect(tag, 1);
  for (const int tag : setup.to_previous) connect(tag, -1);
}

void NcclChannel::ConnectEdge(int sender, int receiver, int tag) {
  const bool outgoing = group_.Rank() == sender;
  if (!outgoing && group_.Rank() != receiver) return;
  const int peer = outgoing ? receiver : sender;
  ncclUniqueId id{};
  if (outgoing) {
    id = NewId();
    MPI_Send(&id, sizeof id, MPI_BYTE, peer, tag, group_.Handle());
  } else {
    MPI_Recv(&id, sizeof id, MPI_BYTE, peer, tag, group_.Handle(), MPI_STATUS_IGNORE);
  }
  const std::string name =
      fmt::format("{}, messages of tag {} from rank {} to {}", Name(), tag, sender, receiver);
  Edge edge = {.peer = peer, .tag = tag, .outgoing = outgoing, .link = nullptr};
  edge.link = std::make_unique<Link>(name, id, 2, outgoing ? 0 : 1, kMessageBlocks);
  const Operation trial = {.transfer = outgoing ? Transfer::kSend : Transfer::kReceive,
                           .from = trial_.get(),
                           .to = trial_.get(),
                           .count = 1};
  QueueMessage(trial, *edge.link);
  Await(*edge.link);
  edges_.push_back(std::move(edge));
}

// The order of NCCL's launches depends on the driver and on the CUDA that NCCL was built with,
// which it does not report. So neighbours try what stages do: they send to each other, and both
// ranks queue the send before the receive.
void NcclChannel::RequireCrossing(const ChannelSetup& setup) {
  if (setup.to_next.empty() || setup.to_previous.empty()) return;
  const device::Buffer out = device::AllocateZeroed(kCrossingBytes, device::Kind::kCuda);
  const device::Buffer in = device::AllocateZeroed(kCrossingBytes, device::Kind::kCuda);
  const auto tried = [&](const Edge& edge) {
    return edge.tag == setup.to_next[0] || edge.tag == setup.to_previous[0];
  };
  for (const Transfer transfer : {Transfer::kSend, Transfer::kReceive}) {
    const Operation message = {.transfer = transfer,
                               .from = out.get(),
                               .to = in.get(),
                               .count = kCrossingBytes / static_cast<std::int64_t>(sizeof(float))};
    for (const Edge& edge : edges_) {
      const bool now = edge.outgoing == (transfer == Transfer::kSend);
      if (now && tried(edge)) QueueMessage(message, *edge.link);
    }
  }
  // A polling host has a core all the time, unless the machine is short of cores or the job is
  // suspended; then nothing can arrive either, so only the thread's own seconds count.
  const double start = ThreadSeconds();
  bool through = true;
  for (const Edge& edge : edges_) {
    through = through && Await(*edge.link, start + kCrossingSeconds);
  }
  if (group_.Min(std::int64_t{through}) == 1) return;
  AwaitEnds(GiveUp());
  throw AgreedError(
      ExitCode::kBadInput,
      fmt::format("stages on GPUs (grid.pipeline), and {} that runs a GPU's transfers one by one: "
                  "messages of two stages to each other did not arrive within {:.0f} s",
                  Library(), kCrossingSeconds),
      "NCCL goes by the older of its own CUDA and the driver's: load one that was built with CUDA "
      "12.3 or newer, or cut the ranks along other axes of the grid.");
}

bool NcclChannel::Await(const Link& link, double until) {
  while (!link.Idle()) {
    if (ThreadSeconds() > until) return false;
    const std::string failure = link.Failure();
    if (!failure.empty()) {
      AwaitEnds(GiveUp());
      throw RunError(fmt::format("NCCL, {}: no connection: {}", link.Name(), failure),
                     "NCCL_DEBUG=WARN in the environment says more.");
    }
    std::this_thread::yield();
  }
  return true;
}

std::string Library() {
  constexpr int kMajor = 10000, kMinor = 100;
  const int version = Version();
  if (version == 0) return "NCCL of unknown version";
  return fmt::format("NCCL {}.{}.{}", version / kMajor, version % kMajor / kMinor,
                     version % kMinor);
}

// Sets variables of NCCL (user guide, "Environment variables"), which it reads when the first
// communicator is made; variables that the user has set keep their values.
std::string LetRanksShareGpus() {
  constexpr int kFirst = 23000, kKeep = 0;
  if (Version() < kFirst) {
    return fmt::format("{}: before 2.30 ranks that share a GPU cannot meet", Library());
  }
  const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (allowed != nullptr && std::atoi(allowed) == 0) {
    return fmt::format("NCCL_MULTI_RANK_GPU_ENABLE={} in the environment forbids it", allowed);
  }
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", kKeep);
  setenv("NCCL_NVLS_ENABLE", "0", kKeep);  // needs one card per rank
  setenv("NCCL_MAX_CTAS", "4", kKeep);     // all ranks' blocks must fit the card together
  return "";
}

bool OrdersLaunches() {
  constexpr int kFirst = 22600;
  return Version() >= kFirst;
}

std::string SerialisingDriver() {
  constexpr int kFirst = 12030;  // the first with launch events
  int driver = 0;
  if (!OrdersWithDriverBefore(kFirst, driver)) return "";
  return fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
}

bool GraphsOverlapTransfers() {
  constexpr int kFirst = 12090;  // NCCL's enqueue.cc, getImplicitOrder
  int driver = 0;
  return !OrdersWithDriverBefore(kFirst, driver);
}

void KeepLog() {
  Kept& log = TheLog();
  if (log.decided) return;
  log.decided = true;
  for (const char* const name : kOwnVariables) {
    if (std::getenv(name) != nullptr) return;
  }
  const int file = memfd_create("nccl_log", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return;
  const std::string path = fmt::format("/proc/self/fd/{}", file);
  // NCCL would write to standard output if it could not open the file, so this tries it first.
  const int again = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (again < 0) {
    close(file);
    return;
  }
  close(again);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,TUNING", 1);
  setenv("NCCL_DEBUG_FILE", path.c_str(), 1);
  log.file = file;
}

void NameLog(const std::string& name) {
  Kept& log = TheLog();
  if (log.file < 0) return;
  const std::string text = Text();
  if (text.size() > log.named) {
    log.communicators.emplace_back(name, DescribeCommunicator(text.substr(log.named)));
  }
  log.named = text.size();
}

void BoundLog() {
  Kept& log = TheLog();
  if (log.file < 0 || log.sealed || Size(log.file) < kMostBytes) return;
  log.sealed = true;
  fcntl(log.file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW);
}

std::vector<std::pair<std::string, std::string>> DescribeLog() {
  const Kept& log = TheLog();
  std::vector<std::pair<std::string, std::string>> facts = {{"library", Library()}};
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable = *each;
    const std::size_t equals = variable.find('=');
    const std::string name(variable.substr(0, equals));
    const bool own = log.file >= 0 && std::ranges::count(kOwnVariables, name) > 0;
    if (!name.starts_with("NCCL_") || equals == std::string_view::npos || own) continue;
    facts.emplace_back(name, variable.substr(equals + 1));
  }
  if (log.file < 0) {
    facts.emplace_back("taken", "not known: NCCL's log is not kept (NCCL_DEBUG is set)");
    return facts;
  }
  facts.insert(facts.end(), log.communicators.begin(), log.communicators.end());
  const std::string algorithms = DescribeAlgorithms(Text());
  if (!algorithms.empty()) facts.emplace_back("algorithms", algorithms);
  return facts;
}

std::string DescribeCommunicator(const std::string& lines) {
  std::set<std::string> ways;
  std::string channels, shape;
  ForLines(lines, [&](const std::string& line) {
    const std::string way = WordBehind(line, " via ");
    if (!way.empty() && line.find("Channel") != std::string::npos) ways.insert(way);
    if (const std::size_t at = line.find(" coll channels"); at != std::string::npos) {
      channels = line.substr(line.rfind(' ', at - 1) + 1, at - line.rfind(' ', at - 1) - 1);
    }
    for (const char* const mark : {"NCCL INFO Ring ", "NCCL INFO Trees "}) {
      const std::size_t at = line.find(mark);
      if (at != std::string::npos) shape += line.substr(at) + "\n";
    }
  });
  std::vector<std::string> facts;
  if (!ways.empty()) facts.push_back(fmt::format("{}", fmt::join(ways, ", ")));
  if (!channels.empty()) facts.push_back(channels + " channels");
  if (!shape.empty()) {
    constexpr std::size_t kShown = 0xffffffff;
    facts.push_back(fmt::format("rings and trees {:08x}", std::hash<std::string>{}(shape)&kShown));
  }
  return fmt::format("{}", fmt::join(facts, "; "));
}

// Reads lines such as "NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{...}" (since
// NCCL 2.24; older ones print numbers, and some lack the transfer's name).
std::string DescribeAlgorithms(const std::string& lines) {
  std::map<std::string, std::set<std::string>> taken;
  ForLines(lines, [&](const std::string& line) {
    const std::string algorithm = WordBehind(line, "Bytes -> Algo ");
    if (algorithm.empty()) return;
    std::string transfer = WordBehind(line, "NCCL INFO ");
    if (transfer.ends_with(':')) {
      transfer.pop_back();
    } else {
      transfer = "collectives";
    }
    taken[transfer].insert(fmt::format("{}/{}", algorithm, WordBehind(line, " proto ")));
  });
  std::vector<std::string> parts;
  for (const auto& [transfer, ways] : taken) {
    parts.push_back(fmt::format("{} {}", transfer, fmt::join(ways, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace trireme::comm::nccl
