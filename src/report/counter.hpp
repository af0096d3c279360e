// Counters of energy and cards as a node offers them.
#pragma once

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

// A counter in a file of a few characters, as the kernel shows them.

// The first line of a small file; nothing, with errno set, if it cannot be read.
std::optional<std::string> FirstLine(const std::string& path);
// A number that is not negative at the start of a text, with nothing or a blank after it.
std::optional<double> NumberIn(const std::string& text);

class FileCounter : public Counter {
 public:
  // joules: of a unit in the file. range: joules, as Range().
  FileCounter(std::string path, double joules, double range = 0)
      : path_(std::move(path)), joules_(joules), range_(range) {}

  std::optional<double> Read() override;
  double Range() const override { return range_; }
  const std::string& Path() const { return path_; }

 private:
  std::string path_;
  double joules_, range_;
};

// Readings of a node's counters, summed up.

inline constexpr double kLeastSeconds = 0.05;  // between readings: counters move in small jumps
inline constexpr double kMostWatts = 100e3;    // of one counter; more is no energy
inline constexpr double kStillSeconds = 10;    // most between moves of a counter that works
// The power at which a counter could wrap around unseen between two readings.
inline constexpr double kWrapWatts = 3000;

// Counters that are read together. Their energy of a time counts if all could be read at its ends
// and made sense.
class CounterGroup {
 public:
  struct Gain {
    double joules = 0, card_joules = 0;
    double seconds = 0;  // since all were read last
  };

  void Add(Counter& counter, bool card) { places_.push_back({&counter, card}); }
  bool Empty() const { return places_.empty(); }
  // Reads all. Nothing at the first reading, and if one cannot be read, stands still or jumps.
  std::optional<Gain> Advance(double now);

 private:
  struct Place {
    Counter* counter = nullptr;
    bool card = false;
    double joules = 0;       // at the last reading of all
    double moved_at = -1;    // when it had another value; negative: never read
    double last_value = -1;  // as read, of this counter alone
    double now = 0;          // at the reading under way
  };
  static bool Read(Place& place, double now);

  std::vector<Place> places_;
  double read_at_ = -1;  // all of them; negative: never
};

class NodeSums {
 public:
  explicit NodeSums(Counters counters);

  // Reads all counters and adds what they have counted since they were read last, unless that was
  // less than kLeastSeconds ago. now: of Seconds().
  void Tick(double now);
  // Sums since the last call.
  Sums Take();

 private:
  void LookAtCards(double seconds);

  Counters counters_;
  CounterGroup all_;          // of the node's energy
  CounterGroup cards_apart_;  // within it
  double ticked_at_ = -1;     // negative: never
  Sums sums_;
};

}  // namespace trireme::report
