// LookAround: each rank's facts and complaints, their way to rank 0, and what follows from them
// together.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <set>

#include "trireme/base/clock.hpp"
#include "trireme/base/processor.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

namespace {

// Topics of complaints begin with this mark, and go on with the kind of the warning.
constexpr char kComplaint = '!';

std::string Topic(const char* kind) { return std::string(1, kComplaint) + kind; }

double WallClock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* Environment(const char* name) { return std::getenv(name); }

// A rank's look at itself and, on the first rank of a node, at the node.
class Looker {
 public:
  Looker(const Ranks& ranks, const Subject& subject, bool whole)
      : ranks_(ranks), subject_(subject), whole_(whole), rank_(ranks.world.Rank()) {}

  Tally Look() {
    LookAtMpi();
    if (!subject_.card.empty()) {
      const char* const cards = std::getenv("UCX_NET_DEVICES");
      Complain("GPU", FarCard(subject_.card, subject_.cores, cards == nullptr ? "" : cards,
                              subject_.roots));
    }
    LookAtBinding();
    if (!ranks_.node.IsRoot()) return std::move(tally_);
    LookAtNode();
    LookAtFiles();
    LookAtLimits();
    return std::move(tally_);
  }

 private:
  void Say(const char* topic, const std::string& text) {
    if (!text.empty()) tally_.Add(topic, text, rank_);
  }
  void Complain(const char* kind, const std::string& text) {
    if (!text.empty()) tally_.Add(Topic(kind), text, rank_);
  }
  bool OnSeveralHosts() const { return ranks_.node.Size() < ranks_.world.Size(); }

  void LookAtMpi() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    fabric_ = FabricOf(text.data(), LoadedObjects(), Environment);
    Say("MPI",
        fabric_.transports.empty() ? fabric_.library : fabric_.library + ", " + fabric_.transports);
  }

  void LookAtBinding() {
    std::vector<std::vector<int>> cores;
    std::vector<int> threads;
    std::string mine = std::to_string(subject_.threads);
    for (const int core : subject_.cores) mine += fmt::format(" {}", core);
    for (const std::string& text : ranks_.node.Gather(mine)) {
      std::istringstream numbers(text);
      numbers >> threads.emplace_back();
      std::vector<int>& of = cores.emplace_back();
      for (int core = 0; numbers >> core;) of.push_back(core);
    }
    if (!ranks_.node.IsRoot()) return;
    const Binding binding = BindingOf(cores, threads, OnlineCores(subject_.roots));
    Say("binding", binding.text);
    Complain("binding", binding.overlap);
    if (!whole_) return;  // a start has a warning of its own on too few cores
    Complain("binding", binding.crowded);
    Complain("binding", binding.idle);
  }

  void LookAtNode() {
    utsname system{};
    ::uname(&system);
    Say("processor", fmt::format("{} ({})", device::CpuName(), device::InstructionSet()));
    Say("system", fmt::format("{} {}", system.sysname, system.release));
    devices_ = FindDevices(subject_.roots);
    Say("network", devices_.Text());
    if (devices_.Fast() && fabric_.tcp && OnSeveralHosts()) {
      Complain(
          "fabric",
          fmt::format("MPI sends over TCP ({}), though there is {}: load the machine's own MPI "
                      "library, or leave out the settings that choose TCP",
                      fabric_.transports, devices_.slingshot.empty() ? "InfiniBand" : "Slingshot"));
    }
    if (!whole_) return;
    const comm::Available memory = comm::AvailableMemory();
    constexpr double kGibi = 1 << 30;
    Say("memory",
        fmt::format("{:.0f} GiB {}", static_cast<double>(memory.bytes) / kGibi, memory.source));
  }

  void LookAtFiles() {
    if (!subject_.output.empty()) {
      const FileSystem run = FileSystemOf(subject_.output);
      Say("run folder", run.Text());
      if (run.network_file_system) {
        Complain("files",
                 fmt::format("the run folder {} lies on NFS, whose one server takes all of a "
                             "checkpoint: a parallel file system is faster",
                             subject_.output));
      }
      if (!run.shared && OnSeveralHosts()) Say("place", fmt::format("{:x}", run.identity));
    }
    // One text, whatever the number of files: texts of one topic are compared between hosts.
    std::set<std::string> data;
    for (const std::string& path : subject_.data) {
      struct stat facts {};
      const bool there = ::stat(path.c_str(), &facts) == 0;
      data.insert(there ? FileSystemOf(path).Text() : path + " is missing");
    }
    if (!data.empty()) Say("data", fmt::format("{}", fmt::join(data, ", ")));
  }

  void LookAtLimits() {
    constexpr std::int64_t kShmOfRank = std::int64_t{4} << 20, kLeastFiles = 256;
    const Limits limits = ReadLimits();
    Say("limits", limits.Text());
    if (!devices_.infiniband.empty() && limits.locked_bytes >= 0) {
      Complain("limits",
               "locked memory is limited (ulimit -l), but InfiniBand locks what it sends: "
               "messages fail or go over TCP. Ask for `ulimit -l unlimited` in the job");
    }
    if (ranks_.node.Size() > 1 && limits.shm_free < kShmOfRank * ranks_.node.Size()) {
      Complain("limits",
               fmt::format("/dev/shm has {} MiB left for {} ranks, whose messages pass through it: "
                           "in a container ask for more (--shm-size, --ipc=host)",
                           limits.shm_free >> 20, ranks_.node.Size()));
    }
    if (limits.open_files >= 0 && limits.open_files < kLeastFiles) {
      Complain("limits", fmt::format("only {} files may be open at once (ulimit -n): MPI and "
                                     "checkpoints need {} and more",
                                     limits.open_files, kLeastFiles));
    }
  }

  const Ranks& ranks_;
  const Subject& subject_;
  const bool whole_;
  const int rank_;
  Fabric fabric_;
  Devices devices_;
  Tally tally_;
};

// Hosts that differ in what should be alike.
void AddMixtures(const Tally& tally, const Ranks& ranks, std::vector<Warning>& warnings) {
  struct Alike {
    const char* topic;
    const char* sentence;
  };
  constexpr std::array<Alike, 3> kAlike = {
      {{"MPI", "MPI differs between ranks"},
       {"processor", "processors differ: the slowest sets the pace"},
       {"data", "the data look different from different hosts"}}};
  for (const Alike& alike : kAlike) {
    const std::vector<Tally::Said>& texts = tally.Of(alike.topic);
    if (texts.size() < 2 || ranks.hosts.Names().size() < 2) continue;
    warnings.push_back(
        {alike.topic, fmt::format("{}: {} on {}, but {} on {}", alike.sentence, texts[0].text,
                                  NameHosts(texts[0].ranks, ranks.hosts), texts[1].text,
                                  NameHosts(texts[1].ranks, ranks.hosts))});
  }
  if (tally.Of("place").size() > 1) {
    warnings.push_back({"files",
                        "the run folder is not the same on all hosts: it lies on disks of their "
                        "own. Choose a job.output that all share"});
  }
}

void AddClocks(const ClockSkew& skew, const comm::Hosts& hosts, std::vector<Warning>& warnings) {
  if (skew.seconds == 0) return;
  warnings.push_back(
      {"clock",
       fmt::format("clocks differ: that of {} (rank {}) is at least {:.1f} s ahead of that of {} "
                   "(rank {}); dates of files and ends of allocations are read from them",
                   hosts.Of(skew.ahead), skew.ahead, skew.seconds, hosts.Of(skew.behind),
                   skew.behind)});
}

Findings Conclude(const Tally& tally, const Ranks& ranks, const ClockSkew& skew) {
  Findings findings;
  const bool several = ranks.hosts.Names().size() > 1;
  for (const auto& [topic, texts] : tally.Topics()) {
    if (topic == "place") continue;
    if (topic.front() != kComplaint) {
      findings.facts.emplace_back(topic, tally.Text(topic));
      continue;
    }
    for (const Tally::Said& said : texts) {
      const std::string where =
          several ? fmt::format(" (on {})", NameHosts(said.ranks, ranks.hosts)) : "";
      const std::string text =
          said.text.empty() ? "there are more complaints of this kind" : said.text;
      findings.warnings.push_back({topic.substr(1), text + where});
    }
  }
  AddMixtures(tally, ranks, findings.warnings);
  AddClocks(skew, ranks.hosts, findings.warnings);
  findings.facts.emplace_back("built for", BuiltFor());
  return findings;
}

}  // namespace

std::string NameHosts(std::span<const int> ranks, const comm::Hosts& hosts) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (std::ranges::find(names, hosts.Of(rank)) == names.end()) names.push_back(hosts.Of(rank));
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kShown || ranks.size() >= Tally::kMostRanks) text += " and others";
  return text;
}

Findings LookAround(const Ranks& ranks, const Subject& subject, bool whole) {
  const double start = Seconds();
  const Tally tally = MergeOnRoot(ranks.world, Looker(ranks, subject, whole).Look());
  const ClockSkew skew = CompareWallClocks(ranks.world, WallClock);
  Findings findings;
  if (ranks.world.IsRoot()) findings = Conclude(tally, ranks, skew);
  findings.seconds = Seconds() - start;
  return findings;
}

}  // namespace trireme::tools
