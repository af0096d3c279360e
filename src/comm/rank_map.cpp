// The banner's map: the host and the coordinates of each rank.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {

namespace {

// A longer map is shortened to its head, which shows how neighbours lie, and its tail.
constexpr int kMostLines = 16;
constexpr int kHead = 8;
constexpr int kTail = 4;

}  // namespace

std::vector<std::string> RankMap(const GridShape& shape, const Hosts& hosts) {
  const int ranks = shape.Ranks();
  if (ranks == 1) return {};
  const auto digits = [](int most) { return fmt::to_string(most).size(); };
  const auto is_shown = [&](int rank) {
    return ranks <= kMostLines || rank < kHead || rank >= ranks - kTail;
  };
  std::size_t host_width = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (is_shown(rank)) {
      host_width = std::max(host_width, hosts.Of(rank).size());
    }
  }
  std::vector<std::string> lines;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!is_shown(rank)) {
      if (rank == kHead) lines.push_back(fmt::format("...  {} more", ranks - kHead - kTail));
      continue;
    }
    const GridShape at = Locate(rank, shape);
    std::string line = fmt::format("rank {:>{}}   {:<{}}   pipeline {:>{}}  data {:>{}}", rank,
                                   digits(ranks - 1), hosts.Of(rank), host_width, at.pipeline,
                                   digits(shape.pipeline - 1), at.data, digits(shape.data - 1));
    if (shape.context > 1) {
      line += fmt::format("  context {:>{}}", at.context, digits(shape.context - 1));
    }
    line += fmt::format("  tensor {:>{}}", at.tensor, digits(shape.tensor - 1));
    lines.push_back(line);
  }
  return lines;
}

}  // namespace trireme::comm
