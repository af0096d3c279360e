// Meter: one reader per node, agreement on what all nodes can count, and sums over the nodes.
#include "trireme/report/meter.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <regex>
#include <stop_token>
#include <thread>

#include "counter.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/device/cores.hpp"

namespace trireme::report {

// Declarations of the few NVML types that are used, following NVIDIA's manual. The build needs no
// NVML header, and the program runs without the library.

using NvmlDevice = struct nvmlDevice_st*;  // nvmlDevice_t

struct NvmlUtilization {  // nvmlUtilization_t: percent of the last sample period
  unsigned int gpu;
  unsigned int memory;
};
struct NvmlMemory {  // nvmlMemory_t: bytes
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// The members of Sums that are added up over time and over nodes.
constexpr std::array kAdded = {&Sums::joules,      &Sums::node_seconds, &Sums::lost_seconds,
                               &Sums::card_joules, &Sums::card_seconds, &Sums::busy_seconds};

Sums& Sums::operator+=(const Sums& other) {
  for (const auto member : kAdded) this->*member += other.*member;
  card_bytes = std::max(card_bytes, other.card_bytes);
  return *this;
}

bool Sums::Whole() const {
  constexpr double kRounding = 1e-6;  // tolerance for rounding in sums of times
  return node_seconds > 0 && std::abs(lost_seconds) < kRounding * node_seconds;
}

class Meter::Reader {
 public:
  Reader(Counters counters, const Setup& setup)
      : sums_(std::move(counters)),
        setup_(setup),
        thread_([this](const std::stop_token& stop) { Run(stop); }) {
    Read();
  }

  Sums Take() {
    Read();
    const std::lock_guard lock(mutex_);
    return sums_.Take();
  }

 private:
  void Read() {
    const std::lock_guard lock(mutex_);
    sums_.Tick(Seconds());
  }

  void Run(const std::stop_token& stop) noexcept {
    const std::chrono::duration<double> period(setup_.places.period_seconds);
    try {
      if (!setup_.cores.empty()) device::BindThisThread(setup_.cores);
      std::mutex waiting;
      std::unique_lock lock(waiting);
      std::condition_variable_any never;
      while (!never.wait_for(lock, stop, period, [&stop] { return stop.stop_requested(); })) Read();
    } catch (const std::exception&) {
      return;  // time without readings is reported as lost
    }
  }

  std::mutex mutex_;  // guards sums_
  NodeSums sums_;
  Setup setup_;
  std::jthread thread_;  // last member: stops before the members that it uses are destroyed
};

Meter::Meter(const comm::Communicator& world, const comm::Communicator& node, const Setup& setup)
    : world_(world) {
  std::vector<std::string> cards = node.Gather(setup.card);
  std::sort(cards.begin(), cards.end());
  cards.erase(std::unique(cards.begin(), cards.end()), cards.end());
  std::erase(cards, "");

  const bool reads = node.IsRoot();
  Counters found;
  if (reads) found = FindCounters(setup.places, cards);
  const std::int64_t parts = found.Empty() ? 0 : found.parts;
  const std::int64_t most = world.Max(parts);
  const std::int64_t least = world.Min(reads ? parts : std::numeric_limits<std::int64_t>::max());
  nodes_ = world.Sum(reads ? 1.0 : 0.0);
  cards_ = static_cast<int>(world.Sum(std::int64_t{std::ssize(found.cards)}));
  leaves_out_ = world.Broadcast(fmt::format("{}", fmt::join(found.why, "; ")));
  covers_ = NameOf(static_cast<unsigned>(most));
  if (least == most && most > 0) {
    if (reads) reader_ = std::make_unique<Reader>(std::move(found), setup);
    return;
  }
  // The message comes from the first node that can count less than the others.
  const bool lacks = reads && parts != most;
  const bool none = most == 0;
  const auto first = world.Min(std::int64_t{(none ? reads : lacks) ? world.Rank() : world.Size()});
  const std::string mine =
      none ? fmt::format("{}", fmt::join(found.why, "; "))
           : fmt::format("nodes count different parts: {} on one, {} on {}{}{}", covers_,
                         parts == 0 ? "nothing" : NameOf(static_cast<unsigned>(parts)), setup.host,
                         found.why.empty() ? "" : "; ", fmt::join(found.why, "; "));
  why_not_ = world.Broadcast(mine, static_cast<int>(first));
}

Meter::~Meter() = default;

Sums Meter::Collect() {
  Sums sums;
  if (!Available()) return sums;
  if (reader_) sums = reader_->Take();
  std::vector<double> all;
  for (const auto member : kAdded) all.push_back(sums.*member);
  world_.Sum(all);
  for (std::size_t i = 0; i < kAdded.size(); ++i) sums.*kAdded[i] = all[i];
  sums.card_bytes = cards_ > 0 ? world_.Max(sums.card_bytes) : 0;
  return sums;
}

// NodeSums: time without readings counts as lost until a complete reading makes up for it.

// Reads one counter. False if it cannot be read or has been stuck for kStillSeconds.
bool CounterGroup::Read(Place& place, double now) {
  const auto value = place.counter->Read();
  if (!value) return false;
  if (place.moved_at < 0 || *value != place.last_value) place.moved_at = now;
  place.last_value = place.now = *value;
  return now - place.moved_at < kStillSeconds;
}

std::optional<CounterGroup::Gain> CounterGroup::Advance(double now) {
  bool all = true;
  for (Place& place : places_) all = Read(place, now) && all;
  if (!all) return std::nullopt;
  Gain gain{.seconds = read_at_ < 0 ? 0 : now - read_at_};
  read_at_ = now;
  bool sound = gain.seconds > 0;
  for (Place& place : places_) {
    const double range = place.counter->Range();
    double gained = place.now - std::exchange(place.joules, place.now);
    if (gained < 0 && range > 0) gained += range;
    const bool seen = range <= 0 || gain.seconds * kWrapWatts < range;
    sound = sound && seen && gained >= 0 && gained <= kMostWatts * gain.seconds;
    gain.joules += gained;
    if (place.card) gain.card_joules += gained;
  }
  if (!sound) return std::nullopt;
  return gain;
}

NodeSums::NodeSums(Counters counters) : counters_(std::move(counters)) {
  for (const auto& counter : counters_.node) all_.Add(*counter, false);
  for (const auto& card : counters_.cards) {
    (counters_.cards_within_node ? cards_apart_ : all_).Add(*card, true);
  }
}

void NodeSums::LookAtCards(double seconds) {
  for (const auto& card : counters_.cards) {
    const auto state = card->Look();
    if (!state) continue;
    sums_.card_seconds += seconds;
    sums_.busy_seconds += seconds * state->utilisation;
    sums_.card_bytes = std::max(sums_.card_bytes, state->bytes);
  }
}

void NodeSums::Tick(double now) {
  if (ticked_at_ >= 0 && now - ticked_at_ < kLeastSeconds) return;
  const double before = std::exchange(ticked_at_, now);
  const double seconds = before < 0 ? 0 : now - before;
  sums_.lost_seconds += seconds;
  if (const auto gain = all_.Advance(now)) {
    sums_.joules += gain->joules;
    sums_.card_joules += gain->card_joules;
    sums_.node_seconds += gain->seconds;
    sums_.lost_seconds -= gain->seconds;
  }
  if (!cards_apart_.Empty()) {
    if (const auto gain = cards_apart_.Advance(now)) sums_.card_joules += gain->card_joules;
  }
  LookAtCards(seconds);
}

Sums NodeSums::Take() { return std::exchange(sums_, {}); }

// FindCounters: picks the counters that cover most of a node, so that no joule is counted twice.

Counters FindCounters(const Places& places, const std::vector<std::string>& cards) {
  Counters counters;
  if (FindCray(places, counters)) {
    counters.cards_within_node = true;
  } else {
    FindRapl(places, counters);
  }
  FindCards(places, cards, counters);
  return counters;
}

std::string NameOf(unsigned parts) {
  // In the order of Part's bits.
  constexpr std::array kNames = {"whole nodes", "CPU packages", "memory", "boards (psys)", "GPUs"};
  // The energy of a whole node includes its cards.
  if ((parts & kWholeNode) != 0) parts &= ~unsigned{kCards};
  std::vector<const char*> names;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if ((parts >> i & 1U) != 0) names.push_back(kNames[i]);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// pm_counters (HPE Cray EX): energies that the node's controller updates ten times a second.

// Uses only the counter of the whole node: cpu_energy, memory_energy and accel[0-9]_energy, which
// stand beside it, are parts of it.
bool FindCray(const Places& places, Counters& counters) {
  const std::string path = places.root + "/sys/cray/pm_counters/energy";
  auto counter = std::make_unique<FileCounter>(path, 1.0);
  errno = 0;
  if (counter->Read()) {
    counters.parts |= kWholeNode;
    counters.node.push_back(std::move(counter));
    return true;
  }
  // Nodes of other makes have no such folder; that is not worth a message.
  if (errno != ENOENT && errno != 0) {
    counters.why.push_back(fmt::format("node: {}: {}", path, ErrorText(errno)));
  }
  return false;
}

// FileCounter opens its file for each reading, so that a replaced file is found again.

std::optional<std::string> FirstLine(const std::string& path) {
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);
  if (!file.Valid()) return std::nullopt;
  std::array<char, 128> text{};
  const ssize_t length = Retry([&] { return read(file.Get(), text.data(), text.size()); });
  if (length < 0) return std::nullopt;
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find('\n'));
}

std::optional<double> NumberIn(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  const bool whole = after == end || *after == ' ';
  if (error != std::errc() || !whole || !std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

std::optional<double> FileCounter::Read() {
  const auto line = FirstLine(path_);
  const auto number = line ? NumberIn(*line) : std::nullopt;
  if (!number) return std::nullopt;
  return *number * joules_;
}

// NVML: energy, utilisation and memory of cards. The library is loaded at run time, if present.

namespace {

// The functions that are called; all but the third return 0 (NVML_SUCCESS) or an error.
constexpr const char* kInit = "nvmlInit_v2";
constexpr const char* kShutdown = "nvmlShutdown";
constexpr const char* kErrorString = "nvmlErrorString";                 // (int)
constexpr const char* kHandleByUuid = "nvmlDeviceGetHandleByUUID";      // (text, device*)
constexpr const char* kEnergy = "nvmlDeviceGetTotalEnergyConsumption";  // mJ since the driver
constexpr const char* kPower = "nvmlDeviceGetPowerUsage";               // mW
constexpr const char* kUtilizationRates = "nvmlDeviceGetUtilizationRates";
constexpr const char* kMemoryInfo = "nvmlDeviceGetMemoryInfo";

// The NVML library, loaded and initialised.
class Nvml {
 public:
  // Does not throw: Why() says what failed, and is empty if nothing did.
  explicit Nvml(const std::string& path) : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      const char* const reason = dlerror();
      why_ = reason == nullptr ? path : reason;
      return;
    }
    for (const char* const name : {kInit, kShutdown, kErrorString, kHandleByUuid, kEnergy, kPower,
                                   kUtilizationRates, kMemoryInfo}) {
      if (dlsym(library_, name) != nullptr) continue;
      why_ = fmt::format("the library lacks {}", name);
      return;
    }
    const int result = Call<int>(kInit);
    started_ = result == 0;
    if (!started_) why_ = fmt::format("{}: {}", path, ErrorText(result));
  }
  ~Nvml() {
    if (started_) Call<int>(kShutdown);
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::string& Why() const { return why_; }
  // Calls one of the functions; the arguments must have exactly the types of its parameters.
  template <typename Result, typename... Arguments>
  Result Call(const char* name, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(dlsym(library_, name))(arguments...);
  }
  template <typename... Arguments>
  bool Succeeds(const char* name, Arguments... arguments) const {
    return Call<int>(name, arguments...) == 0;
  }
  std::string ErrorText(int result) const {
    const auto* const text = Call<const char*>(kErrorString, result);
    return text == nullptr ? fmt::format("error {}", result) : text;
  }

 private:
  void* library_;
  bool started_ = false;
  std::string why_;
};

class NvmlCard : public Card {
 public:
  NvmlCard(std::shared_ptr<const Nvml> nvml, NvmlDevice device)
      : nvml_(std::move(nvml)), device_(device) {
    unsigned long long ignored = 0;
    counts_ = nvml_->Succeeds(kEnergy, device_, &ignored);
  }

  // For cards without an energy counter, integrates the power between readings (trapezoids).
  std::optional<double> Read() override {
    if (counts_) {
      unsigned long long millijoules = 0;
      if (!nvml_->Succeeds(kEnergy, device_, &millijoules)) return std::nullopt;
      return 1e-3 * static_cast<double>(millijoules);
    }
    unsigned int milliwatts = 0;
    if (!nvml_->Succeeds(kPower, device_, &milliwatts)) return std::nullopt;
    const double now = Seconds(), watts = 1e-3 * milliwatts;
    if (last_ > 0) joules_ += 0.5 * (watts + watts_) * (now - last_);
    last_ = now;
    watts_ = watts;
    return joules_;
  }

  std::optional<CardState> Look() override {
    NvmlUtilization rates{};
    NvmlMemory memory{};
    if (!nvml_->Succeeds(kUtilizationRates, device_, &rates) ||
        !nvml_->Succeeds(kMemoryInfo, device_, &memory)) {
      return std::nullopt;
    }
    return CardState{0.01 * std::min(rates.gpu, 100U), static_cast<double>(memory.used)};
  }

 private:
  std::shared_ptr<const Nvml> nvml_;
  NvmlDevice device_;
  bool counts_ = false;
  double joules_ = 0, last_ = 0, watts_ = 0;
};

// Formats 32 hexadecimal digits as a UUID, "GPU-01234567-89ab-...". kind: "GPU-" or "MIG-".
std::string Uuid(const char* kind, const std::string& digits) {
  std::string text = kind;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) text += '-';
    text += digits[i];
  }
  return text;
}

}  // namespace

void FindCards(const Places& places, const std::vector<std::string>& cards, Counters& counters) {
  if (cards.empty()) return;
  const auto nvml = std::make_shared<const Nvml>(places.nvml);
  if (!nvml->Why().empty()) {
    counters.why.push_back("GPUs: " + nvml->Why());
    return;
  }
  for (const std::string& digits : cards) {
    NvmlDevice device = nullptr;
    const auto find = [&](const char* kind) {
      const std::string uuid = Uuid(kind, digits);
      return nvml->Call<int>(kHandleByUuid, uuid.c_str(), &device);
    };
    const int result = find("GPU-");
    std::string why;
    if (result != 0) {
      const bool part = find("MIG-") == 0;
      why = part ? "a part of a card (MIG), whose energy nobody counts" : nvml->ErrorText(result);
    } else {
      auto card = std::make_unique<NvmlCard>(nvml, device);
      if (card->Read()) {
        counters.cards.push_back(std::move(card));
        continue;
      }
      why = "neither energy nor power can be read";
    }
    // With one card missing, the node's sum would be too small: no card counts.
    counters.cards.clear();
    counters.why.push_back(fmt::format("GPUs: {}: {}", Uuid("GPU-", digits), why));
    return;
  }
  counters.parts |= kCards;
}

// RAPL: energies that the processors count, as shown by Linux's power capping framework
// (Documentation/power/powercap/powercap.rst).

namespace {

constexpr double kMicrojoule = 1e-6;
constexpr std::chrono::milliseconds kProbePause{2};  // between two reads in DropStill

// A RAPL domain. `core`, `uncore` and `dram` lie within the zone of a package, whose energy
// includes the first two, but not `dram`. `psys` includes the packages and more of the board.
struct Domain {
  std::unique_ptr<FileCounter> counter;
  Part part = kPackages;
};

std::optional<Part> PartOf(const std::string& name) {
  if (name.starts_with("package")) return kPackages;
  if (name == "dram") return kMemory;
  if (name == "psys") return kPlatform;
  return std::nullopt;
}

// Folders of the RAPL zones that the MSR interface shows. The memory-mapped interface
// (intel-rapl-mmio:0) may show the same packages again, so it is left out.
std::vector<std::string> ZonesIn(const std::string& folder) {
  static const std::regex zone("intel-rapl(:[0-9]+)+");
  std::vector<std::string> zones;
  for (const std::string& name : NamesIn(folder)) {
    if (std::regex_match(name, zone)) zones.push_back(folder + "/" + name);
  }
  return zones;
}

// Drops each kind of domain of which no counter changes within `seconds`: a virtual machine may
// show counters that stand still. A kind is kept or dropped as a whole.
void DropStill(std::vector<Domain>& domains, double seconds, std::vector<std::string>& why) {
  if (seconds <= 0) return;
  std::vector<std::optional<double>> before;
  for (const Domain& domain : domains) before.push_back(domain.counter->Read());
  unsigned all = 0, moved = 0;  // bits of Part
  for (const Domain& domain : domains) all |= domain.part;
  for (const double end = Seconds() + seconds; moved != all && Seconds() < end;) {
    std::this_thread::sleep_for(kProbePause);
    for (std::size_t i = 0; i < domains.size(); ++i) {
      if (domains[i].counter->Read() != before[i]) moved |= domains[i].part;
    }
  }
  std::erase_if(domains, [&](const Domain& domain) {
    const bool still = (moved & domain.part) == 0;
    if (still) why.push_back(domain.counter->Path() + ": stands still");
    return still;
  });
}

}  // namespace

void FindRapl(const Places& places, Counters& counters) {
  const std::string folder = places.root + "/sys/class/powercap";
  std::vector<Domain> domains;
  std::vector<std::string> why;
  for (const std::string& zone : ZonesIn(folder)) {
    const auto name = FirstLine(zone + "/name");
    const auto part = name ? PartOf(*name) : std::nullopt;
    if (!part) continue;
    const std::string path = zone + "/energy_uj";
    errno = 0;
    if (!FirstLine(path)) {
      const int error = errno;
      const char* hint = error == EACCES ? " (root alone may read it)" : "";
      why.push_back(fmt::format("{}: {}{}", path, ErrorText(error), hint));
      continue;
    }
    const auto most = FirstLine(zone + "/max_energy_range_uj");
    const double range = kMicrojoule * (most ? NumberIn(*most).value_or(0) : 0);
    domains.push_back({std::make_unique<FileCounter>(path, kMicrojoule, range), *part});
  }
  DropStill(domains, places.probe_seconds, why);
  // The counter of the platform includes packages and memory; it is used only without packages.
  unsigned found = 0;  // bits of Part
  for (const Domain& domain : domains) found |= domain.part;
  const bool platform = (found & (kPlatform | kPackages)) == kPlatform;
  std::erase_if(domains,
                [&](const Domain& domain) { return (domain.part == kPlatform) != platform; });
  for (Domain& domain : domains) {
    counters.parts |= domain.part;
    counters.node.push_back(std::move(domain.counter));
  }
  if (domains.empty() && why.empty()) why.push_back(folder + ": no counters of RAPL");
  // The reason of the first domain stands for all of them.
  if (!why.empty()) counters.why.push_back("CPUs: " + why.front());
}

}  // namespace trireme::report
