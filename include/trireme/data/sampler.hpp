// The order of training samples as a pure function of the step number (numerical rule 1), without a
// stored permutation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::data {

// A mixture of token files: how many windows of each make up an epoch, and in which order they
// follow one another, as pure functions without tables.

// Share of a file in a mixture: one of both is above 0, the same one for all files of a mixture.
struct Proportion {
  double weight = 0;  // of the windows of an epoch, in proportion to the sum of all weights
  double epochs = 0;  // uses of each of its windows in an epoch of the mixture
  friend bool operator==(const Proportion&, const Proportion&) = default;
};

// Files that a mixture can have: a record of metrics.jsonl names them all.
inline constexpr std::size_t kMostMixtureFiles = 100;

// A file of data.mixture.
struct MixtureFile {
  std::string path;
  Proportion proportion;
};

// Entries of the value `text` of `key`, trimmed, which point into it. Throws InputError with the
// deck's line and the hint `forms` for an empty entry.
std::vector<std::string_view> DeckList(std::string_view text, const char* key, const char* forms,
                                       const deck::Deck& deck);

// The files of data.mixture, whose value is `text`, in the order of the deck. Throws InputError
// with the deck's line for an entry without a number or a path, a number that is not positive and
// finite, both forms in one list, and a path that is there twice.
std::vector<MixtureFile> ReadMixture(const std::string& text, const deck::Deck& deck);

// Throws InputError with the deck's line for a file that is not there and for two paths of one
// file. Serial.
void CheckMixtureFiles(std::span<const MixtureFile> files, const deck::Deck& deck);

// Windows of each file in an epoch of the mixture; windows: of each file, >= 1. By weights, an
// epoch has as many windows as all files together hold, shared out in proportion by largest
// remainders; by epochs, each file gives floor(epochs * windows). Throws InputError for a file that
// would give none.
std::vector<std::int64_t> Quotas(std::span<const Proportion> proportions,
                                 std::span<const std::int64_t> windows);

// Order of the files' windows within an epoch of a mixture. The files are halved into two groups by
// place, and again, down to single files: of the first p windows that a group gives, its first half
// gives round(p * its quota / the group's). Counts are therefore exact over an epoch, and before
// any window within ceil(log2(files)) / 2 of the file's share.
class Interleaving {
 public:
  // quotas: windows of each file in an epoch, >= 1 each.
  explicit Interleaving(std::span<const std::int64_t> quotas);

  std::int64_t Windows() const { return sums_.back(); }  // of an epoch
  struct Turn {
    int source = 0;          // place of the file
    std::int64_t index = 0;  // windows of that file in the epoch before this one
  };
  Turn At(std::int64_t position) const;  // 0 <= position < Windows()
  // Windows of a file among the first `position` of an epoch, 0 <= position <= Windows().
  std::int64_t CountBefore(std::size_t source, std::int64_t position) const;

 private:
  // Windows of the first half of [begin, end) among the first `position` of that group.
  std::int64_t OfFirstHalf(std::size_t begin, std::size_t end, std::int64_t position) const;

  std::vector<std::int64_t> sums_;  // sums_[i]: quotas of the files before place i
};

// Image of `index` under a bijection of [0, count) keyed by (seed, epoch): a balanced Feistel
// network of Philox rounds on the next even power of two, walked until it falls inside (Black and
// Rogaway, CT-RSA 2002).
std::int64_t Permute(std::uint32_t seed, std::int64_t epoch, std::int64_t index,
                     std::int64_t count);

// The index that Permute takes to `image`.
std::int64_t PermuteBack(std::uint32_t seed, std::int64_t epoch, std::int64_t image,
                         std::int64_t count);

// One window of the token array: inputs tokens[start, start + targets), targets shifted by one.
struct Sample {
  std::int64_t ordinal = 0;  // samples before it since the start of training: epoch * windows + k
  std::int64_t start = 0;    // offset of the first input token
  std::int64_t targets = 0;  // valid ones: the length, or fewer in the last window
  int source = 0;            // place in data.mixture of the file that it comes from
};

// A file of a mixture as the sampler sees it.
struct Source {
  std::int64_t tokens = 0;  // of the split (>= 2)
  Proportion proportion;
  friend bool operator==(const Source&, const Source&) = default;
};

// Use of a file so far, since the start of training. Its next window is the one with this number in
// the file's own order: window k of its epoch e, windows = e * (windows of the file) + k.
struct SourcePlace {
  std::int64_t windows = 0;
  std::int64_t targets = 0;  // valid ones
  friend bool operator==(const SourcePlace&, const SourcePlace&) = default;
};

// Position in the data at which a step begins. After a change of the windows, of the batch or of
// the mixture, steps from `step` on are counted from here; the default is the start of training.
struct Origin {
  std::int64_t step = 0;    // number of the step; earlier steps cannot be asked for
  std::int64_t sample = 0;  // samples before it since the start of training, in windows of this run
  std::int64_t targets = 0;  // valid targets seen before it, over all ranks
  // Of each file; empty: as a run of this mixture alone has them at `sample`.
  std::vector<SourcePlace> sources = {};
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
    Origin origin = {};   // of the steps
    // The files of a mixture, which take the place of `tokens`; empty: one file.
    std::vector<Source> sources = {};
  };
  // Throws InputError naming the deck's key, or the origin's number, for options out of range.
  explicit Sampler(const Options& options);
  // The same windows and batch, from another position on.
  Sampler From(const Origin& origin) const;

  // Windows per epoch: ceil(max(N - T, 0) / S) + 1 with N = tokens - 1, but at most ceil(N / S): no
  // window begins after the end. The last one is short if it must be. With S < T windows overlap
  // and repeat targets; with S > T targets between windows are skipped. Of a mixture: the sum of
  // its files' quotas (data::Quotas).
  std::int64_t Windows() const;
  std::int64_t SourceCount() const { return std::ssize(sources_); }  // files; 1 without a mixture
  std::int64_t WindowsOf(std::int64_t source) const;                 // of the file itself
  std::int64_t QuotaOf(std::int64_t source) const;  // windows of it in an epoch of the mixture
  std::int64_t StepsPerEpoch() const;               // of a whole epoch: ceil(windows / batch)
  std::int64_t MostWindows() const;                 // of a step: the batch, or a whole epoch
  // Steps of a run of `epochs` (> 0) from its first step to its last, at least one: round(epochs *
  // StepsPerEpoch()) of a run that never changed. After a change the run ends at the same place of
  // the data (of a part of an epoch, at the first step that reaches it); where that lies before the
  // origin, at the origin's step.
  std::int64_t StepsOf(double epochs) const;

  // Functions of a step number, not below the origin's: O(1) in all but the number of files. Throw
  // std::logic_error below it.
  std::int64_t BatchSize(std::int64_t step) const;     // windows; an epoch's last batch is short
  std::int64_t BatchTargets(std::int64_t step) const;  // valid targets over all ranks
  // Samples before the step's first, since the start of training.
  std::int64_t NextSample(std::int64_t step) const;
  // Targets of all steps before this one, over all epochs and ranks: the origin's and those since.
  std::int64_t TargetsBefore(std::int64_t step) const;
  // Use of each file before the step.
  std::vector<SourcePlace> Places(std::int64_t step) const;
  // Epochs completed before the step: step / StepsPerEpoch() where a run that never changed would
  // be at the same place, else whole epochs and the fraction of the windows.
  double Epochs(std::int64_t step) const;
  // The sample at a position of the step's batch, 0 <= position < BatchSize(step).
  Sample At(std::int64_t step, std::int64_t position) const;
  // The share of rank d of D: positions floor(d B / D) to floor((d + 1) B / D), B =
  // BatchSize(step).
  std::vector<Sample> Share(std::int64_t step, int rank, int ranks) const;
  // Replaces `samples` with the positions [share.begin, share.end) of the step's batch, as far as
  // the batch has them.
  void Fill(std::int64_t step, const Part& share, std::vector<Sample>& samples) const;

 private:
  // Place of a window in the order of training.
  struct Place {
    std::int64_t epoch = 0;
    std::int64_t window = 0;  // windows of the epoch before it
  };
  // Windows of a file.
  struct Windowed {
    std::int64_t windows = 0;
    std::int64_t missing = 0;  // targets that its last window lacks; 0 when it is whole
    std::int64_t quota = 0;    // windows of it in an epoch
    // Windows used since the start of training, less those of a run of this mixture alone.
    std::int64_t shift = 0;
  };
  Windowed Cut(std::int64_t tokens) const;
  Place PlaceOf(std::int64_t step) const;  // of the step's first window
  // Windows of a file before a place, in a run of this mixture alone.
  std::int64_t CountBefore(std::size_t source, const Place& place) const;
  SourcePlace PlaceOf(std::size_t source, const Place& place) const;
  // Targets of a file's first `windows` windows, over all its epochs.
  std::int64_t TargetsOf(const Windowed& source, std::int64_t windows) const;
  // Position of the only short window of the file's epoch in its order of windows.
  std::int64_t ShortPosition(const Windowed& source, std::int64_t epoch) const;
  void CheckOrigin() const;
  void SetOut();  // from the origin

  Options options_;
  std::vector<Windowed> sources_;     // at least one
  Interleaving order_;                // of their windows in an epoch
  std::int64_t windows_ = 0;          // of an epoch
  Place start_;                       // of the origin
  std::int64_t rest_ = 0;             // steps from the origin to the end of its epoch
  std::vector<SourcePlace> reached_;  // by each file, at the origin
};

// The origin of a run with options `to` that takes over at `origin`, a position of a run with
// options `from`; the options' own origins are not read. With the same windows (tokens, length,
// stride, mixture) the sample is kept: every window of the epoch is still used once, whatever the
// batch, in an order that the seed decides (another seed repeats some and skips others). With other
// windows the same epoch begins anew at the same fraction of its windows, rounded down: the rest of
// that epoch then repeats some targets and skips others, and later epochs are whole. Each file of a
// mixture goes on at its own place, at the same fraction of its own windows if they are others.
// from_of: for each file of `to` its place in `from`, -1 for a new one, which starts at its
// beginning; empty: the files are the same ones. Throws InputError as Sampler does.
Origin MoveOrigin(const Origin& origin, const Sampler::Options& from, const Sampler::Options& to,
                  const std::vector<int>& from_of = {});

}  // namespace trireme::data
