// The banner: what runs where, in seven lines that each begin with one word.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "table.hpp"

namespace trireme::monitor {

namespace {

std::string Count(int number, const char* noun) {
  return fmt::format("{} {}{}", WithThousands(number), noun, number == 1 ? "" : "s");
}

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

std::string RoofText(double flops) {
  constexpr double kGiga = 1e9, kTera = 1e12;
  const bool in_tera = flops >= 10 * kTera;
  const double value = flops / (in_tera ? kTera : kGiga);
  return fmt::format("{:.{}f} {}FLOP/s", value, value < 9.95 ? 1 : 0, in_tera ? "T" : "G");
}

}  // namespace

std::string BannerText(const BannerFacts& facts) {
  std::string text = fmt::format("Trireme {} ({})   {} on {}, {}{}   device {}   precision {}",
                                 facts.version, facts.commit, Count(facts.ranks, "rank"),
                                 Count(facts.hosts, "host"), Count(facts.threads, "thread"),
                                 facts.ranks > 1 ? " each" : "", facts.device, facts.precision);
  const auto add = [&text](const char* word, const std::string& line) {
    if (!line.empty()) text += fmt::format("\n{:<8}{}", word, line);
  };
  add("grid", facts.grid);
  for (const std::string& line : facts.ranks_map) text += fmt::format("\n{:<8}{}", "", line);
  add("model", facts.model);
  add("data", facts.data);
  if (!facts.memory.empty()) add("memory", "a rank: " + MemoryText(facts));
  if (facts.roof_flops > 0) add("roof", RoofText(facts.roof_flops) + " a rank (measured)");
  return text;
}

}  // namespace trireme::monitor
