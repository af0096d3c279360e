// Splits word-level text into lines and words (tokens separated by blanks, as in WikiText).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

inline constexpr std::string_view kEndOfSentence = "<eos>";  // ends every line
inline constexpr std::string_view kUnknown = "<unk>";

// Calls body(std::string_view) for each line, without its end ("\n" or "\r\n"). Text after the last
// line end counts as a line.
template <typename Body>
void ForEachLine(std::string_view text, Body&& body) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    body(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

// Calls body(std::string_view) for each token of a line; blanks are spaces and tabs.
template <typename Body>
void ForEachWord(std::string_view line, Body&& body) {
  constexpr std::string_view kBlanks = " \t";
  std::size_t begin = line.find_first_not_of(kBlanks);
  while (begin != std::string_view::npos) {
    const std::size_t end = line.find_first_of(kBlanks, begin);
    body(line.substr(begin, end == std::string_view::npos ? end : end - begin));
    begin = line.find_first_not_of(kBlanks, end);
  }
}

// The words of a map from words to counts, by descending count; equal counts by bytes.
template <typename Counts>
std::vector<std::string> ByCount(const Counts& counts) {
  std::vector<std::pair<std::int64_t, std::string_view>> order;
  for (const auto& [word, count] : counts) order.emplace_back(-count, word);
  std::ranges::sort(order);
  std::vector<std::string> words;
  for (const auto& [count, word] : order) words.emplace_back(word);
  return words;
}

}  // namespace trireme::data
