// Mixtures: how many windows each file gives to an epoch, and the order in which files take turns.
#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::data {

namespace {

__extension__ using Wide = __int128;  // a product of two 64-bit numbers

// Limit on one file's windows per epoch: far above any corpus, and low enough for sums below 2^63.
constexpr double kMostWindows = 0x1p50;

// Tolerance: a product such as 0.29 * 100 falls just below the whole number that it stands for.
constexpr double kRounding = 1e-9;

std::vector<std::int64_t> QuotasByEpochs(std::span<const Proportion> proportions,
                                         std::span<const std::int64_t> windows) {
  std::vector<std::int64_t> quotas;
  for (std::size_t i = 0; i < proportions.size(); ++i) {
    const double exact = proportions[i].epochs * static_cast<double>(windows[i]);
    if (exact > kMostWindows) {
      throw InputError(fmt::format("data.mixture: {:.15g} epochs of {} windows are too many",
                                   proportions[i].epochs, windows[i]));
    }
    const double nearest = std::round(exact);
    const bool whole = std::abs(exact - nearest) <= kRounding * std::max(1.0, exact);
    quotas.push_back(static_cast<std::int64_t>(whole ? nearest : std::floor(exact)));
  }
  return quotas;
}

std::vector<std::int64_t> QuotasByWeights(std::span<const Proportion> proportions,
                                          std::span<const std::int64_t> windows) {
  // Long double, so that weights scaled by a common factor give the same quotas.
  long double sum = 0;
  for (const Proportion& each : proportions) sum += each.weight;
  const std::int64_t all = std::accumulate(windows.begin(), windows.end(), std::int64_t{0});
  std::vector<std::int64_t> quotas;
  std::vector<long double> remainders;
  for (const Proportion& each : proportions) {
    const long double exact = each.weight / sum * static_cast<long double>(all);
    const long double nearest = std::round(exact);
    const bool whole = std::abs(exact - nearest) <= kRounding;
    quotas.push_back(static_cast<std::int64_t>(whole ? nearest : std::floor(exact)));
    remainders.push_back(whole ? 0 : exact - std::floor(exact));
  }
  std::vector<std::size_t> order(quotas.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  std::int64_t left = all - std::accumulate(quotas.begin(), quotas.end(), std::int64_t{0});
  for (std::size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++quotas[order[i]];
  // Too many windows can only come from rounding up in `whole`, by far less than one window each.
  for (std::size_t i = 0; left < 0; i = (i + 1) % order.size(), ++left) --quotas[order[i]];
  return quotas;
}

namespace fs = std::filesystem;

constexpr const char* kMixtureKey = "data.mixture";
constexpr const char* kForms =
    "Write data.mixture = books.h5:0.7, code.h5:0.3 (weights) or books.h5*2, code.h5*1 (epochs).";
// Upper limit of weights and epochs; the lower limit is 1 / kLargestNumber.
constexpr double kLargestNumber = 1e9;

MixtureFile ReadEntry(std::string_view entry, const deck::Deck& deck) {
  const std::string shown = deck::Shown(std::string(entry));
  const std::size_t mark = entry.find_last_of(":*");
  if (mark == std::string_view::npos) {
    throw deck.Complain(kMixtureKey,
                        fmt::format("'{}' has neither a weight nor a number of epochs", shown),
                        kForms);
  }
  MixtureFile file;
  file.path = std::string(deck::Trimmed(entry.substr(0, mark)));
  const std::string_view number = deck::Trimmed(entry.substr(mark + 1));
  if (file.path.empty()) {
    throw deck.Complain(kMixtureKey, fmt::format("'{}' names no file", shown), kForms);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool read = error == std::errc() && end == number.data() + number.size();
  if (!read || !(value >= 1 / kLargestNumber && value <= kLargestNumber)) {
    throw deck.Complain(
        kMixtureKey,
        fmt::format("'{}': {} expected, '{}' found", shown,
                    entry[mark] == ':' ? "a weight above 0" : "a number of epochs above 0",
                    deck::Shown(std::string(number))),
        kForms);
  }
  (entry[mark] == ':' ? file.proportion.weight : file.proportion.epochs) = value;
  return file;
}

}  // namespace

std::vector<std::int64_t> Quotas(std::span<const Proportion> proportions,
                                 std::span<const std::int64_t> windows) {
  const bool by_epochs = !proportions.empty() && proportions.front().epochs > 0;
  std::vector<std::int64_t> quotas =
      by_epochs ? QuotasByEpochs(proportions, windows) : QuotasByWeights(proportions, windows);
  for (std::size_t i = 0; i < quotas.size(); ++i) {
    if (quotas[i] > 0) continue;
    throw InputError(
        fmt::format("data.mixture: file {} of {} gives none of its {} windows to an epoch", i + 1,
                    quotas.size(), windows[i]),
        "Raise its number, or leave it out.");
  }
  return quotas;
}

Interleaving::Interleaving(std::span<const std::int64_t> quotas) : sums_(quotas.size() + 1, 0) {
  std::partial_sum(quotas.begin(), quotas.end(), sums_.begin() + 1);
}

// Halves the list of files down to one, and counts its windows among the first `position` (index).
// in_first(middle, takes_turn): whether to go on in the first half of the group, which ends before
// file `middle`. takes_turn: that half supplies the window at the position.
template <typename InFirst>
Interleaving::Turn Interleaving::Descend(std::int64_t position, InFirst in_first) const {
  std::size_t begin = 0, end = sums_.size() - 1;
  while (end - begin > 1) {
    const std::size_t middle = (begin + end) / 2;
    const Wide half = sums_[middle] - sums_[begin], all = sums_[end] - sums_[begin];
    const auto of_half = [&](std::int64_t windows) {  // rounded to the nearest
      return static_cast<std::int64_t>((2 * half * windows + all) / (2 * all));
    };
    const std::int64_t first = of_half(position);
    if (in_first(middle, of_half(position + 1) > first)) {
      position = first;
      end = middle;
    } else {
      position -= first;
      begin = middle;
    }
  }
  return {static_cast<int>(begin), position};
}

Interleaving::Turn Interleaving::At(std::int64_t position) const {
  return Descend(position, [](std::size_t, bool takes_turn) { return takes_turn; });
}

std::int64_t Interleaving::CountBefore(std::size_t source, std::int64_t position) const {
  return Descend(position, [&](std::size_t middle, bool) { return source < middle; }).index;
}

std::vector<MixtureFile> ReadMixture(const std::string& text, const deck::Deck& deck) {
  std::vector<MixtureFile> files;
  for (const std::string_view entry : DeckList(text, kMixtureKey, kForms, deck)) {
    files.push_back(ReadEntry(entry, deck));
  }
  if (files.size() > kMostMixtureFiles) {
    throw deck.Complain(kMixtureKey,
                        fmt::format("{} files are more than {}", files.size(), kMostMixtureFiles));
  }
  for (auto file = files.begin(); file != files.end(); ++file) {
    if ((file->proportion.epochs > 0) != (files.front().proportion.epochs > 0)) {
      throw deck.Complain(kMixtureKey, "weights (:) and numbers of epochs (*) in one list", kForms);
    }
    if (std::any_of(files.begin(), file,
                    [&](const auto& each) { return each.path == file->path; })) {
      throw deck.Complain(kMixtureKey, fmt::format("{} is there twice", deck::Shown(file->path)),
                          "Give each file once, with the sum of its numbers.");
    }
  }
  return files;
}

void CheckMixtureFiles(std::span<const MixtureFile> files, const deck::Deck& deck) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::error_code ignored;
    if (fs::status(files[i].path, ignored).type() == fs::file_type::not_found) {
      throw deck.Complain(kMixtureKey, fmt::format("{}: no such file", deck::Shown(files[i].path)),
                          "Check the path, or write the file with job.task = tokenize.");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!fs::equivalent(files[i].path, files[j].path, ignored) || ignored) continue;
      throw deck.Complain(kMixtureKey,
                          fmt::format("{} and {} are one file", deck::Shown(files[j].path),
                                      deck::Shown(files[i].path)),
                          "Give each file once, with the sum of its numbers.");
    }
  }
}

}  // namespace trireme::data
