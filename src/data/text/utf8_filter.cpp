// Table 3-7 of the Unicode standard: well-formed sequences of UTF-8.
#include "utf8_filter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

unsigned ByteAt(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// Bytes of the sequence that begins with `lead`; 0: none does.
std::size_t LengthOf(unsigned lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// Whether `byte` may come second after `lead`.
bool MayFollow(unsigned lead, unsigned byte) {
  if (lead == 0xE0) return byte >= 0xA0 && byte <= 0xBF;
  if (lead == 0xED) return byte >= 0x80 && byte <= 0x9F;
  if (lead == 0xF0) return byte >= 0x90 && byte <= 0xBF;
  if (lead == 0xF4) return byte >= 0x80 && byte <= 0x8F;
  return byte >= 0x80 && byte <= 0xBF;
}

// Length of the longest beginning of a well-formed sequence; 0: not even the first byte is one.
std::size_t GoodBytes(std::string_view text) {
  const unsigned lead = ByteAt(text, 0);
  const std::size_t length = std::min(LengthOf(lead), text.size());
  std::size_t good = std::min<std::size_t>(length, 1);
  while (good < length &&
         (good == 1 ? MayFollow(lead, ByteAt(text, 1)) : MayFollow(0x80, ByteAt(text, good)))) {
    ++good;
  }
  return good;
}

}  // namespace

Utf8Filter::Utf8Filter(DocumentSink& next, std::string path, bool replace)
    : next_(next), path_(std::move(path)), replace_(replace) {}

void Utf8Filter::Invalid(std::string_view bytes, std::int64_t offset) {
  if (!replace_) {
    throw InputError(
        fmt::format("{}: byte 0x{:02x} at offset {} is not valid UTF-8", path_, ByteAt(bytes, 0),
                    offset),
        "Convert the text to UTF-8; tokenize.invalid = replace puts U+FFFD in its place.");
  }
  ++replaced_;
  next_.Text(kReplacement, offset);
}

void Utf8Filter::Pass(std::string_view text, std::int64_t offset, bool ended) {
  std::size_t begin = 0, at = 0;  // of what is not passed on yet; all before `at` is valid
  const auto pass = [&](std::size_t until) {
    if (until > begin) {
      next_.Text(text.substr(begin, until - begin), offset + static_cast<std::int64_t>(begin));
    }
  };
  while (at < text.size()) {
    if (ByteAt(text, at) < 0x80) {
      ++at;
      continue;
    }
    const std::string_view rest = text.substr(at);
    const std::size_t good = GoodBytes(rest);
    const std::size_t length = LengthOf(ByteAt(rest, 0));
    if (good > 0 && good == length) {
      at += good;
      continue;
    }
    pass(at);
    const std::int64_t here = offset + static_cast<std::int64_t>(at);
    if (good == rest.size() && !ended) {
      held_ = rest;
      held_offset_ = here;
      return;
    }
    const std::size_t bad = std::max<std::size_t>(good, 1);
    Invalid(rest.substr(0, bad), here);
    at += bad;
    begin = at;
  }
  pass(at);
}

void Utf8Filter::Text(std::string_view piece, std::int64_t offset) {
  if (!held_.empty()) {
    // At most three bytes end what is held, or show that it has no end.
    constexpr std::size_t kMostMissing = 3;
    std::string bridge = std::exchange(held_, {});
    const std::size_t had = bridge.size();
    const std::size_t length = LengthOf(ByteAt(bridge, 0));
    const std::size_t taken = std::min({length - had, piece.size(), kMostMissing});
    bridge += piece.substr(0, taken);
    const std::size_t good = GoodBytes(bridge);
    // Bytes after the fault may begin a character of their own: only what was held is passed then.
    const std::size_t used = good == bridge.size() ? taken : good - had;
    bridge.resize(had + used);
    const bool open = good == had + taken && good < length;  // more is missing
    Pass(bridge, held_offset_, !open);
    piece.remove_prefix(used);
    offset += static_cast<std::int64_t>(used);
  }
  if (!piece.empty()) Pass(piece, offset, false);
}

void Utf8Filter::End() {
  const std::string rest = std::exchange(held_, {});
  if (!rest.empty()) Pass(rest, held_offset_, true);
  next_.End();
}

}  // namespace trireme::data
