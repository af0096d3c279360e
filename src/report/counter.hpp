// The counters of energy and the cards of a node.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/report/meter.hpp"

namespace trireme::report {

// An energy counter: it only grows, and wraps around to 0 after Range().
class Counter {
 public:
  Counter() = default;
  virtual ~Counter() = default;
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  virtual std::optional<double> Read() = 0;   // joules; nullopt: not readable now
  virtual double Range() const { return 0; }  // joules; 0: never wraps around
};

// The present state of a card. (Its energy is a Counter.)
struct CardState {
  double utilisation = 0;  // share of the last sample period in which a kernel ran
  double bytes = 0;        // memory in use
};
class Card : public Counter {
 public:
  virtual std::optional<CardState> Look() = 0;
};

// Parts of a node whose energy is counted, as bits; all nodes must have the same set.
enum Part : unsigned {
  kWholeNode = 1U << 0U,
  kPackages = 1U << 1U,
  kMemory = 1U << 2U,
  kPlatform = 1U << 3U,
  kCards = 1U << 4U,
};
std::string NameOf(unsigned parts);  // "CPU packages, memory, GPUs"

// The counters of a node, chosen so that nothing is counted twice.
struct Counters {
  std::vector<std::unique_ptr<Counter>> node;  // all counters but the cards'
  std::vector<std::unique_ptr<Card>> cards;
  bool cards_within_node = false;  // the counters in `node` include the cards' energy
  unsigned parts = 0;              // set of Part: what is counted
  std::vector<std::string> why;    // reasons why other parts are not counted

  bool Empty() const { return node.empty() && (cards.empty() || cards_within_node); }
};
// cards: hexadecimal digits of the UUIDs of the cards that this node's ranks use, each once.
Counters FindCounters(const Places& places, const std::vector<std::string>& cards);

// One function per kind of counter: each adds to `counters`, or the reason to counters.why.
bool FindCray(const Places& places, Counters& counters);
void FindRapl(const Places& places, Counters& counters);
void FindCards(const Places& places, const std::vector<std::string>& cards, Counters& counters);

// Counters that the kernel shows as small files.

// The first line of a small file; nullopt, with errno set, if it cannot be read.
std::optional<std::string> FirstLine(const std::string& path);
// The number >= 0 at the start of a text, before a blank or the end; else nullopt.
std::optional<double> NumberIn(const std::string& text);

class FileCounter : public Counter {
 public:
  // joules: per unit of the number in the file. range: as Range(), joules.
  FileCounter(std::string path, double joules, double range = 0)
      : path_(std::move(path)), joules_(joules), range_(range) {}

  std::optional<double> Read() override;
  double Range() const override { return range_; }
  const std::string& Path() const { return path_; }

 private:
  std::string path_;
  double joules_, range_;
};

// Sums over the readings of a node's counters.

inline constexpr double kLeastSeconds = 0.05;  // shortest time between readings
inline constexpr double kMostWatts = 100e3;    // plausibility limit per counter
inline constexpr double kStillSeconds = 10;  // a counter that does not change for so long is stuck
// Highest power assumed when checking that a counter gained less than Range() between readings.
inline constexpr double kWrapWatts = 3000;

// Counters that are read together. The energy of an interval counts only if all counters could be
// read at both ends and gave plausible values.
class CounterGroup {
 public:
  struct Gain {
    double joules = 0, card_joules = 0;
    double seconds = 0;  // since the last complete reading
  };

  void Add(Counter& counter, bool card) { places_.push_back({&counter, card}); }
  bool Empty() const { return places_.empty(); }
  // Gain since the last complete reading; nullopt on the first call, or if a counter is unreadable,
  // stuck or implausible. now: Seconds().
  std::optional<Gain> Advance(double now);

 private:
  struct Place {
    Counter* counter = nullptr;
    bool card = false;
    double joules = 0;       // value at the last complete reading
    double moved_at = -1;    // time of the last change; negative: never read
    double last_value = -1;  // value at this counter's own last reading
    double now = 0;          // value at the present reading
  };
  static bool Read(Place& place, double now);

  std::vector<Place> places_;
  double read_at_ = -1;  // time of the last complete reading; negative: none
};

class NodeSums {
 public:
  explicit NodeSums(Counters counters);

  // Reads all counters and adds what they gained; does nothing if the last reading was less than
  // kLeastSeconds ago. now: Seconds().
  void Tick(double now);
  // Sums since the last call.
  Sums Take();

 private:
  void LookAtCards(double seconds);

  Counters counters_;
  CounterGroup all_;          // counters of the node's energy
  CounterGroup cards_apart_;  // counters of cards whose energy is part of the node's
  double ticked_at_ = -1;     // time of the last Tick; negative: none
  Sums sums_;
};

}  // namespace trireme::report
