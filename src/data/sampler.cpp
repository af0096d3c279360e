// Sampler: windows, batches and shares as pure functions of the step number.
#include "trireme/data/sampler.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {

namespace {

// Luby and Rackoff (SIAM J. Comput. 17, 1988): four rounds of a random function give a
// pseudo-random permutation that resists chosen plain and cipher texts. That is for large domains;
// small ones need more.
constexpr std::uint32_t kRounds = 8;

// counter = (half-block, round, epoch low, epoch high)
std::uint32_t Mix(const PhiloxKey& key, std::uint64_t half, std::uint32_t round,
                  std::uint64_t epoch) {
  return Philox({static_cast<std::uint32_t>(half), round, static_cast<std::uint32_t>(epoch),
                 static_cast<std::uint32_t>(epoch >> 32)},
                key)[0];
}

// Permute or, if `back`, its inverse: the same rounds in the opposite order, with the halves
// exchanged.
std::int64_t Permuted(std::uint32_t seed, std::int64_t epoch, std::int64_t index,
                      std::int64_t count, bool back) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 62;  // half-blocks of 31 bits
  if (count < 1 || count > kLargest || index < 0 || index >= count) {
    throw std::logic_error(fmt::format("Permute: index {} of {}", index, count));
  }
  const PhiloxKey key = MakeKey(seed, Purpose::kPermutation);
  int half_bits = 1;
  while ((std::int64_t{1} << (2 * half_bits)) < count) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits, right = value & mask;
    if (back) std::swap(left, right);
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      const std::uint32_t round = back ? kRounds - 1 - i : i;
      left ^= Mix(key, right, round, static_cast<std::uint64_t>(epoch)) & mask;
      std::swap(left, right);
    }
    if (back) std::swap(left, right);
    value = left << half_bits | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

}  // namespace

std::int64_t Permute(std::uint32_t seed, std::int64_t epoch, std::int64_t index,
                     std::int64_t count) {
  return Permuted(seed, epoch, index, count, false);
}

std::int64_t PermuteBack(std::uint32_t seed, std::int64_t epoch, std::int64_t image,
                         std::int64_t count) {
  return Permuted(seed, epoch, image, count, true);
}

namespace {

// Limits far above any run (a deck may ask for 10^12 steps at most) and far below overflow.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 60;
constexpr std::int64_t kMostTargets = std::int64_t{1} << 61;

void Require(std::int64_t value, std::int64_t minimum, const char* name) {
  if (value < minimum) {
    throw InputError(
        fmt::format("sampler: {} is {}; it must be at least {}", name, value, minimum));
  }
}

}  // namespace

Sampler::Sampler(const Options& options) : options_(options), order_({}) {
  Require(options_.length, 1, "data.sequence_length");
  Require(options_.stride, 1, "data.stride");
  Require(options_.batch, 1, "data.batch");
  Require(options_.ramp.start, 1, "schedule.batch_start");
  Require(options_.ramp.steps, 0, "schedule.batch_ramp");
  std::vector<Proportion> proportions;
  std::vector<std::int64_t> windows;
  for (const Source& source : options_.sources) {
    sources_.push_back(Cut(source.tokens));
    proportions.push_back(source.proportion);
    windows.push_back(sources_.back().windows);
  }
  if (sources_.empty()) sources_ = {Cut(options_.tokens)};
  const std::vector<std::int64_t> quotas =
      proportions.empty() ? std::vector{sources_.front().windows} : Quotas(proportions, windows);
  for (std::size_t i = 0; i < quotas.size(); ++i) sources_[i].quota = quotas[i];
  order_ = Interleaving(quotas);
  windows_ = order_.Windows();
  if (windows_ >= kMostTargets / options_.length) {
    throw InputError(fmt::format("sampler: {} windows of {} targets are too many for an epoch",
                                 windows_, options_.length));
  }
  CheckOrigin();
  SetOut();
}

Sampler::Windowed Sampler::Cut(std::int64_t tokens) const {
  Require(tokens, 2, "the number of tokens");
  const std::int64_t all = tokens - 1;  // N
  const std::int64_t uncovered = std::max<std::int64_t>(all - options_.length, 0);
  Windowed cut;
  cut.windows =
      std::min(CeilDivide(uncovered, options_.stride) + 1, CeilDivide(all, options_.stride));
  const std::int64_t last = all - (cut.windows - 1) * options_.stride;
  cut.missing = std::max<std::int64_t>(options_.length - last, 0);
  return cut;
}

// Checks the origin's numbers, since they come from a file.
void Sampler::CheckOrigin() const {
  const Origin& origin = options_.origin;
  Require(origin.step, 0, "the step to continue from");
  Require(origin.sample, 0, "next_sample");
  Require(origin.targets, 0, "the number of tokens seen");
  std::int64_t targets = windows_ * options_.length;  // per epoch
  for (const Windowed& source : sources_) targets -= source.missing;
  bool far = origin.sample / windows_ >= kMostTargets / targets;
  for (const SourcePlace& place : origin.sources) {
    Require(place.windows, 0, "the number of windows used");
    Require(place.targets, 0, "the number of tokens seen");
    far = far || place.windows >= kMostTargets / options_.length || place.targets > kMostTargets;
  }
  if (!origin.sources.empty() && origin.sources.size() != sources_.size()) {
    throw InputError(fmt::format("sampler: places of {} files for a mixture of {}",
                                 origin.sources.size(), sources_.size()));
  }
  if (origin.step <= kMostSteps && origin.targets <= kMostTargets && !far) return;
  throw InputError(
      fmt::format("sampler: step {}, next_sample {} and {} tokens seen are not a position of a run "
                  "of {} windows",
                  origin.step, origin.sample, origin.targets, windows_));
}

void Sampler::SetOut() {
  const Origin& origin = options_.origin;
  LayStretches();
  const Place& start = stretches_.front().start;
  reached_ = origin.sources;
  for (std::size_t i = reached_.size(); i < sources_.size(); ++i) {
    const std::int64_t count = CountBefore(i, start);
    reached_.push_back({count, TargetsOf(sources_[i], count)});
  }
  if (origin.sources.empty() && sources_.size() == 1) reached_.front().targets = origin.targets;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    sources_[i].shift = reached_[i].windows - CountBefore(i, start);
  }
}

// Each stretch begins at the first step whose batch has more windows than the last stretch's.
void Sampler::LayStretches() {
  const Origin& origin = options_.origin;
  const std::int64_t whole = options_.batch, steps = options_.ramp.steps;
  const std::int64_t first = steps > 0 ? std::min(options_.ramp.start, whole) : whole;
  const std::int64_t growth = whole - first;
  std::int64_t step = origin.step;
  Place start{origin.sample / windows_, origin.sample % windows_};
  stretches_.clear();
  while (true) {
    const std::int64_t grown = step >= steps ? growth : growth * step / steps;
    stretches_.push_back({step, first + grown, start});
    if (grown == growth) return;
    const std::int64_t next = CeilDivide((grown + 1) * steps, growth);
    start = After(stretches_.back(), next - step);
    step = next;
  }
}

std::int64_t Sampler::Windows() const { return windows_; }

std::int64_t Sampler::WindowsOf(std::int64_t source) const {
  return sources_.at(static_cast<std::size_t>(source)).windows;
}

std::int64_t Sampler::QuotaOf(std::int64_t source) const {
  return sources_.at(static_cast<std::size_t>(source)).quota;
}

Sampler Sampler::From(const Origin& origin) const {
  Options options = options_;
  options.origin = origin;
  return Sampler(options);
}

std::int64_t Sampler::MostWindows() const { return std::min(options_.batch, windows_); }

std::int64_t Sampler::StepsPerEpoch() const { return CeilDivide(windows_, options_.batch); }

const Sampler::Stretch& Sampler::StretchOf(std::int64_t step) const {
  if (step < options_.origin.step) {
    throw std::logic_error(
        fmt::format("Sampler: step {} lies before step {}", step, options_.origin.step));
  }
  return *std::prev(std::ranges::upper_bound(stretches_, step, {}, &Stretch::step));
}

std::int64_t Sampler::StepsToEpochEnd(const Stretch& stretch) const {
  return CeilDivide(windows_ - stretch.start.window, stretch.batch);
}

Sampler::Place Sampler::After(const Stretch& stretch, std::int64_t steps) const {
  const auto& [epoch, window] = stretch.start;
  const std::int64_t rest = StepsToEpochEnd(stretch);
  if (steps < rest) return {epoch, window + steps * stretch.batch};
  const std::int64_t each = CeilDivide(windows_, stretch.batch), since = steps - rest;
  return {epoch + 1 + since / each, since % each * stretch.batch};
}

Sampler::Place Sampler::PlaceOf(std::int64_t step) const {
  const Stretch& stretch = StretchOf(step);
  return After(stretch, step - stretch.step);
}

std::int64_t Sampler::StepsOf(double epochs) const {
  const std::int64_t all =
      std::max<std::int64_t>(1, std::llround(epochs * static_cast<double>(StepsPerEpoch())));
  // Where a run without changes would end.
  const Place end{all / StepsPerEpoch(), all % StepsPerEpoch() * options_.batch};
  const auto after = std::ranges::lower_bound(stretches_, end, {}, &Stretch::start);
  if (after == stretches_.begin()) return options_.origin.step;
  const Stretch& last = *std::prev(after);
  if (end.epoch == last.start.epoch) {
    return last.step + CeilDivide(end.window - last.start.window, last.batch);
  }
  return last.step + StepsToEpochEnd(last) +
         (end.epoch - last.start.epoch - 1) * CeilDivide(windows_, last.batch) +
         CeilDivide(end.window, last.batch);
}

std::int64_t Sampler::BatchSize(std::int64_t step) const {
  return std::min(StretchOf(step).batch, windows_ - PlaceOf(step).window);
}

std::int64_t Sampler::NextSample(std::int64_t step) const {
  const Place place = PlaceOf(step);
  return place.epoch * windows_ + place.window;
}

double Sampler::Epochs(std::int64_t step) const {
  const Place place = PlaceOf(step);
  const bool unchanged = place.epoch == step / StepsPerEpoch() &&
                         place.window == step % StepsPerEpoch() * options_.batch;
  if (unchanged) return static_cast<double>(step) / static_cast<double>(StepsPerEpoch());
  return static_cast<double>(place.epoch) +
         static_cast<double>(place.window) / static_cast<double>(windows_);
}

std::int64_t Sampler::ShortPosition(const Windowed& source, std::int64_t epoch) const {
  if (!options_.shuffle) return source.windows - 1;
  return PermuteBack(options_.seed, epoch, source.windows - 1, source.windows);
}

std::int64_t Sampler::BatchTargets(std::int64_t step) const {
  return TargetsBefore(step + 1) - TargetsBefore(step);
}

std::int64_t Sampler::CountBefore(std::size_t source, const Place& place) const {
  return place.epoch * sources_[source].quota + order_.CountBefore(source, place.window);
}

std::int64_t Sampler::TargetsOf(const Windowed& source, std::int64_t windows) const {
  const std::int64_t epoch = windows / source.windows, rest = windows % source.windows;
  std::int64_t targets = windows * options_.length - epoch * source.missing;
  if (source.missing > 0 && rest > 0 && ShortPosition(source, epoch) < rest) {
    targets -= source.missing;
  }
  return targets;
}

SourcePlace Sampler::PlaceOf(std::size_t source, const Place& place) const {
  const Windowed& file = sources_[source];
  const SourcePlace& reached = reached_[source];
  const std::int64_t windows = file.shift + CountBefore(source, place);
  return {windows, reached.targets + TargetsOf(file, windows) - TargetsOf(file, reached.windows)};
}

std::vector<SourcePlace> Sampler::Places(std::int64_t step) const {
  const Place place = PlaceOf(step);
  std::vector<SourcePlace> places;
  for (std::size_t i = 0; i < sources_.size(); ++i) places.push_back(PlaceOf(i, place));
  return places;
}

std::int64_t Sampler::TargetsBefore(std::int64_t step) const {
  const Place place = PlaceOf(step);
  std::int64_t targets = options_.origin.targets;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    targets += PlaceOf(i, place).targets - reached_[i].targets;
  }
  return targets;
}

Sample Sampler::At(std::int64_t step, std::int64_t position) const {
  const Place place = PlaceOf(step);
  const std::int64_t k = place.window + position;
  const Interleaving::Turn turn = order_.At(k);
  const Windowed& source = sources_[static_cast<std::size_t>(turn.source)];
  const std::int64_t index = source.shift + place.epoch * source.quota + turn.index;
  const std::int64_t own = index % source.windows;
  const std::int64_t window =
      options_.shuffle ? Permute(options_.seed, index / source.windows, own, source.windows) : own;
  Sample sample;
  sample.ordinal = place.epoch * windows_ + k;
  sample.start = window * options_.stride;
  sample.targets = options_.length - (window == source.windows - 1 ? source.missing : 0);
  sample.source = turn.source;
  return sample;
}

std::vector<Sample> Sampler::Share(std::int64_t step, int rank, int ranks) const {
  std::vector<Sample> samples;
  Fill(step, PartOf(BatchSize(step), rank, ranks), samples);
  return samples;
}

void Sampler::Fill(std::int64_t step, const Part& share, std::vector<Sample>& samples) const {
  samples.clear();
  const std::int64_t end = std::min(share.end, BatchSize(step));
  for (std::int64_t i = share.begin; i < end; ++i) samples.push_back(At(step, i));
}

namespace {

// Far above any run, far below overflow.
constexpr std::int64_t kMostSamples = std::int64_t{1} << 61;

__extension__ using Wide = __int128;  // a product of two 64-bit numbers

// Converts a number of windows used, from epochs of `windows` to epochs of `windows_now`: the same
// number of whole epochs and the same fraction of the next, rounded down.
std::int64_t Scaled(std::int64_t sample, std::int64_t windows, std::int64_t windows_now) {
  const Wide scaled =
      Wide{sample / windows} * windows_now + Wide{sample % windows} * windows_now / windows;
  return static_cast<std::int64_t>(std::min(scaled, Wide{kMostSamples}));
}

std::int64_t TokensOf(const Sampler::Options& options, std::size_t source) {
  return options.sources.empty() ? options.tokens : options.sources.at(source).tokens;
}

// Whether both options cut the file into the same windows.
bool SameWindows(const Sampler::Options& from, std::size_t was, const Sampler::Options& to,
                 std::size_t now) {
  return from.length == to.length && from.stride == to.stride &&
         TokensOf(from, was) == TokensOf(to, now);
}

// Whether both samplers have the same files with equal windows and quotas, so the same order.
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

}  // namespace

Origin MoveOrigin(const Origin& origin, const Sampler::Options& from, const Sampler::Options& to,
                  const std::vector<int>& from_of) {
  Sampler::Options before = from, after = to;
  before.origin = origin;
  after.origin = {};
  const Sampler was(before), now(after);
  std::vector<int> sources = from_of;
  if (sources.empty()) {
    sources.resize(static_cast<std::size_t>(now.SourceCount()));
    std::iota(sources.begin(), sources.end(), 0);
  }
  after.origin = origin;
  if (!SameMixture(was, now, from, to, sources)) {
    after.origin.sample = Scaled(origin.sample, was.Windows(), now.Windows());
    const std::vector<SourcePlace> places = was.Places(origin.step);
    after.origin.sources.clear();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      SourcePlace& place = after.origin.sources.emplace_back();
      if (sources[i] < 0) continue;
      const auto before_i = static_cast<std::size_t>(sources[i]);
      place = places.at(before_i);
      if (SameWindows(from, before_i, to, i)) continue;
      place.windows = Scaled(place.windows, was.WindowsOf(sources[i]),
                             now.WindowsOf(static_cast<std::int64_t>(i)));
    }
    // A single file that was never in a mixture needs no place: the sample determines it.
    if (origin.sources.empty() && from.sources.empty() && to.sources.empty()) {
      after.origin.sources.clear();
    }
  }
  static_cast<void>(Sampler(after));  // throws for a position that no run can have
  return after.origin;
}

}  // namespace trireme::data
