// LookAround: each rank collects facts and complaints, rank 0 gathers them and draws conclusions.
#include <fmt/ranges.h>
#include <link.h>
#include <mpi.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/program.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

namespace {

// Topics that begin with this mark are complaints; the rest of the topic is the warning's kind.
constexpr char kComplaint = '!';

// What a rank finds out about itself and, if it is the first of its node, about the node.
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
    if (!text.empty()) tally_.Add(std::string(1, kComplaint) + kind, text, rank_);
  }
  bool OnSeveralHosts() const { return ranks_.node.Size() < ranks_.world.Size(); }

  void LookAtMpi() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    fabric_ = FabricOf(text.data(), LoadedObjects(),
                       [](const char* name) -> const char* { return std::getenv(name); });
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
    if (!whole_) return;  // at a job's start, another warning tells of too few cores
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
    // One text for all files, because texts of one topic are compared between hosts.
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

// Adds warnings about hosts that differ where they should be alike.
void AddMixtures(const Tally& tally, const Ranks& ranks, std::vector<Warning>& warnings) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kAlike = {
      {{"MPI", "MPI differs between ranks"},
       {"processor", "processors differ: the slowest sets the pace"},
       {"data", "the data look different from different hosts"}}};
  for (const auto& [topic, sentence] : kAlike) {
    const std::vector<Tally::Said>& texts = tally.Of(topic);
    if (texts.size() < 2 || ranks.hosts.Names().size() < 2) continue;
    warnings.push_back({topic, fmt::format("{}: {} on {}, but {} on {}", sentence, texts[0].text,
                                           NameHosts(texts[0].ranks, ranks.hosts), texts[1].text,
                                           NameHosts(texts[1].ranks, ranks.hosts))});
  }
  if (tally.Of("place").size() > 1) {
    warnings.push_back({"files",
                        "the run folder is not the same on all hosts: it lies on disks of their "
                        "own. Choose a job.output that all share"});
  }
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
  if (skew.seconds > 0) {
    findings.warnings.push_back(
        {"clock",
         fmt::format("clocks differ: that of {} (rank {}) is at least {:.1f} s ahead of that of {} "
                     "(rank {}); dates of files and ends of allocations are read from them",
                     ranks.hosts.Of(skew.ahead), skew.ahead, skew.seconds,
                     ranks.hosts.Of(skew.behind), skew.behind)});
  }
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
  std::string text =
      fmt::format("{}", fmt::join(std::span(names).first(std::min(kShown, names.size())), ", "));
  if (names.size() > kShown || ranks.size() >= Tally::kMostRanks) text += " and others";
  return text;
}

Findings LookAround(const Ranks& ranks, const Subject& subject, bool whole) {
  const double start = Seconds();
  const Tally tally = MergeOnRoot(ranks.world, Looker(ranks, subject, whole).Look());
  const ClockSkew skew = CompareWallClocks(ranks.world, UnixSeconds);
  Findings findings;
  if (ranks.world.IsRoot()) findings = Conclude(tally, ranks, skew);
  findings.seconds = Seconds() - start;
  return findings;
}

// FindSlow: compares each node with the median of all.

double Median(const std::vector<Unit>& units, Quantity quantity) {
  std::vector<double> values;
  for (const Unit& unit : units) {
    if (unit.values[quantity] > 0) values.push_back(unit.values[quantity]);
  }
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<Slow> FindSlow(const std::vector<Unit>& units) {
  std::vector<Slow> slow;
  for (std::size_t i = 0; i < kQuantities; ++i) {
    const auto quantity = static_cast<Quantity>(i);
    const double median = Median(units, quantity);
    const std::size_t before = slow.size();
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const double value = units[unit].values[quantity];
      if (value > 0 && value < (1 - kSlow) * median)
        slow.push_back({unit, quantity, value, median});
    }
    std::ranges::sort(std::span(slow).subspan(before), {}, &Slow::value);
  }
  return slow;
}

// CompareWallClocks: barriers reveal clocks that differ.

namespace {

constexpr int kRounds = 3;             // barriers; the quickest shows the difference best
constexpr double kWorthTelling = 0.1;  // seconds; a smaller difference is not reported

}  // namespace

ClockSkew CompareWallClocks(const comm::Communicator& world, double (*now)()) {
  if (world.Size() == 1) return {};
  std::array<double, 2 * kRounds> mine{}, most{};  // per round: entry time, -(exit time)
  for (int round = 0; round < kRounds; ++round) {
    mine[2 * round] = now();
    world.Barrier();
    mine[2 * round + 1] = -now();
  }
  MPI_Allreduce(mine.data(), most.data(), 2 * kRounds, MPI_DOUBLE, MPI_MAX, world.Handle());
  ClockSkew skew;
  int best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double proven = most[2 * round] + most[2 * round + 1];
    if (proven <= skew.seconds) continue;
    skew.seconds = proven;
    best = round;
  }
  if (skew.seconds < kWorthTelling) return {};
  std::array<int, 2> who = {world.Size(), world.Size()};
  if (mine[2 * best] == most[2 * best]) who[0] = world.Rank();
  if (mine[2 * best + 1] == most[2 * best + 1]) who[1] = world.Rank();
  MPI_Allreduce(MPI_IN_PLACE, who.data(), 2, MPI_INT, MPI_MIN, world.Handle());
  skew.ahead = who[0];
  skew.behind = who[1];
  return skew;
}

// FabricOf: what MPI uses between hosts, judged by the components that it has loaded.

namespace {

// Short name of an MPI library: "Open MPI v4.1.4, package: ..." -> "Open MPI 4.1.4"; "MPICH
// Version:   4.0.2\n..." -> "MPICH 4.0.2".
std::string ShortName(const std::string& library) {
  std::string line = library.substr(0, library.find_first_of("\n,"));
  for (const char* noise : {"Version:", "version", " v"}) {
    const std::size_t at = line.find(noise);
    if (at == std::string::npos) continue;
    line = fmt::format("{} {}", line.substr(0, at), line.substr(at + std::strlen(noise)));
  }
  return fmt::format("{}", fmt::join(WordsIn(line), " "));
}

std::string LineAfter(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return {};
  const std::size_t begin = text.find_first_not_of(" \t", at + name.size());
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_first_of(" \t\n", begin) - begin);
}

std::string Value(Lookup environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr ? "" : value;
}

bool HasAny(const std::string& text, std::initializer_list<const char*> words) {
  return std::ranges::any_of(
      words, [&](const char* word) { return text.find(word) != std::string::npos; });
}

// Whether a value of UCX_TLS or FI_PROVIDER, a list of words, allows nothing but TCP. A '^' before
// the first word means that all words are excluded.
bool NamesOnlyTcp(const std::string& transports) {
  bool tcp = false;
  for (std::size_t begin = 0; begin < transports.size();) {
    const std::size_t end = std::min(transports.find_first_of(",;:", begin), transports.size());
    const std::string word = transports.substr(begin, end - begin);
    begin = end + 1;
    if (word.starts_with('^')) return false;
    tcp = tcp || word.find("tcp") != std::string::npos || word.find("sockets") != std::string::npos;
    for (const char* other : {"rc", "ud", "dc", "ib", "all", "verbs", "cxi", "psm", "efa"}) {
      if (word.starts_with(other)) return false;
    }
  }
  return tcp;
}

// Loaded components of an Open MPI framework ("mca_<framework>_<component>.so"), separated by
// blanks, without those for messages within a host: a host with one rank does not load them.
std::string Components(std::span<const std::string> objects, const std::string& framework) {
  const std::string head = "mca_" + framework + "_";
  std::vector<std::string> names;
  for (const std::string& path : objects) {
    const std::string object = path.substr(path.rfind('/') + 1);
    const std::size_t end = object.find(".so");
    if (!object.starts_with(head) || end == std::string::npos) continue;
    const std::string name = object.substr(head.size(), end - head.size());
    if (name != "vader" && name != "sm" && name != "smcuda") names.push_back(name);
  }
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, " "));
}

void AddOpenMpi(std::span<const std::string> objects, Lookup environment, Fabric& fabric) {
  std::string pml = Components(objects, "pml");
  // Some builds link all components into one library; then only the user's choice is known.
  if (pml.empty()) pml = Value(environment, "OMPI_MCA_pml");
  if (pml.empty()) return;
  fabric.transports = "pml " + pml;
  const std::string btl = Components(objects, "btl"), mtl = Components(objects, "mtl");
  if (pml == "ob1" && !btl.empty()) {
    fabric.transports += ", btl " + btl;
    fabric.tcp = HasAny(btl, {"tcp"}) && !HasAny(btl, {"openib", "uct", "ofi", "ugni", "usnic"});
  }
  if (pml == "cm" && !mtl.empty()) {
    fabric.transports += ", mtl " + mtl;
    fabric.tcp = NamesOnlyTcp(Value(environment, "FI_PROVIDER"));
  }
  if (pml == "ucx") {
    const std::string transports = Value(environment, "UCX_TLS");
    if (!transports.empty()) fabric.transports += " (UCX_TLS " + transports + ")";
    fabric.tcp = NamesOnlyTcp(transports);
  }
}

void AddMpich(const std::string& library, Lookup environment, Fabric& fabric) {
  fabric.transports = LineAfter(library, "Device:");
  const std::string provider = Value(environment, "FI_PROVIDER");
  if (!provider.empty()) fabric.transports += " (FI_PROVIDER " + provider + ")";
  const std::string transports = Value(environment, "UCX_TLS");
  fabric.tcp = HasAny(fabric.transports, {"ch3:"}) || NamesOnlyTcp(provider) ||
               (HasAny(fabric.transports, {"ucx"}) && NamesOnlyTcp(transports));
}

}  // namespace

Fabric FabricOf(const std::string& library, std::span<const std::string> objects,
                Lookup environment) {
  Fabric fabric;
  fabric.library = ShortName(library);
  if (library.find("Open MPI") != std::string::npos) {
    AddOpenMpi(objects, environment, fabric);
  } else if (library.find("Device:") != std::string::npos) {
    AddMpich(library, environment, fabric);
  }
  return fabric;
}

std::vector<std::string> LoadedObjects() {
  std::vector<std::string> names;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* to) {
    static_cast<std::vector<std::string>*>(to)->emplace_back(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(visit, &names);
  return names;
}

// Report: the table on the screen and preflight.json.

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::size_t kMostUnits = 1024;  // written to preflight.json
constexpr std::size_t kMostSlow = 8;      // shown on the screen
constexpr std::size_t kMostWarnings = 20;
constexpr std::size_t kColumn = 14;

std::string NameOf(const Report& report, const Unit& unit) {
  const auto rank = static_cast<int>(unit.rank);
  const std::string& host = report.hosts.Of(rank);
  return report.measured.of_ranks ? fmt::format("rank {} on {}", rank, host) : host;
}

// On one host, messages go through its memory and have other titles.
const char* TitleOf(const Report& report, Quantity quantity) {
  if (report.measured.of_ranks && quantity == kPairs) return "messages in pairs";
  if (report.measured.of_ranks && quantity == kTogether) return "messages, all together";
  return kQuantityNames[quantity].title;
}

// With two ranks on one host nobody can tell which of them is slow: none is listed.
std::vector<Slow> SlowIn(const Report& report) {
  if (report.measured.of_ranks && report.measured.units.size() < 3) return {};
  return FindSlow(report.measured.units);
}

// The value in the unit that is shown, with three digits: "118", "11.8", "0.52".
std::string Shown(double value, const QuantityName& name) {
  const double scaled = value / name.scale;
  return fmt::format("{:.{}f}", scaled, scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2);
}

std::string Fact(const std::string& name, const std::string& text) {
  return fmt::format("{:<{}}{}", name, kColumn, text);
}

// Least, median and greatest value of a quantity, and the units that have the extremes.
std::string Extremes(const Report& report, Quantity quantity) {
  const QuantityName& name = kQuantityNames[quantity];
  std::vector<const Unit*> units;
  for (const Unit& unit : report.measured.units) {
    if (unit.values[quantity] > 0) units.push_back(&unit);
  }
  if (units.empty()) return {};
  const auto [least, most] = std::ranges::minmax_element(
      units, {}, [&](const Unit* unit) { return unit->values[quantity]; });
  const std::string median = Shown(Median(report.measured.units, quantity), name);
  if (units.size() == 1) {
    return fmt::format("{:<26}{:>10} {}", TitleOf(report, quantity), median, name.unit);
  }
  return fmt::format("{:<26}{:>10} {:>10} {:>10} {}   slowest {}, fastest {}",
                     TitleOf(report, quantity), Shown((*least)->values[quantity], name), median,
                     Shown((*most)->values[quantity], name), name.unit, NameOf(report, **least),
                     NameOf(report, **most));
}

void AddMeasured(const Report& report, std::vector<std::string>& lines) {
  const Measured& measured = report.measured;
  if (measured.units.empty()) return;
  if (measured.units.size() > 1) {
    lines.push_back(fmt::format("{:<26}{:>10} {:>10} {:>10}",
                                measured.of_ranks ? "of each rank" : "of each node", "least",
                                "median", "most"));
  }
  for (std::size_t quantity = 0; quantity < kQuantities; ++quantity) {
    const std::string line = Extremes(report, static_cast<Quantity>(quantity));
    if (!line.empty()) lines.push_back(line);
  }
  if (measured.all_reduce > 0) {
    constexpr double kGiga = 1e9;
    lines.push_back(fmt::format("{:<26}{:>10.2f} GB/s of a 4 MiB operand on {} ranks", "all-reduce",
                                measured.all_reduce / kGiga, report.ranks));
  }
}

Json UnitsOf(const Report& report) {
  Json units = Json::array();
  for (const Unit& unit : report.measured.units) {
    if (units.size() >= kMostUnits) break;
    Json json = {{"host", report.hosts.Of(static_cast<int>(unit.rank))}, {"rank", unit.rank}};
    for (std::size_t quantity = 0; quantity < kQuantities; ++quantity) {
      json[kQuantityNames[quantity].name] = unit.values[quantity];
    }
    json["slowest_rank"] = unit.slowest;
    json["worst_pair"] = unit.worst_pair;
    if (unit.worst_partner >= 0) {
      const Unit& partner = report.measured.units[static_cast<std::size_t>(unit.worst_partner)];
      json["worst_partner"] = report.hosts.Of(static_cast<int>(partner.rank));
    }
    json["wrong_products"] = unit.wrong;
    units.push_back(json);
  }
  return units;
}

Json SlowOf(const Report& report) {
  Json slow = Json::array();
  for (const Slow& one : SlowIn(report)) {
    const Unit& unit = report.measured.units[one.unit];
    slow.push_back({{"host", report.hosts.Of(static_cast<int>(unit.rank))},
                    {"rank", unit.rank},
                    {"quantity", kQuantityNames[one.quantity].name},
                    {"value", one.value},
                    {"median", one.median}});
  }
  return slow;
}

}  // namespace

std::vector<std::string> SlowSentences(const Report& report, std::size_t most) {
  std::vector<std::string> sentences;
  for (const Unit& unit : report.measured.units) {
    if (unit.wrong == 0) continue;
    sentences.push_back(fmt::format(
        "{}: a matrix product is not finite, or not the same twice: take this node out of the job",
        NameOf(report, unit)));
  }
  for (const Slow& one : SlowIn(report)) {
    const QuantityName& name = kQuantityNames[one.quantity];
    const Unit& unit = report.measured.units[one.unit];
    std::string who = NameOf(report, unit);
    if (one.quantity == kProduct && !report.measured.of_ranks) {
      who += fmt::format(" (rank {})", unit.slowest);
    }
    constexpr double kPercent = 100;
    sentences.push_back(fmt::format("{}: {} {} {}, {:.0f}% below the median of {}", who,
                                    TitleOf(report, one.quantity), Shown(one.value, name),
                                    name.unit, kPercent * (1 - one.value / one.median),
                                    Shown(one.median, name)));
  }
  if (sentences.size() > most) {
    const std::size_t left = sentences.size() - most;
    sentences.resize(most);
    sentences.push_back(fmt::format("and {} more: see slow in preflight.json", left));
  }
  return sentences;
}

std::vector<std::string> LinesOf(const Report& report) {
  const std::size_t hosts = report.hosts.Names().size();
  std::vector<std::string> lines = {
      Fact("preflight", fmt::format("{}, {} rank{} on {} host{}", report.program, report.ranks,
                                    report.ranks == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s"))};
  for (const auto& [name, text] : report.findings.facts) lines.push_back(Fact(name, text));
  AddMeasured(report, lines);
  for (const std::string& sentence : SlowSentences(report, kMostSlow)) {
    lines.push_back(Fact("slow", sentence));
  }
  const std::vector<Warning>& warnings = report.findings.warnings;
  for (const Warning& warning :
       std::span(warnings).first(std::min(kMostWarnings, warnings.size()))) {
    lines.push_back(Fact("warning", warning.text));
  }
  if (warnings.size() > kMostWarnings) {
    lines.push_back(Fact("warning", fmt::format("and {} more: see preflight.json",
                                                warnings.size() - kMostWarnings)));
  }
  return lines;
}

std::string JsonOf(const Report& report) {
  Json warnings = Json::array();
  for (const Warning& warning : report.findings.warnings) {
    warnings.push_back({{"kind", warning.kind}, {"text", warning.text}});
  }
  Json facts = Json::object();
  for (const auto& [name, text] : report.findings.facts) facts[name] = text;
  Json medians = Json::object();
  for (std::size_t quantity = 0; quantity < kQuantities; ++quantity) {
    medians[kQuantityNames[quantity].name] =
        Median(report.measured.units, static_cast<Quantity>(quantity));
  }
  medians["all_reduce"] = report.measured.all_reduce;
  const Json json = {{"format", kFormat},
                     {"program", report.program},
                     {"ranks", report.ranks},
                     {"hosts", report.hosts.Names().size()},
                     {"facts", facts},
                     {"warnings", warnings},
                     {"unit", report.measured.of_ranks ? "rank" : "node"},
                     {"median", medians},
                     {"slow", SlowOf(report)},
                     {"units", UnitsOf(report)},
                     {"seconds_look", report.findings.seconds},
                     {"seconds_measured", report.measured.seconds}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::tools
