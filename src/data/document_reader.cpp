// Interpolation between the places that are known, which every read adds to.
#include "document_reader.hpp"

#include <algorithm>

#include "element_checks.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::data {

DocumentReader::DocumentReader(const TokenLayout& layout, const PositionedFile& file, Split split)
    : layout_(layout),
      file_(file),
      split_(split),
      documents_(layout.Of(split, Array::kDocuments).count),
      tokens_(layout.Tokens(split)),
      buffer_(static_cast<std::size_t>(kBlock + 1)) {
  known_.reserve(static_cast<std::size_t>(kMostKnown));
}

void DocumentReader::Find(std::int64_t begin, std::int64_t end, std::vector<std::int64_t>& found) {
  for (std::int64_t at = FirstFrom(begin); at < documents_; ++at) {
    if (!Holds(at)) Hold(at, std::min(at + kBlock, documents_));
    if (Held(at) >= end) return;
    found.push_back(Held(at) - begin);
  }
}

std::int64_t DocumentReader::FirstFrom(std::int64_t token) {
  const auto within = [&](std::int64_t least, std::int64_t last) {
    return held_end_ > held_begin_ && (held_begin_ == least || Held(held_begin_) < token) &&
           (held_end_ == last || Held(held_end_ - 1) >= token);
  };
  if (within(0, documents_)) return FirstHeldFrom(token);
  Place low{-1, -1}, high{documents_, tokens_};
  const auto next = std::ranges::lower_bound(known_, token, {}, &Place::token);
  if (next != known_.end()) high = *next;
  if (next != known_.begin()) low = *std::prev(next);
  // Halving now and then bounds the reads whatever the documents' lengths.
  constexpr int kEvery = 3;
  for (int read = 1; high.at - low.at > 1; ++read) {
    HoldBetween(low, high, token, read % kEvery == 0);
    if (within(low.at + 1, high.at)) return FirstHeldFrom(token);
    if (Held(held_begin_) >= token) {
      high = {held_begin_, Held(held_begin_)};
    } else {
      low = {held_end_ - 1, Held(held_end_ - 1)};
    }
  }
  return high.at;
}

std::int64_t DocumentReader::FirstHeldFrom(std::int64_t token) const {
  const auto first = buffer_.begin() + 1;
  const auto last = first + static_cast<std::ptrdiff_t>(held_end_ - held_begin_);
  return held_begin_ + (std::lower_bound(first, last, token) - first);
}

void DocumentReader::HoldBetween(const Place& low, const Place& high, std::int64_t token,
                                 bool halve) {
  const double part =
      halve ? 0.5
            : static_cast<double>(token - low.token) / static_cast<double>(high.token - low.token);
  const auto guess =
      low.at + static_cast<std::int64_t>(part * static_cast<double>(high.at - low.at));
  // More after the place than before it: the window's documents follow.
  const std::int64_t first = low.at + 1, last = std::max(first, high.at - kBlock);
  const std::int64_t begin = std::clamp(guess - kBlock / 4, first, last);
  Hold(begin, std::min(begin + kBlock, high.at));
  // Blocks that ascend by themselves may contradict each other.
  const Place front{held_begin_, Held(held_begin_)}, back{held_end_ - 1, Held(held_end_ - 1)};
  if (front.token <= low.token || back.token >= high.token) {
    const Place& bad = front.token <= low.token ? front : back;
    held_end_ = held_begin_;
    file_.RequireUnchanged();
    throw RunError(BadElement(file_.Path(), layout_, split_, Array::kDocuments,
                              {bad.at, static_cast<std::uint64_t>(bad.token)})
                       .what());
  }
}

void DocumentReader::Hold(std::int64_t begin, std::int64_t end) {
  held_begin_ = held_end_ = begin;
  const std::int64_t before = std::min<std::int64_t>(begin, 1);
  file_.Read(layout_, split_, Array::kDocuments, begin - before, end,
             buffer_.data() + (1 - before));
  file_.RequireGood(layout_, split_, Array::kDocuments,
                    {buffer_.data() + 1, begin, end, static_cast<std::uint64_t>(buffer_.front())});
  held_end_ = end;
  Know({begin, Held(begin)});
}

void DocumentReader::Know(const Place& place) {
  if (std::ssize(known_) == kMostKnown) return;
  const std::int64_t gap = std::max(kBlock / 2, CeilDivide(documents_, kMostKnown));
  const auto next = std::ranges::lower_bound(known_, place.at, {}, &Place::at);
  if (next != known_.end() && next->at - place.at < gap) return;
  if (next != known_.begin() && place.at - std::prev(next)->at < gap) return;
  known_.insert(next, place);
}

}  // namespace trireme::data
