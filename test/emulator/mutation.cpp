// Counts barriers and waits.
#include "mutation.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "stream.hpp"

namespace emulator {

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
