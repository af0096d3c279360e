// BindingOf: which cores the ranks of a node were given.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

namespace {

std::vector<int> Common(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> common;
  std::ranges::set_intersection(a, b, std::back_inserter(common));
  return common;
}

// The first two ranks that share cores without being bound alike.
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
        "cores a rank (srun --cpus-per-task, mpirun --map-by ppr:1:numa:pe=N), or more ranks",
        used.size(), online.size(), RangesOf(list));
  }
  return binding;
}

}  // namespace trireme::tools
