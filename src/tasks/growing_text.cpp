// GrowingText: the text is decoded from the prompt on, since a word's form may depend on the one
// before it.
#include "growing_text.hpp"

#include <algorithm>
#include <utility>

namespace trireme::tasks {

std::size_t WholeCharacters(const std::string& text) {
  constexpr std::size_t kLongest = 4;  // bytes of a character
  for (std::size_t back = 1; back <= std::min(kLongest, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // not its first byte
    const std::size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

namespace {

// Bytes at the end of `text` that may become a stop string.
std::size_t MaybeStop(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t most = 0;
  for (const std::string& stop : stops) {
    for (std::size_t part = std::min(stop.size() - 1, text.size()); part > most; --part) {
      if (text.compare(text.size() - part, part, stop, 0, part) == 0) most = part;
    }
  }
  return most;
}

}  // namespace

GrowingText::GrowingText(const data::TokenFile& tokens, std::vector<std::int32_t> before,
                         const std::vector<std::string>& stops)
    : tokens_(tokens),
      ids_(std::move(before)),
      stops_(stops),
      prompt_bytes_(tokens.Decode(ids_).size()) {}

bool GrowingText::Add(std::span<const std::int32_t> tokens) {
  ids_.insert(ids_.end(), tokens.begin(), tokens.end());
  const std::string all = tokens_.Decode(ids_);
  text_ = all.substr(std::min(prompt_bytes_, all.size()));
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, text_.find(stop));
  if (end == std::string::npos) return false;
  text_.resize(end);
  return true;
}

std::string GrowingText::Take(bool end) {
  std::size_t upto = text_.size();
  if (!end) upto = std::min(WholeCharacters(text_), upto - MaybeStop(text_, stops_));
  if (upto <= taken_) return {};
  const std::string piece = text_.substr(taken_, upto - taken_);
  taken_ = upto;
  return piece;
}

}  // namespace trireme::tasks
