// Sampler: windows, batches and shares as pure functions of the step number.
#include "trireme/data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "permutation.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

void Require(std::int64_t value, std::int64_t minimum, const char* name) {
  if (value < minimum) {
    throw InputError(
        fmt::format("sampler: {} is {}; it must be at least {}", name, value, minimum));
  }
}

std::int64_t CeilDivide(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

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
}

std::int64_t Sampler::Windows() const { return windows_; }

std::int64_t Sampler::StepsPerEpoch() const { return CeilDivide(windows_, options_.batch); }

std::int64_t Sampler::BatchSize(std::int64_t step) const {
  const std::int64_t first = step % StepsPerEpoch() * options_.batch;
  return std::min(options_.batch, windows_ - first);
}

std::int64_t Sampler::EpochTargets() const { return windows_ * options_.length - missing_; }

std::int64_t Sampler::ShortPosition(std::int64_t epoch) const {
  if (!options_.shuffle) return windows_ - 1;
  return PermuteBack(options_.seed, epoch, windows_ - 1, windows_);
}

std::int64_t Sampler::BatchTargets(std::int64_t step) const {
  return TargetsBefore(step + 1) - TargetsBefore(step);
}

std::int64_t Sampler::TargetsBefore(std::int64_t step) const {
  const std::int64_t epoch = step / StepsPerEpoch();
  const std::int64_t windows = step % StepsPerEpoch() * options_.batch;  // of this epoch, before
  std::int64_t targets = epoch * EpochTargets() + windows * options_.length;
  if (missing_ > 0 && windows > 0 && ShortPosition(epoch) < windows) targets -= missing_;
  return targets;
}

Sample Sampler::At(std::int64_t step, std::int64_t position) const {
  const std::int64_t epoch = step / StepsPerEpoch();
  const std::int64_t k = step % StepsPerEpoch() * options_.batch + position;
  const std::int64_t window = options_.shuffle ? Permute(options_.seed, epoch, k, windows_) : k;
  Sample sample;
  sample.ordinal = epoch * windows_ + k;
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

}  // namespace trireme::data
