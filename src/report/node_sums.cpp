// NodeSums: time without readings is lost until counters that only grow tell of it after all.
#include "node_sums.hpp"

#include <algorithm>
#include <utility>

namespace trireme::report {

// False if the counter cannot be read or stands still.
bool CounterGroup::Read(Place& place, double now) {
  const auto value = place.counter->Read();
  if (!value) return false;
  if (place.moved_at < 0 || *value != place.last_value) place.moved_at = now;
  place.last_value = place.now = *value;
  return now - place.moved_at < kStillSeconds;
}

std::optional<CounterGroup::Gain> CounterGroup::Advance(double now) {
  bool all = true;
  for (Place& place : places_) all = Read(place, now) && all;
  if (!all) return std::nullopt;
  Gain gain{.seconds = read_at_ < 0 ? 0 : now - read_at_};
  read_at_ = now;
  bool sound = gain.seconds > 0;
  for (Place& place : places_) {
    const double range = place.counter->Range();
    double gained = place.now - std::exchange(place.joules, place.now);
    if (gained < 0 && range > 0) gained += range;
    const bool seen = range <= 0 || gain.seconds * kWrapWatts < range;
    sound = sound && seen && gained >= 0 && gained <= kMostWatts * gain.seconds;
    gain.joules += gained;
    if (place.card) gain.card_joules += gained;
  }
  if (!sound) return std::nullopt;
  return gain;
}

NodeSums::NodeSums(Counters counters) : counters_(std::move(counters)) {
  for (const auto& counter : counters_.node) all_.Add(*counter, false);
  for (const auto& card : counters_.cards) {
    (counters_.cards_within_node ? cards_apart_ : all_).Add(*card, true);
  }
}

void NodeSums::LookAtCards(double seconds) {
  for (const auto& card : counters_.cards) {
    const auto state = card->Look();
    if (!state) continue;
    sums_.card_seconds += seconds;
    sums_.busy_seconds += seconds * state->utilisation;
    sums_.card_bytes = std::max(sums_.card_bytes, state->bytes);
  }
}

void NodeSums::Tick(double now) {
  if (ticked_at_ >= 0 && now - ticked_at_ < kLeastSeconds) return;
  const double before = std::exchange(ticked_at_, now);
  const double seconds = before < 0 ? 0 : now - before;
  sums_.lost_seconds += seconds;
  if (const auto gain = all_.Advance(now)) {
    sums_.joules += gain->joules;
    sums_.card_joules += gain->card_joules;
    sums_.node_seconds += gain->seconds;
    sums_.lost_seconds -= gain->seconds;
  }
  if (!cards_apart_.Empty()) {
    if (const auto gain = cards_apart_.Advance(now)) sums_.card_joules += gain->card_joules;
  }
  LookAtCards(seconds);
}

Sums NodeSums::Take() { return std::exchange(sums_, {}); }

}  // namespace trireme::report
