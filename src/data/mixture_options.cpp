// Mixture: reading data.mixture, and a look at its files.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>

#include "deck_list.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/mixture.hpp"
#include "trireme/deck/list.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::data {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMixtureKey = "data.mixture";
constexpr const char* kForms =
    "Write data.mixture = books.h5:0.7, code.h5:0.3 (weights) or books.h5*2, code.h5*1 (epochs).";
constexpr double kLargestNumber = 1e9;  // of weights and epochs; 1 / kLargestNumber the smallest

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

std::string Describe(const MixtureFile& file) {
  const Proportion& proportion = file.proportion;
  return proportion.epochs > 0 ? fmt::format("{}*{}", file.path, proportion.epochs)
                               : fmt::format("{}:{}", file.path, proportion.weight);
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
