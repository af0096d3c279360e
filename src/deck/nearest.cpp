// Edit distance, and the declared names nearest to one that nobody declared.
#include "nearest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "trireme/deck/schema.hpp"

namespace trireme::deck {

namespace {

// More suggestions than these help nobody.
constexpr std::size_t kMaximumSuggestions = 3;

// "data.batch" -> "data" and "batch"; a name without a dot has no section.
std::pair<std::string, std::string> Cut(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

int EditDistance(const std::string& a, const std::string& b) {
  // Three rows of the dynamic programme: before[j] and last[j] belong to a's first i-2 and i-1
  // letters.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = last;
    last = row;
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int other = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + other});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

int NearDistance(const std::string& name) { return 1 + static_cast<int>(name.size()) / 4; }

std::string NearestOf(const std::string& name, const std::vector<std::string>& candidates) {
  std::string nearest;
  int distance = NearDistance(name) + 1;
  for (const std::string& candidate : candidates) {
    const int this_distance = EditDistance(name, candidate);
    if (this_distance >= distance) continue;
    distance = this_distance;
    nearest = candidate;
  }
  return nearest;
}

std::string Schema::Nearest(const std::string& name) const {
  const auto [section, own] = Cut(name);
  int distance = NearDistance(own);
  std::vector<std::string> nearest;
  for (const Key& key : keys_) {
    const auto [key_section, key_own] = Cut(key.name);
    // The right name in another section counts as one slip, so that it ties with a misspelt
    // neighbour.
    const int elsewhere = section.empty() || section == key_section ? 0 : 1;
    const int this_distance =
        std::min(EditDistance(name, key.name), EditDistance(own, key_own) + elsewhere);
    if (this_distance > distance) continue;
    if (this_distance < distance) nearest.clear();
    distance = this_distance;
    nearest.push_back(key.name);
  }
  if (nearest.size() > kMaximumSuggestions) nearest.resize(kMaximumSuggestions);
  return fmt::format("{}", fmt::join(nearest, " or "));
}

std::string Schema::NearestSection(const std::string& section) const {
  std::vector<std::string> names;
  for (const auto& [name, help] : sections_) names.push_back(name);
  const std::string nearest = NearestOf(section, names);
  return nearest.empty() ? nearest : "[" + nearest + "]";
}

}  // namespace trireme::deck
