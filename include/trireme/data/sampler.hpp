// The order of training samples as a pure function (numerical rule 1): no stored permutation, no
// state but the step number.
#ifndef TRIREME_DATA_SAMPLER_HPP_
#define TRIREME_DATA_SAMPLER_HPP_

#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"

namespace trireme::data {

// Bijection of [0, count) keyed by (seed, epoch): a balanced Feistel network of Philox rounds on
// the next even power of two, walked until it falls inside (Black and Rogaway, CT-RSA 2002).
std::int64_t Permute(std::uint32_t seed, std::int64_t epoch, std::int64_t index,
                     std::int64_t count);

// One window of the token array: inputs tokens[start, start + targets), targets shifted by one.
struct Sample {
  std::int64_t ordinal =
      0;                   // number of the sample since the start of training: epoch * windows + k
  std::int64_t start = 0;  // first input token
  std::int64_t targets = 0;  // valid targets: the length, or less for the last window
};

class Sampler {
 public:
  struct Options {
    std::int64_t tokens = 0;  // tokens of the split (>= 2)
    std::int64_t length = 0;  // T, targets a window
    std::int64_t stride = 0;  // S, 1 <= S
    std::int64_t batch = 0;   // windows a step, global
    std::uint32_t seed = 0;
    bool shuffle = true;  // false: windows in order (validation)
  };
  // Throws InputError naming the deck's key for options out of range.
  explicit Sampler(const Options& options);

  // ceil(max(N - T, 0) / S) + 1 windows with N = tokens - 1; the last is short if it must be. With
  // S < T overlapping windows repeat targets; with S > T targets between windows are skipped, and a
  // last window that would begin behind the end is none: never more than ceil(N / S).
  std::int64_t Windows() const;
  std::int64_t StepsPerEpoch() const;                  // ceil(windows / batch)
  std::int64_t BatchSize(std::int64_t step) const;     // windows of this step (last of epoch short)
  std::int64_t BatchTargets(std::int64_t step) const;  // valid targets of this step, globally: O(1)
  // Targets consumed by steps [0, step), over all epochs: O(1).
  std::int64_t TargetsBefore(std::int64_t step) const;
  Sample At(std::int64_t step, std::int64_t position) const;  // 0 <= position < BatchSize(step)
  // Positions floor(d B / D) to floor((d + 1) B / D) of the step's batch, B = BatchSize(step).
  std::vector<Sample> Share(std::int64_t step, int rank, int ranks) const;
  // Those of positions [share.begin, share.end) that the step's batch has, instead of what was in
  // `samples`.
  void Fill(std::int64_t step, const Part& share, std::vector<Sample>& samples) const;

 private:
  std::int64_t EpochTargets() const;  // valid targets of one epoch
  // Position of the epoch's only short window in its order of windows.
  std::int64_t ShortPosition(std::int64_t epoch) const;

  Options options_;
  std::int64_t windows_ = 0;
  std::int64_t missing_ = 0;  // targets that the last window lacks; 0 when it is whole
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_SAMPLER_HPP_
