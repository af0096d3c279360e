// A site's deck: which keys it may give, and how they give way to the user's.
#include "site_deck.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::app {

namespace {

constexpr auto kSiteKeys = std::to_array<std::string_view>({"run.pin",
                                                            "run.hang_timeout",
                                                            "run.check_replicas_every",
                                                            "run.mtbf_hours",
                                                            "data.staging",
                                                            "data.staging_path",
                                                            "data.read_ahead",
                                                            "checkpoint.every_steps",
                                                            "checkpoint.every_minutes",
                                                            "checkpoint.auto",
                                                            "checkpoint.max_failures",
                                                            "checkpoint.max_restarts",
                                                            "checkpoint.keep",
                                                            "checkpoint.local",
                                                            "checkpoint.drain_every",
                                                            "checkpoint.local_survival",
                                                            "checkpoint.keep_every_steps",
                                                            "checkpoint.async",
                                                            "checkpoint.writers",
                                                            "checkpoint.io_hints",
                                                            "monitor.tensorboard",
                                                            "monitor.report"});

// Keys that together decide when checkpoints are written: a site's count if the user gives none.
constexpr auto kWhenToWrite =
    std::to_array<std::string_view>({"checkpoint.every_steps", "checkpoint.every_minutes",
                                     "checkpoint.auto", "checkpoint.drain_every"});

template <class Names>
bool Holds(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct Given {
  std::string name, value, where;
};

// Values of the site's deck, in the order of declaration.
std::vector<Given> ReadSite(const deck::Schema& schema, const std::string& text,
                            const std::string& path) {
  const deck::Deck site = deck::Deck::Parse(schema, text, path, {});
  std::vector<Given> given;
  for (const auto& [section, help] : schema.Sections()) {
    for (const auto& [key, value] : site.Section(section)) {
      const std::string name = section + "." + key;
      if (site.Given(name)) given.push_back({name, value, site.Where(name)});
    }
  }
  return given;
}

void RequireSiteKeys(const std::vector<Given>& given) {
  std::vector<std::string> refused;
  for (const auto& [name, value, where] : given) {
    if (Holds(kSiteKeys, name)) continue;
    refused.push_back(
        fmt::format("{}: {} = {}: not for a site's deck: it says what is computed, "
                    "which stands in a user's own deck",
                    where, name, value));
  }
  if (refused.empty()) return;
  throw InputError(
      fmt::format("{}", fmt::join(refused, "\n")),
      fmt::format("A site may give {}. Tell those who keep the file that {} names; without the "
                  "variable the site has no say.",
                  fmt::join(kSiteKeys, ", "), kSiteDeckVariable));
}

}  // namespace

std::span<const std::string_view> SiteKeys() { return kSiteKeys; }

void SupplySite(const deck::Schema& schema, const std::string& text, const std::string& path,
                deck::Deck& user) {
  const std::vector<Given> given = ReadSite(schema, text, path);
  RequireSiteKeys(given);
  const bool user_decides_when =
      std::any_of(kWhenToWrite.begin(), kWhenToWrite.end(),
                  [&](std::string_view name) { return user.Given(std::string(name)); });
  for (const auto& [name, value, where] : given) {
    if (user_decides_when && Holds(kWhenToWrite, name)) continue;
    user.Supply(name, value, where);
  }
}

}  // namespace trireme::app
