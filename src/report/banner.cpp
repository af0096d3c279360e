// The banner: what runs where, in facts that each begin with one word.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "table.hpp"

namespace trireme::report {

namespace {

constexpr std::size_t kIndent = 8;  // of the text after the first word

// "parameters 37 + gradients 37 = 74 MiB": rounded so that the terms add up to the printed sum.
std::string MemoryText(const BannerFacts& facts) {
  constexpr double kMebi = 1024.0 * 1024.0, kGibi = 1024.0 * kMebi;
  double sum = 0;
  for (const auto& [term, bytes] : facts.memory) sum += static_cast<double>(bytes);
  const bool in_gibi = sum >= 10 * kGibi;
  const double unit = in_gibi ? kGibi : kMebi;
  const int decimals = in_gibi || sum < 10 * kMebi ? 1 : 0;
  const double scale = decimals == 1 ? 10 : 1;

  std::string text;
  double so_far = 0, printed = 0;  // bytes; unit / scale
  for (const auto& [term, bytes] : facts.memory) {
    so_far += static_cast<double>(bytes);
    const double rounded = std::round(so_far / unit * scale);
    text += fmt::format("{}{} {:.{}f}", text.empty() ? "" : " + ", term,
                        (rounded - printed) / scale, decimals);
    printed = rounded;
  }
  return fmt::format("{} = {:.{}f} {}", text, printed / scale, decimals, in_gibi ? "GiB" : "MiB");
}

// Entries side by side, downwards first, as far as a line of 100 columns holds them: neighbouring
// ranks stand below each other, and halves of the grid next to each other.
std::string MapText(const std::vector<std::string>& entries) {
  constexpr std::size_t kWidth = 100 - kIndent, kGap = 4;
  if (entries.empty()) return {};
  std::size_t widest = 1;
  for (const std::string& entry : entries) widest = std::max(widest, entry.size());
  const std::size_t most = std::max<std::size_t>(1, (kWidth + kGap) / (widest + kGap));
  const std::size_t lines = (entries.size() + most - 1) / most;
  std::string text;
  for (std::size_t line = 0; line < lines; ++line) {
    if (line > 0) text += fmt::format("\n{:<{}}", "", kIndent);
    for (std::size_t at = line; at < entries.size(); at += lines) {
      const bool last = at + lines >= entries.size();
      text += last ? entries[at] : fmt::format("{:<{}}", entries[at], widest + kGap);
    }
  }
  return text;
}

std::string RoofText(double flops) {
  constexpr double kGiga = 1e9, kTera = 1e12;
  const bool in_tera = flops >= 10 * kTera;
  const double value = flops / (in_tera ? kTera : kGiga);
  return fmt::format("{:.{}f} {}FLOP/s", value, value < 9.95 ? 1 : 0, in_tera ? "T" : "G");
}

}  // namespace

std::string BannerText(const BannerFacts& facts) {
  std::string text =
      fmt::format("Trireme {} ({})   {} on {}, {}{}{}   device {}   precision {}", facts.version,
                  facts.commit, Counted(facts.ranks, "rank"), Counted(facts.hosts, "host"),
                  Counted(facts.threads, "thread"), facts.ranks > 1 ? " each" : "",
                  facts.pinned ? ", pinned" : "", facts.device, facts.precision);
  const auto add = [&text](const char* word, const std::string& line) {
    if (!line.empty()) text += fmt::format("\n{:<{}}{}", word, kIndent, line);
  };
  add("grid", facts.grid);
  add("map", MapText(facts.ranks_map));
  add("model", facts.model);
  add("data", facts.data);
  add("kernels", facts.kernels);
  add("links", facts.links);
  if (!facts.memory.empty()) {
    add("memory", (facts.memory_differs ? "largest rank: " : "a rank: ") + MemoryText(facts));
  }
  if (facts.roof_flops > 0) add("roof", RoofText(facts.roof_flops) + " a rank (measured)");
  return text;
}

}  // namespace trireme::report
