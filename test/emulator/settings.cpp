// Settings read once from the environment, and the barriers and waits that a test leaves out.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "settings.hpp"
#include "stream.hpp"

namespace emulator {

// Settings read once from the environment.

std::uint64_t Number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view view = text;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), number);
  if (error != std::errc() || end != view.data() + view.size()) {
    Die(std::string(variable) + "='" + text + "' is no number");
  }
  return number;
}

namespace {

std::vector<int> FindVisible() {
  const int cards = static_cast<int>(Number("TRIREME_EMULATOR_DEVICES", 8));
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int card = 0; card < cards; ++card) visible.push_back(card);
    return visible;
  }
  std::string_view rest = text;
  while (!rest.empty()) {
    int card = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), card);
    if (error != std::errc() || card < 0 || card >= cards) break;
    visible.push_back(card);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (rest.empty() || rest.front() != ',') break;
    rest.remove_prefix(1);
  }
  return visible;
}

// The rank among processes started together: their orders differ.
std::uint64_t ProcessNumber() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (std::getenv(variable) != nullptr) return Number(variable, 0);
  }
  return 0;
}

}  // namespace

const std::vector<int>& VisibleDevices() {
  static const std::vector<int> devices = FindVisible();
  return devices;
}

std::size_t CardBytes() {
  static const std::size_t bytes = Number("TRIREME_EMULATOR_MEMORY_MIB", 16 * 1024) << 20;
  return bytes;
}

std::size_t PageBytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

void Dice::Seed(std::uint64_t seed) {
  state_ = (seed + 1) * 0x9e3779b97f4a7c15ULL + ProcessNumber() * 0xd1342543de82ef95ULL;
  if (state_ == 0) state_ = 1;
  for (int i = 0; i < 8; ++i) Next();                   // seeds that differ in one bit part
  constexpr std::uint32_t kEagerness[] = {1, 0, 8, 3};  // by seed modulo 4
  eagerness_ = kEagerness[seed % 4];
}

Dice the_dice = [] {
  Dice made;
  made.Seed(Number("TRIREME_EMULATOR_SEED", 1));
  return made;
}();

void SetSeed(unsigned long long seed) { TheDice().Seed(seed); }

// Counts barriers and waits.

bool mutations_watched = false;

namespace {

constexpr std::string_view kNames[kMutations] = {"barrier", "warp_barrier", "wait", "copy_wait"};

struct Kind {
  std::int64_t omitted = -1, count = 0;
  std::map<const void*, std::int64_t> sites;
};
Kind kinds[kMutations];

Kind& Of(Mutation kind) { return kinds[static_cast<int>(kind)]; }

void PrintCounts() {
  for (int i = 0; i < kMutations; ++i) {
    std::fprintf(stderr, "emulated CUDA: %s %lld\n", kNames[i].data(),
                 static_cast<long long>(kinds[i].count));
  }
}

void ReadEnvironment() {
  const char* variable = std::getenv("TRIREME_EMULATOR_OMIT");
  if (variable == nullptr) return;
  mutations_watched = true;
  const std::string_view text = variable;
  if (text == "count") {
    std::atexit(PrintCounts);
    return;
  }
  const auto colon = text.find(':');
  for (int i = 0; i < kMutations && colon != std::string_view::npos; ++i) {
    if (text.substr(0, colon) != kNames[i]) continue;
    const std::string_view number = text.substr(colon + 1);
    const auto end = number.data() + number.size();
    if (std::from_chars(number.data(), end, kinds[i].omitted).ptr == end) return;
  }
  Die(
      fmt::format("TRIREME_EMULATOR_OMIT='{}': give count, or barrier, warp_barrier, wait or "
                  "copy_wait, a colon and a number",
                  text));
}

[[maybe_unused]] const bool environment_was_read = (ReadEnvironment(), true);

}  // namespace

void Omit(Mutation kind, std::int64_t number) {
  mutations_watched = true;
  Of(kind) = {.omitted = number, .count = 0, .sites = {}};
}

std::int64_t CountSince(Mutation kind) { return Of(kind).count; }

bool IsOmitted(Mutation kind, const void* site) {
  Kind& of = Of(kind);
  if (kind == Mutation::kWait) return of.count++ == of.omitted;
  const auto [entry, is_new] = of.sites.try_emplace(site, of.count);
  if (is_new) ++of.count;
  return entry->second == of.omitted;
}

}  // namespace emulator
