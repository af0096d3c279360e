// The order of training samples as a pure function of the step number (numerical rule 1), without a
// stored permutation.
#ifndef TRIREME_DATA_SAMPLER_HPP_
#define TRIREME_DATA_SAMPLER_HPP_

#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"

namespace trireme::data {

// Image of `index` under a bijection of [0, count) keyed by (seed, epoch): a balanced Feistel
// network of Philox rounds on the next even power of two, walked until it falls inside (Black and
// Rogaway, CT-RSA 2002).
std::int64_t Permute(std::uint32_t seed, std::int64_t epoch, std::int64_t index,
                     std::int64_t count);

// One window of the token array: inputs tokens[start, start + targets), targets shifted by one.
struct Sample {
  std::int64_t ordinal = 0;  // samples before it since the start of training: epoch * windows + k
  std::int64_t start = 0;    // offset of the first input token
  std::int64_t targets = 0;  // valid ones: the length, or fewer in the last window
};

class Sampler {
 public:
  struct Options {
    std::int64_t tokens = 0;  // tokens of the split (>= 2)
    std::int64_t length = 0;  // T, targets per window
    std::int64_t stride = 0;  // S >= 1, tokens between the beginnings of neighbouring windows
    std::int64_t batch = 0;   // windows per step, over all ranks
    std::uint32_t seed = 0;
    bool shuffle = true;  // false: windows in order (validation)
  };
  // Throws InputError naming the deck's key for options out of range.
  explicit Sampler(const Options& options);

  // Windows per epoch: ceil(max(N - T, 0) / S) + 1 with N = tokens - 1, but at most ceil(N / S): no
  // window begins after the end. The last one is short if it must be. With S < T windows overlap
  // and repeat targets; with S > T targets between windows are skipped.
  std::int64_t Windows() const;
  std::int64_t StepsPerEpoch() const;                  // ceil(windows / batch)
  std::int64_t BatchSize(std::int64_t step) const;     // windows; an epoch's last batch is short
  std::int64_t BatchTargets(std::int64_t step) const;  // valid targets over all ranks: O(1)
  // Targets of steps [0, step), over all epochs and ranks: O(1).
  std::int64_t TargetsBefore(std::int64_t step) const;
  // The sample at a position of the step's batch, 0 <= position < BatchSize(step).
  Sample At(std::int64_t step, std::int64_t position) const;
  // The share of rank d of D: positions floor(d B / D) to floor((d + 1) B / D), B =
  // BatchSize(step).
  std::vector<Sample> Share(std::int64_t step, int rank, int ranks) const;
  // Replaces `samples` with the positions [share.begin, share.end) of the step's batch, as far as
  // the batch has them.
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
