// Facts of a node and a process: cores, network cards, limits, the program's file, file systems.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <xxhash.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

#include "trireme/base/files.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

namespace {

std::vector<int> Common(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> common;
  std::ranges::set_intersection(a, b, std::back_inserter(common));
  return common;
}

// A sentence on the first two ranks that share some cores but not all; empty: none do.
std::string OverlapOf(const std::vector<std::vector<int>>& cores) {
  for (std::size_t a = 0; a < cores.size(); ++a) {
    for (std::size_t b = a + 1; b < cores.size(); ++b) {
      if (cores[a] == cores[b]) continue;
      const std::vector<int> common = Common(cores[a], cores[b]);
      if (common.empty()) continue;
      return fmt::format(
          "ranks {} and {} of a node share cores {}, but not the others that they are bound to ({} "
          "and {}): they disturb each other. Let the launcher bind each rank to cores of its own",
          a, b, RangesOf(common), RangesOf(cores[a]), RangesOf(cores[b]));
    }
  }
  return {};
}

std::string TextOf(const std::vector<std::vector<int>>& cores, std::span<const int> threads) {
  const std::size_t ranks = cores.size();
  const int most = threads.empty() ? 1 : *std::ranges::max_element(threads);
  const std::string each = fmt::format("{} thread{} each", most, most == 1 ? "" : "s");
  if (ranks == 1) return fmt::format("1 rank on cores {}, {}", RangesOf(cores[0]), each);
  const bool alike = std::ranges::all_of(cores, [&](const auto& of) { return of == cores[0]; });
  if (alike) {
    return fmt::format("{} ranks on cores {} together, {}", ranks, RangesOf(cores[0]), each);
  }
  std::size_t least = cores[0].size(), largest = least;
  for (const auto& of : cores) {
    least = std::min(least, of.size());
    largest = std::max(largest, of.size());
  }
  const std::string sizes =
      least == largest ? std::to_string(least) : fmt::format("{} to {}", least, largest);
  return fmt::format("{} ranks on {} cores each, {}", ranks, sizes, each);
}

}  // namespace

Binding BindingOf(const std::vector<std::vector<int>>& cores, std::span<const int> threads,
                  std::span<const int> online) {
  Binding binding;
  if (cores.empty()) return binding;
  binding.text = TextOf(cores, threads);
  binding.overlap = OverlapOf(cores);
  std::set<int> used;
  for (const auto& of : cores) used.insert(of.begin(), of.end());
  const auto wanted = static_cast<std::size_t>(std::accumulate(threads.begin(), threads.end(), 0));
  if (wanted > used.size()) {
    binding.crowded = fmt::format(
        "{} threads of a node's ranks have {} cores: speeds of single ranks tell who waited, not "
        "who is slow",
        wanted, used.size());
  }
  if (2 * used.size() < online.size()) {
    std::vector<int> list(used.begin(), used.end());
    binding.idle = fmt::format(
        "the ranks of a node may use {} of its {} cores ({}): the others stay idle. Ask for more "
        "cores per rank (srun --cpus-per-task, mpirun --map-by ppr:1:numa:pe=N), or more ranks",
        used.size(), online.size(), RangesOf(list));
  }
  return binding;
}

// A host's network devices, and whether a GPU is far from its cores and its network card.

namespace {

// First active port: "mlx5_0 InfiniBand 200 Gb/sec (4X HDR)"; empty: none is active.
std::string ActivePort(const std::string& device, const std::string& name) {
  for (const std::string& port : NamesIn(device + "/ports")) {
    const std::string at = device + "/ports/" + port;
    if (FirstLine(at + "/state").find("ACTIVE") == std::string::npos) continue;
    return fmt::format("{} {} {}", name, FirstLine(at + "/link_layer"), FirstLine(at + "/rate"));
  }
  return {};
}

std::string Some(std::span<const std::string> names) {
  constexpr std::size_t kShown = 4;
  std::string text =
      fmt::format("{}", fmt::join(names.first(std::min(kShown, names.size())), ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// Numbers in a list of ranges: "0-3,8" -> 0, 1, 2, 3, 8.
std::vector<int> Numbers(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int found = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    for (int i = first; found > 0 && i <= (found == 2 ? last : first); ++i) numbers.push_back(i);
  }
  return numbers;
}

// NUMA node of the device in `folder`; -1: not known.
int NumaNodeOf(const std::string& folder) {
  const std::string node = FirstLine(folder + "/numa_node");
  return node.empty() ? -1 : std::atoi(node.c_str());
}

// Network cards: name and NUMA node.
std::vector<std::pair<std::string, int>> NetworkCards(const Roots& roots) {
  std::vector<std::pair<std::string, int>> cards;
  for (const char* kind : {"infiniband", "cxi"}) {
    const std::string folder = fmt::format("{}/class/{}/", roots.sys, kind);
    for (const std::string& name : NamesIn(folder)) {
      cards.emplace_back(name, NumaNodeOf(folder + name + "/device"));
    }
  }
  return cards;
}

}  // namespace

Devices FindDevices(const Roots& roots) {
  const std::string classes = roots.sys + "/class/";
  Devices devices;
  for (const std::string& name : NamesIn(classes + "infiniband")) {
    const std::string port = ActivePort(classes + "infiniband/" + name, name);
    if (!port.empty()) devices.infiniband.push_back(port);
  }
  devices.slingshot = NamesIn(classes + "cxi");
  for (const std::string& name : NamesIn(classes + "net")) {
    const std::string at = classes + "net/" + name;
    if (name == "lo" || FirstLine(at + "/operstate") == "down") continue;
    const std::string speed = FirstLine(at + "/speed");
    const bool known = !speed.empty() && speed[0] != '-';
    const double gigabits = known ? std::atof(speed.c_str()) / 1000 : 0;
    devices.ethernet.push_back(known ? fmt::format("{} {:g} Gbit/s", name, gigabits) : name);
  }
  return devices;
}

std::string Devices::Text() const {
  std::vector<std::string> parts;
  for (const std::vector<std::string>* kind : {&infiniband, &slingshot, &ethernet}) {
    if (!kind->empty()) parts.push_back(Some(*kind));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string FarCard(const std::string& address, std::span<const int> cores, std::string_view chosen,
                    const Roots& roots) {
  const std::string card = roots.sys + "/bus/pci/devices/" + address;
  const int node = NumaNodeOf(card);
  if (node < 0) return {};
  const std::vector<int> near = Numbers(FirstLine(card + "/local_cpulist"));
  const bool none_near = std::ranges::none_of(
      cores, [&](int core) { return std::ranges::find(near, core) != near.end(); });
  if (!near.empty() && !cores.empty() && none_near) {
    return fmt::format(
        "GPU {} is attached to cores {} (NUMA node {}), but its rank is bound to cores {}: copies "
        "cross "
        "the sockets. Let the launcher bind ranks to the cores of their GPUs",
        address, RangesOf(near), node, RangesOf(cores));
  }
  const auto cards = NetworkCards(roots);
  const auto is_chosen = [&](const std::string& name) {
    return chosen.find(name) != std::string_view::npos;
  };
  std::string own, far;
  for (const auto& [name, numa] : cards) {
    if (is_chosen(name) && numa == node) return {};
    if (numa == node && own.empty()) own = name;
    if (is_chosen(name) && numa >= 0) far = name;
  }
  if (own.empty() || far.empty()) return {};
  return fmt::format(
      "GPU {} (NUMA node {}) is given network card {} of another node, though {} is near: leave "
      "UCX_NET_DEVICES out, or name the near one",
      address, node, far, own);
}

std::vector<int> OnlineCores(const Roots& roots) {
  for (const char* path : {"/fs/cgroup/cpuset.cpus.effective", "/devices/system/cpu/online"}) {
    std::vector<int> cores = Numbers(FirstLine(roots.sys + path));
    if (!cores.empty()) return cores;
  }
  return {};
}

std::string RangesOf(std::span<const int> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += text.empty() ? "" : ",";
    text +=
        last == i ? std::to_string(numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

// Limits of a process, and its node's shared memory.

static std::int64_t Soft(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

static std::string Bytes(std::int64_t bytes) {
  if (bytes < 0) return "unlimited";
  constexpr std::int64_t kKibi = 1024, kMebi = kKibi * kKibi, kGibi = kMebi * kKibi;
  if (bytes >= kGibi) {
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGibi));
  }
  if (bytes >= kMebi) return fmt::format("{} MiB", bytes / kMebi);
  return fmt::format("{} KiB", bytes / kKibi);
}

Limits ReadLimits() {
  Limits limits;
  limits.locked_bytes = Soft(RLIMIT_MEMLOCK);
  limits.open_files = Soft(RLIMIT_NOFILE);
  limits.core_bytes = Soft(RLIMIT_CORE);
  struct statfs shm {};
  if (::statfs("/dev/shm", &shm) == 0) {
    limits.shm_bytes = static_cast<std::int64_t>(shm.f_blocks) * shm.f_bsize;
    limits.shm_free = static_cast<std::int64_t>(shm.f_bavail) * shm.f_bsize;
  }
  return limits;
}

std::string Limits::Text() const {
  return fmt::format("locked memory {}, open files {}, core {}, /dev/shm {}", Bytes(locked_bytes),
                     open_files < 0 ? "unlimited" : std::to_string(open_files), Bytes(core_bytes),
                     shm_bytes == 0 ? "missing" : Bytes(shm_bytes));
}

// ProgramFile: hashes the file that this process runs, once per node.

namespace {

constexpr const char* kProgram = "/proc/self/exe";

struct Hashed {
  std::array<std::int64_t, 4> file{};  // device, inode, bytes, time of last change in ns
  std::uint64_t hash = 0;
  std::int64_t Bytes() const { return file[2]; }
};

Hashed LookAtProgram() {
  struct stat facts {};
  if (::stat(kProgram, &facts) != 0) return {};
  return {.file = {static_cast<std::int64_t>(facts.st_dev), static_cast<std::int64_t>(facts.st_ino),
                   facts.st_size, facts.st_mtim.tv_sec * 1000000000 + facts.st_mtim.tv_nsec}};
}

// Hashes the program's file; fast, since most of its pages are in memory already.
void HashProgram(Hashed& program) {
  const Descriptor file(kProgram, O_RDONLY | O_CLOEXEC);
  if (!file.Valid() || program.Bytes() == 0) return;
  const auto size = static_cast<std::size_t>(program.Bytes());
  void* const bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.Get(), 0);
  if (bytes == MAP_FAILED) return;
  program.hash = XXH3_64bits(bytes, size);
  ::munmap(bytes, size);
}

}  // namespace

std::string ProgramFile(const comm::Communicator& node) {
  Hashed mine = LookAtProgram();
  if (node.IsRoot()) HashProgram(mine);
  Hashed first = mine;
  node.Broadcast(&first, static_cast<std::int64_t>(sizeof first));
  if (mine.file == first.file) {
    mine = first;
  } else if (!node.IsRoot()) {
    HashProgram(mine);
  }
  if (mine.Bytes() == 0) return {};
  return fmt::format("{:016x} ({} bytes)", mine.hash, mine.Bytes());
}

// Type of a file system, and how Lustre stripes a file over its servers. Opens no file.

namespace {

namespace fs = std::filesystem;

template <typename T>
T At(std::string_view bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size())
    std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string Size(std::uint64_t bytes) {
  constexpr std::uint64_t kMebi = 1 << 20, kKibi = 1 << 10;
  return bytes % kMebi == 0 ? fmt::format("{} MiB", bytes / kMebi)
                            : fmt::format("{} KiB", bytes / kKibi);
}

// struct lov_user_md (lustre_user.h): magic, pattern, object (16 bytes), stripe size, count, first.
constexpr std::uint32_t kPlain = 0x0BD10BD0, kPooled = 0x0BD30BD0, kComposite = 0x0BD60BD0;
std::string PlainStriping(std::string_view bytes) {
  constexpr std::size_t kSizeAt = 24, kCountAt = 28, kLeast = 32;
  const auto magic = At<std::uint32_t>(bytes, 0);
  if (bytes.size() < kLeast || (magic != kPlain && magic != kPooled)) return {};
  const auto count = At<std::uint16_t>(bytes, kCountAt);
  constexpr std::uint16_t kAll = 0xFFFF;
  const std::string size = Size(At<std::uint32_t>(bytes, kSizeAt));
  if (count == kAll) return "stripes of " + size + " over all servers";
  if (count == 0) return "the file system's default striping";
  return fmt::format("{} stripe{} of {}", count, count == 1 ? "" : "s", size);
}

std::string ReadStriping(const std::string& path) {
  constexpr std::size_t kMost = 65536;
  std::string bytes(kMost, '\0');
  const ssize_t length = ::getxattr(path.c_str(), "lustre.lov", bytes.data(), bytes.size());
  if (length <= 0) return {};
  return StripingOf(std::string_view(bytes).substr(0, static_cast<std::size_t>(length)));
}

std::string NearestExisting(const std::string& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  while (at.has_relative_path() && !fs::exists(at, error)) at = at.parent_path();
  return at.string();
}

}  // namespace

// A composite layout: a header of 32 bytes with the number of components, then 48 bytes for each,
// with the offset of its lov_user_md. The last component holds most of a large file.
std::string StripingOf(std::string_view attribute) {
  if (At<std::uint32_t>(attribute, 0) != kComposite) return PlainStriping(attribute);
  constexpr std::size_t kCountAt = 14, kHeader = 32, kEntry = 48, kOffsetAt = 24, kSizeAt = 28;
  const auto count = At<std::uint16_t>(attribute, kCountAt);
  if (count == 0) return {};
  const std::size_t entry = kHeader + static_cast<std::size_t>(count - 1) * kEntry;
  const auto offset = At<std::uint32_t>(attribute, entry + kOffsetAt);
  if (entry + kEntry > attribute.size() || offset > attribute.size()) return {};
  const std::string last =
      PlainStriping(attribute.substr(offset, At<std::uint32_t>(attribute, entry + kSizeAt)));
  return last.empty() ? last : fmt::format("{} components, the last with {}", count, last);
}

FileSystem FileSystemOf(const std::string& path) {
  FileSystem system;
  const std::string at = NearestExisting(path);
  struct statfs facts {};
  struct stat place {};
  if (::statfs(at.c_str(), &facts) != 0 || ::stat(at.c_str(), &place) != 0) {
    system.type = "unknown";
    return system;
  }
  const std::uint64_t type = FileSystemNumber(facts.f_type);
  const FileSystemType* const known = FindFileSystem(type);
  system.type = NameOfFileSystem(type);
  system.shared = known == nullptr || known->shared;
  system.network_file_system = type == kNfsNumber;
  if (type == kLustreNumber) system.striping = ReadStriping(at);
  std::uint64_t id = 0;
  std::memcpy(&id, &facts.f_fsid, sizeof id);
  if (!system.shared) system.identity = id * 31 + place.st_dev * 7 + place.st_ino;
  return system;
}

std::string FileSystem::Text() const {
  return striping.empty() ? type : fmt::format("{}, {}", type, striping);
}

}  // namespace trireme::tools
