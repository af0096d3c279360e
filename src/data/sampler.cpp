// Sampler: windows, batches and shares as pure functions of the step number.
#include "trireme/data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "permutation.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// Far above every run, far below overflow: 10^12 steps are the most that a deck may ask for.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 60;
constexpr std::int64_t kMostTargets = std::int64_t{1} << 61;

__extension__ using Wide = __int128;  // a product of two 64-bit numbers

void Require(std::int64_t value, std::int64_t minimum, const char* name) {
  if (value < minimum) {
    throw InputError(
        fmt::format("sampler: {} is {}; it must be at least {}", name, value, minimum));
  }
}

}  // namespace

Sampler::Sampler(const Options& options) : options_(options) {
  Require(options_.tokens, 2, "the number of tokens");
  Require(options_.length, 1, "data.sequence_length");
  Require(options_.stride, 1, "data.stride");
  Require(options_.batch, 1, "data.batch");
  const std::int64_t all = options_.tokens - 1;  // N
  const std::int64_t uncovered = std::max<std::int64_t>(all - options_.length, 0);
  windows_ = std::min(CeilDivide(uncovered, options_.stride) + 1, CeilDivide(all, options_.stride));
  const std::int64_t last = all - (windows_ - 1) * options_.stride;
  missing_ = std::max<std::int64_t>(options_.length - last, 0);
  CheckOrigin();
  start_ = {options_.origin.sample / windows_, options_.origin.sample % windows_};
  rest_ = CeilDivide(windows_ - start_.window, options_.batch);
  skipped_ = TargetsBefore(start_);
}

// The numbers come from a file.
void Sampler::CheckOrigin() const {
  const Origin& origin = options_.origin;
  Require(origin.step, 0, "the step to continue from");
  Require(origin.sample, 0, "next_sample");
  Require(origin.targets, 0, "the number of tokens seen");
  const bool far = origin.sample / windows_ >= kMostTargets / EpochTargets();
  if (origin.step <= kMostSteps && origin.targets <= kMostTargets && !far) return;
  throw InputError(fmt::format(
      "sampler: step {}, next_sample {} and {} tokens seen are no position of a run of {} windows",
      origin.step, origin.sample, origin.targets, windows_));
}

std::int64_t Sampler::Windows() const { return windows_; }

std::int64_t Sampler::StepsPerEpoch() const { return CeilDivide(windows_, options_.batch); }

Sampler::Place Sampler::PlaceOf(std::int64_t step) const {
  std::int64_t since = step - options_.origin.step;
  if (since < 0) {
    throw std::logic_error(
        fmt::format("Sampler: step {} lies before step {}", step, options_.origin.step));
  }
  if (since < rest_) return {start_.epoch, start_.window + since * options_.batch};
  since -= rest_;
  return {start_.epoch + 1 + since / StepsPerEpoch(), since % StepsPerEpoch() * options_.batch};
}

std::int64_t Sampler::StepsOf(double epochs) const {
  const std::int64_t all =
      std::max<std::int64_t>(1, std::llround(epochs * static_cast<double>(StepsPerEpoch())));
  // The end's place in a run that never changed.
  const std::int64_t epoch = all / StepsPerEpoch(), steps = all % StepsPerEpoch();
  const std::int64_t now = options_.origin.step;
  if (epoch > start_.epoch) {
    return now + rest_ + (epoch - start_.epoch - 1) * StepsPerEpoch() + steps;
  }
  const std::int64_t left =
      steps * options_.batch - start_.window;  // windows of the origin's epoch
  return epoch == start_.epoch && left > 0 ? now + CeilDivide(left, options_.batch) : now;
}

std::int64_t Sampler::BatchSize(std::int64_t step) const {
  return std::min(options_.batch, windows_ - PlaceOf(step).window);
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

std::int64_t Sampler::EpochTargets() const { return windows_ * options_.length - missing_; }

std::int64_t Sampler::ShortPosition(std::int64_t epoch) const {
  if (!options_.shuffle) return windows_ - 1;
  return PermuteBack(options_.seed, epoch, windows_ - 1, windows_);
}

std::int64_t Sampler::BatchTargets(std::int64_t step) const {
  return TargetsBefore(step + 1) - TargetsBefore(step);
}

std::int64_t Sampler::TargetsBefore(const Place& place) const {
  std::int64_t targets = place.epoch * EpochTargets() + place.window * options_.length;
  if (missing_ > 0 && place.window > 0 && ShortPosition(place.epoch) < place.window) {
    targets -= missing_;
  }
  return targets;
}

std::int64_t Sampler::TargetsBefore(std::int64_t step) const {
  return options_.origin.targets + TargetsBefore(PlaceOf(step)) - skipped_;
}

Sample Sampler::At(std::int64_t step, std::int64_t position) const {
  const Place place = PlaceOf(step);
  const std::int64_t k = place.window + position;
  const std::int64_t window =
      options_.shuffle ? Permute(options_.seed, place.epoch, k, windows_) : k;
  Sample sample;
  sample.ordinal = place.epoch * windows_ + k;
  sample.start = window * options_.stride;
  sample.targets = options_.length - (window == windows_ - 1 ? missing_ : 0);
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

Origin MoveOrigin(const Origin& origin, const Sampler::Options& from, const Sampler::Options& to) {
  Sampler::Options before = from, after = to;
  before.origin = origin;
  after.origin = {};
  const std::int64_t windows = Sampler(before).Windows(), windows_now = Sampler(after).Windows();
  after.origin = origin;
  const bool same =
      from.tokens == to.tokens && from.length == to.length && from.stride == to.stride;
  if (!same) {
    const Wide sample = Wide{origin.sample / windows} * windows_now +
                        Wide{origin.sample % windows} * windows_now / windows;
    after.origin.sample = static_cast<std::int64_t>(std::min(sample, Wide{kMostTargets}));
  }
  static_cast<void>(Sampler(after));  // refuses a position beyond all runs
  return after.origin;
}

}  // namespace trireme::data
