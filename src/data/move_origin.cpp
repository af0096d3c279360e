// MoveOrigin: where a run goes on after a change of its windows or of its mixture.
#include <algorithm>

#include "trireme/data/sampler.hpp"

namespace trireme::data {

namespace {

// Far above every run, far below overflow.
constexpr std::int64_t kMostSamples = std::int64_t{1} << 61;

__extension__ using Wide = __int128;  // a product of two 64-bit numbers

// Whole epochs of `windows`, and the same fraction of the next, in windows of which an epoch has
// `windows_now`.
std::int64_t Scaled(std::int64_t sample, std::int64_t windows, std::int64_t windows_now) {
  const Wide scaled =
      Wide{sample / windows} * windows_now + Wide{sample % windows} * windows_now / windows;
  return static_cast<std::int64_t>(std::min(scaled, Wide{kMostSamples}));
}

std::int64_t TokensOf(const Sampler::Options& options, std::size_t source) {
  return options.sources.empty() ? options.tokens : options.sources.at(source).tokens;
}

// Whether both cut a file into the same windows.
bool SameWindows(const Sampler::Options& from, std::size_t was, const Sampler::Options& to,
                 std::size_t now) {
  return from.length == to.length && from.stride == to.stride &&
         TokensOf(from, was) == TokensOf(to, now);
}

// Whether both have the same order of windows.
bool SameMixture(const Sampler& was, const Sampler& now, const Sampler::Options& from,
                 const Sampler::Options& to, const std::vector<int>& from_of) {
  if (was.SourceCount() != now.SourceCount()) return false;
  for (std::size_t i = 0; i < from_of.size(); ++i) {
    const auto source = static_cast<std::int64_t>(i);
    if (from_of[i] != static_cast<int>(i) || was.QuotaOf(source) != now.QuotaOf(source) ||
        !SameWindows(from, i, to, i)) {
      return false;
    }
  }
  return true;
}

std::vector<int> Identity(std::int64_t count) {
  std::vector<int> places;
  for (std::int64_t i = 0; i < count; ++i) places.push_back(static_cast<int>(i));
  return places;
}

}  // namespace

Origin MoveOrigin(const Origin& origin, const Sampler::Options& from, const Sampler::Options& to,
                  const std::vector<int>& from_of) {
  Sampler::Options before = from, after = to;
  before.origin = origin;
  after.origin = {};
  const Sampler was(before), now(after);
  const std::vector<int> sources = from_of.empty() ? Identity(now.SourceCount()) : from_of;
  after.origin = origin;
  if (!SameMixture(was, now, from, to, sources)) {
    after.origin.sample = Scaled(origin.sample, was.Windows(), now.Windows());
    const std::vector<SourcePlace> places = was.Places(origin.step);
    after.origin.sources.clear();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      SourcePlace place;
      if (sources[i] >= 0) {
        const auto before_i = static_cast<std::size_t>(sources[i]);
        place = places.at(before_i);
        if (!SameWindows(from, before_i, to, i)) {
          place.windows = Scaled(place.windows, was.WindowsOf(sources[i]),
                                 now.WindowsOf(static_cast<std::int64_t>(i)));
        }
      }
      after.origin.sources.push_back(place);
    }
    // One file that was never part of a mixture needs no place of its own.
    if (origin.sources.empty() && from.sources.empty() && to.sources.empty()) {
      after.origin.sources.clear();
    }
  }
  static_cast<void>(Sampler(after));  // refuses a position beyond all runs
  return after.origin;
}

}  // namespace trireme::data
