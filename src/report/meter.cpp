// Meter: a reader on each node, agreement on what all nodes can count, and sums over them.
#include "trireme/report/meter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <stop_token>
#include <thread>

#include "counter.hpp"
#include "node_sums.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/cores.hpp"

namespace trireme::report {

Sums& Sums::operator+=(const Sums& other) {
  joules += other.joules;
  node_seconds += other.node_seconds;
  lost_seconds += other.lost_seconds;
  card_joules += other.card_joules;
  card_seconds += other.card_seconds;
  busy_seconds += other.busy_seconds;
  card_bytes = std::max(card_bytes, other.card_bytes);
  return *this;
}

bool Sums::Whole() const {
  constexpr double kRounding = 1e-6;  // of sums of times
  return node_seconds > 0 && std::abs(lost_seconds) < kRounding * node_seconds;
}

class Meter::Reader {
 public:
  Reader(Counters counters, const Setup& setup)
      : sums_(std::move(counters)),
        setup_(setup),
        thread_([this](const std::stop_token& stop) { Run(stop); }) {
    Read();
  }

  Sums Take() {
    Read();
    const std::lock_guard lock(mutex_);
    return sums_.Take();
  }

 private:
  void Read() {
    const std::lock_guard lock(mutex_);
    sums_.Tick(Seconds());
  }

  void Run(const std::stop_token& stop) noexcept {
    const std::chrono::duration<double> period(setup_.places.period_seconds);
    try {
      if (!setup_.cores.empty()) device::BindThisThread(setup_.cores);
      std::mutex waiting;
      std::unique_lock lock(waiting);
      std::condition_variable_any never;
      while (!never.wait_for(lock, stop, period, [&stop] { return stop.stop_requested(); })) Read();
    } catch (const std::exception&) {
      return;  // times without readings are told as lost
    }
  }

  std::mutex mutex_;  // of the sums
  NodeSums sums_;
  Setup setup_;
  std::jthread thread_;  // ends before what it uses
};

Meter::Meter(const comm::Communicator& world, const comm::Communicator& node, const Setup& setup)
    : world_(world) {
  std::vector<std::string> cards = node.Gather(setup.card);
  std::sort(cards.begin(), cards.end());
  cards.erase(std::unique(cards.begin(), cards.end()), cards.end());
  std::erase(cards, "");

  const bool reads = node.IsRoot();
  Counters found;
  if (reads) found = FindCounters(setup.places, cards);
  const std::int64_t parts = found.Empty() ? 0 : found.parts;
  const std::int64_t most = world.Max(parts);
  const std::int64_t least = world.Min(reads ? parts : std::numeric_limits<std::int64_t>::max());
  nodes_ = world.Sum(reads ? 1.0 : 0.0);
  cards_ = static_cast<int>(world.Sum(std::int64_t{std::ssize(found.cards)}));
  leaves_out_ = world.Broadcast(fmt::format("{}", fmt::join(found.why, "; ")));
  covers_ = NameOf(static_cast<unsigned>(most));
  if (least == most && most > 0) {
    if (reads) reader_ = std::make_unique<Reader>(std::move(found), setup);
    return;
  }
  // The first node that can count less than others speaks.
  const bool lacks = reads && parts != most;
  const bool none = most == 0;
  const auto first = world.Min(std::int64_t{(none ? reads : lacks) ? world.Rank() : world.Size()});
  const std::string mine =
      none ? fmt::format("{}", fmt::join(found.why, "; "))
           : fmt::format("nodes count different parts: {} on one, {} on {}{}{}", covers_,
                         parts == 0 ? "nothing" : NameOf(static_cast<unsigned>(parts)), setup.host,
                         found.why.empty() ? "" : "; ", fmt::join(found.why, "; "));
  why_not_ = world.Broadcast(mine, static_cast<int>(first));
}

Meter::~Meter() = default;

Sums Meter::Collect() {
  Sums sums;
  if (!Available()) return sums;
  if (reader_) sums = reader_->Take();
  std::vector<double> all = {sums.joules,      sums.node_seconds, sums.lost_seconds,
                             sums.card_joules, sums.card_seconds, sums.busy_seconds};
  world_.Sum(all);
  sums = {.joules = all[0],
          .node_seconds = all[1],
          .lost_seconds = all[2],
          .card_joules = all[3],
          .card_seconds = all[4],
          .busy_seconds = all[5],
          .card_bytes = cards_ > 0 ? world_.Max(sums.card_bytes) : 0};
  return sums;
}

}  // namespace trireme::report
