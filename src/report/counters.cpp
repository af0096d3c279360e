// FindCounters: the widest counters that a node has, each joule once.
#include <array>
#include <utility>

#include "counter.hpp"

namespace trireme::report {

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
  constexpr std::array<std::pair<unsigned, const char*>, 5> kNames = {{{kWholeNode, "whole nodes"},
                                                                       {kPackages, "CPU packages"},
                                                                       {kMemory, "memory"},
                                                                       {kPlatform, "boards (psys)"},
                                                                       {kCards, "GPUs"}}};
  // The cards are within the whole.
  if ((parts & kWholeNode) != 0) parts &= ~unsigned{kCards};
  std::string text;
  for (const auto& [part, name] : kNames) {
    if ((parts & part) == 0) continue;
    text += text.empty() ? "" : ", ";
    text += name;
  }
  return text;
}

}  // namespace trireme::report
