// A mixture of token files: how many windows of each make up an epoch, and in which order they
// follow one another, as pure functions without tables.
#ifndef TRIREME_DATA_MIXTURE_HPP_
#define TRIREME_DATA_MIXTURE_HPP_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::data {

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

// "books.h5:0.7" or "books.h5*2", as in the deck.
std::string Describe(const MixtureFile& file);

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

}  // namespace trireme::data

#endif  // TRIREME_DATA_MIXTURE_HPP_
