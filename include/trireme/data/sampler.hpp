// The order of training samples: a pure function of the step number (numerical rule 1) that stores
// no permutation.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::data {

// A file's share of a mixture. One of the two is above 0, the same one in all files of the mixture.
struct Proportion {
  double weight = 0;  // share of an epoch's windows, relative to the sum of all weights
  double epochs = 0;  // how often each of its windows is used in an epoch of the mixture
  friend bool operator==(const Proportion&, const Proportion&) = default;
};

// Upper limit of the files in a mixture: one record of metrics.jsonl names them all.
inline constexpr std::size_t kMostMixtureFiles = 100;

// A file of data.mixture.
struct MixtureFile {
  std::string path;
  Proportion proportion;
};

// Splits `text`, the value of `key`, into trimmed entries, which point into `text`. Throws
// InputError with the deck's line for an empty entry; forms: the message's hint about the syntax.
std::vector<std::string_view> DeckList(std::string_view text, const char* key, const char* forms,
                                       const deck::Deck& deck);

// Parses `text`, the value of data.mixture; keeps its order. Throws InputError with the deck's line
// for an entry without number or path, a number that is not positive and finite, a list with both
// weights and epochs, and a path that occurs twice.
std::vector<MixtureFile> ReadMixture(const std::string& text, const deck::Deck& deck);

// Throws InputError with the deck's line if a file is missing or two paths name the same file.
// Serial.
void CheckMixtureFiles(std::span<const MixtureFile> files, const deck::Deck& deck);

// Windows that each file contributes to an epoch of the mixture. windows: how many each file has,
// >= 1. By weights: an epoch has as many windows as all files together, divided in proportion by
// the largest-remainder method. By epochs: a file contributes floor(epochs * windows). Throws
// InputError for a file that would contribute none.
std::vector<std::int64_t> Quotas(std::span<const Proportion> proportions,
                                 std::span<const std::int64_t> windows);

// The order in which a mixture's files take turns within an epoch. The list of files is halved
// recursively down to single files; of the first p windows of a group, its first half supplies
// round(p * quota of the half / quota of the group). So counts are exact over an epoch, and at any
// point a file is within ceil(log2(files)) / 2 windows of its share.
class Interleaving {
 public:
  // quotas: windows of each file per epoch, >= 1 each.
  explicit Interleaving(std::span<const std::int64_t> quotas);

  std::int64_t Windows() const { return sums_.back(); }  // per epoch
  struct Turn {
    int source = 0;          // index of the file
    std::int64_t index = 0;  // how many windows of that file came earlier in the epoch
  };
  Turn At(std::int64_t position) const;  // 0 <= position < Windows()
  // Windows of a file among the first `position` windows of an epoch, 0 <= position <= Windows().
  std::int64_t CountBefore(std::size_t source, std::int64_t position) const;

 private:
  template <typename InFirst>
  Turn Descend(std::int64_t position, InFirst in_first) const;

  std::vector<std::int64_t> sums_;  // sums_[i]: sum of the quotas of files 0 to i - 1
};

// Maps `index` by a bijection of [0, count) that depends on (seed, epoch): a balanced Feistel
// network of Philox rounds on the next even power of two, repeated until the result is below
// `count` (cycle walking: Black and Rogaway, CT-RSA 2002).
std::int64_t Permute(std::uint32_t seed, std::int64_t epoch, std::int64_t index,
                     std::int64_t count);

// Inverse of Permute: the index that it maps to `image`.
std::int64_t PermuteBack(std::uint32_t seed, std::int64_t epoch, std::int64_t image,
                         std::int64_t count);

// One window of the token array: inputs are tokens [start, start + targets), targets the same range
// shifted by one.
struct Sample {
  // Samples before this one since the start of training: epoch * windows + k.
  std::int64_t ordinal = 0;
  std::int64_t start = 0;    // offset of the first input token
  std::int64_t targets = 0;  // number of targets: the window length, or fewer in the last window
  int source = 0;            // index in data.mixture of its file
};

// One file of a mixture, as the sampler sees it.
struct Source {
  std::int64_t tokens = 0;  // in the split (>= 2)
  Proportion proportion;
  friend bool operator==(const Source&, const Source&) = default;
};

// How far a file has been used since the start of training. The next window taken from it is window
// k of its epoch e, in the file's own order, where windows = e * (windows of the file) + k.
struct SourcePlace {
  std::int64_t windows = 0;
  std::int64_t targets = 0;  // without padding
  friend bool operator==(const SourcePlace&, const SourcePlace&) = default;
};

// Where in the data a step begins. When the windows, the batch or the mixture change, counting
// starts anew from here. The default is the start of training.
struct Origin {
  std::int64_t step = 0;     // step number; Sampler functions refuse earlier steps
  std::int64_t sample = 0;   // samples before it since the start of training, in this run's windows
  std::int64_t targets = 0;  // targets before it, over all ranks
  // By file. Empty: the places that a run with this mixture throughout would have at `sample`.
  std::vector<SourcePlace> sources = {};
};

// A batch that grows from the start of training (Smith et al. 2018; Brown et al. 2020). With B
// windows in a whole batch, step t = 0, 1, ... takes start + floor((B - start) t / steps) of them,
// and B from t = steps on.
struct BatchRamp {
  std::int64_t steps = 0;  // 0: every batch is whole
  std::int64_t start = 1;  // windows of step 0; more than B count as B
  friend bool operator==(const BatchRamp&, const BatchRamp&) = default;
};
inline constexpr std::int64_t kMostRampSteps = 1'000'000;

class Sampler {
 public:
  struct Options {
    std::int64_t tokens = 0;  // in the split (>= 2)
    std::int64_t length = 0;  // T, targets per window
    // S >= 1, tokens from the start of one window to the start of the next
    std::int64_t stride = 0;
    std::int64_t batch = 0;  // windows per step, over all ranks
    std::uint32_t seed = 0;
    bool shuffle = true;  // false: windows in order (validation)
    Origin origin = {};   // where the steps begin
    // Files of a mixture, instead of `tokens`; empty: a single file.
    std::vector<Source> sources = {};
    BatchRamp ramp = {};
  };
  // Throws InputError for options out of range, naming the deck's key or the field of the origin.
  explicit Sampler(const Options& options);
  // A sampler with the same options but another origin.
  Sampler From(const Origin& origin) const;

  // Windows per epoch: ceil(max(N - T, 0) / S) + 1 with N = tokens - 1, limited to ceil(N / S) so
  // that every window begins within the split. The last window may be short. With S < T windows
  // overlap and repeat targets; with S > T the targets between windows are skipped. In a mixture:
  // the sum of the files' quotas (data::Quotas).
  std::int64_t Windows() const;
  std::int64_t SourceCount() const { return std::ssize(sources_); }  // 1 without a mixture
  std::int64_t WindowsOf(std::int64_t source) const;                 // that the file has
  std::int64_t QuotaOf(std::int64_t source) const;  // its windows per epoch of the mixture
  std::int64_t StepsPerEpoch() const;               // ceil(windows / batch), in whole batches
  std::int64_t MostWindows() const;  // per step: the batch, or fewer if an epoch has fewer
  // Number of the step at which a run of `epochs` (> 0) ends, at least 1: round(epochs *
  // StepsPerEpoch()) for a run without changes. After a change, or with a ramp, the run ends at the
  // same place in the data: for a fraction of an epoch, at the first step that reaches it. If that
  // place lies before the origin, the origin's step.
  std::int64_t StepsOf(double epochs) const;

  // The following take a step number, at least the origin's, and throw std::logic_error below it.
  // Their cost is O(1) in everything but the number of files, and logarithmic in a ramp's sizes.
  std::int64_t BatchSize(std::int64_t step) const;  // windows; an epoch's last batch may be short
  std::int64_t BatchTargets(std::int64_t step) const;  // over all ranks, without padding
  // Samples before this step's first one, since the start of training.
  std::int64_t NextSample(std::int64_t step) const;
  // Targets in all steps before this one, over all epochs and ranks: the origin's and those after
  // it.
  std::int64_t TargetsBefore(std::int64_t step) const;
  // How far each file has been used before this step.
  std::vector<SourcePlace> Places(std::int64_t step) const;
  // Epochs completed before this step: step / StepsPerEpoch() if a run without changes would be at
  // the same place; otherwise the whole epochs plus the fraction of windows used.
  double Epochs(std::int64_t step) const;
  // The sample at one position of the step's batch, 0 <= position < BatchSize(step).
  Sample At(std::int64_t step, std::int64_t position) const;
  // Samples of rank `rank` = d of `ranks` = D: positions floor(d B / D) to floor((d + 1) B / D) - 1
  // with B = BatchSize(step).
  std::vector<Sample> Share(std::int64_t step, int rank, int ranks) const;
  // Replaces `samples` by positions [share.begin, share.end) of the step's batch, clipped to it.
  void Fill(std::int64_t step, const Part& share, std::vector<Sample>& samples) const;

 private:
  // A window's place in the order of training.
  struct Place {
    std::int64_t epoch = 0;
    std::int64_t window = 0;  // index within the epoch
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  // Steps whose batches have the same size, but for those that end an epoch.
  struct Stretch {
    std::int64_t step = 0;   // the first
    std::int64_t batch = 0;  // windows per step
    Place start;             // place of the first step
  };
  // How a file is cut into windows.
  struct Windowed {
    std::int64_t windows = 0;
    std::int64_t missing = 0;  // targets missing from its last window; 0: that window is full
    std::int64_t quota = 0;    // its windows per epoch
    // Windows used since the start of training, minus those that a run with this mixture throughout
    // would have used.
    std::int64_t shift = 0;
  };
  Windowed Cut(std::int64_t tokens) const;
  const Stretch& StretchOf(std::int64_t step) const;  // the one to which the step belongs
  // Steps from the stretch's first one to the end of its epoch.
  std::int64_t StepsToEpochEnd(const Stretch& stretch) const;
  Place After(const Stretch& stretch, std::int64_t steps) const;  // its place that many steps on
  Place PlaceOf(std::int64_t step) const;  // place of the step's first window
  // A file's windows before a place, in a run with this mixture throughout.
  std::int64_t CountBefore(std::size_t source, const Place& place) const;
  SourcePlace PlaceOf(std::size_t source, const Place& place) const;
  // Targets in a file's first `windows` windows, over all its epochs.
  std::int64_t TargetsOf(const Windowed& source, std::int64_t windows) const;
  // Position of the one short window in the file's order of windows in that epoch.
  std::int64_t ShortPosition(const Windowed& source, std::int64_t epoch) const;
  void CheckOrigin() const;
  void SetOut();  // initialises everything that follows from the origin
  void LayStretches();

  Options options_;
  std::vector<Windowed> sources_;     // at least one
  Interleaving order_;                // the files' turns in an epoch
  std::int64_t windows_ = 0;          // per epoch
  std::vector<Stretch> stretches_;    // from the origin on, by step; one without a ramp
  std::vector<SourcePlace> reached_;  // by file: its use at the origin
};

// Converts `origin`, a position in a run with options `from`, to the origin of a run with options
// `to` that continues there; the origins within the options are ignored. If the windows (tokens,
// length, stride, mixture) are unchanged, the sample number is kept: each window of the epoch is
// still used once, whatever the batch (with another seed some repeat and some are skipped). If they
// changed, the new run starts in the same epoch at the same fraction of its windows, rounded down:
// the rest of that epoch repeats some targets and skips others; later epochs are whole. Each file
// of a mixture continues at its own place, or at the same fraction if its windows changed. from_of:
// for each file of `to` its index in `from`, -1 for a new file, which starts at its beginning;
// empty: the files are unchanged. Throws InputError as Sampler does.
Origin MoveOrigin(const Origin& origin, const Sampler::Options& from, const Sampler::Options& to,
                  const std::vector<int>& from_of = {});

}  // namespace trireme::data
