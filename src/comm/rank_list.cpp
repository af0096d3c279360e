// ListRanks: a list of ranks as a person would write it.
#include "trireme/comm/rank_list.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace trireme::comm {

namespace {

// Numbers and ranges printed; the ranks after them are counted.
constexpr int kMaximumListed = 16;

}  // namespace

std::string ListRanks(const std::vector<int>& ranks) {
  std::string list;
  int listed = 0;
  std::size_t begin = 0;
  for (int items = 0; begin < ranks.size() && items < kMaximumListed; ++items) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin < 3) end = begin + 1;  // "3, 4" reads better than "3-4"
    list += list.empty() ? "" : ", ";
    list += fmt::to_string(ranks[begin]);
    if (end - begin > 1) list += fmt::format("-{}", ranks[end - 1]);
    listed += static_cast<int>(end - begin);
    begin = end;
  }
  const int left = static_cast<int>(ranks.size()) - listed;
  if (left > 0) list += fmt::format(" and {} more", left);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", list);
}

std::string ListRanks(const std::vector<int>& ranks, int size) {
  return fmt::format("{} of {}", ListRanks(ranks), size);
}

}  // namespace trireme::comm
