// Counters of energy and cards as a node offers them.
#ifndef TRIREME_SRC_REPORT_COUNTER_HPP_
#define TRIREME_SRC_REPORT_COUNTER_HPP_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/report/meter.hpp"

namespace trireme::report {

// An energy that only grows, until it begins anew after Range().
class Counter {
 public:
  Counter() = default;
  virtual ~Counter() = default;
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  virtual std::optional<double> Read() = 0;   // joules; nothing if they cannot be read now
  virtual double Range() const { return 0; }  // joules; 0: never begins anew
};

// A card's state of the moment; its energy is a Counter.
struct CardState {
  double utilisation = 0;  // share of the last moment in which a kernel ran
  double bytes = 0;        // of memory in use
};
class Card : public Counter {
 public:
  virtual std::optional<CardState> Look() = 0;
};

// Parts of a node, as bits of a set that is the same on all nodes.
enum Part : unsigned {
  kWholeNode = 1U << 0U,
  kPackages = 1U << 1U,
  kMemory = 1U << 2U,
  kPlatform = 1U << 3U,
  kCards = 1U << 4U,
};
std::string NameOf(unsigned parts);  // "CPU packages, memory, GPUs"

// Counters of a node that count nothing twice.
struct Counters {
  std::vector<std::unique_ptr<Counter>> node;  // without the cards
  std::vector<std::unique_ptr<Card>> cards;
  bool cards_within_node = false;  // the energy of `node` has theirs
  unsigned parts = 0;              // counted ones
  std::vector<std::string> why;    // parts that are not, and why

  bool Empty() const { return node.empty() && (cards.empty() || cards_within_node); }
};
// cards: identities of the cards that ranks of this node compute on, each once.
Counters FindCounters(const Places& places, const std::vector<std::string>& cards);

// The kinds, each of which adds to `counters` or says why not.
bool FindCray(const Places& places, Counters& counters);
void FindRapl(const Places& places, Counters& counters);
void FindCards(const Places& places, const std::vector<std::string>& cards, Counters& counters);

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_COUNTER_HPP_
