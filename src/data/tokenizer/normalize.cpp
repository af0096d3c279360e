// Unicode normalisation by ICU.
#include "normalize.hpp"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

void Require(UErrorCode status) {
  if (U_SUCCESS(status) != 0) return;
  throw RunError(fmt::format("ICU: Unicode normalisation fails: {}", u_errorName(status)));
}

const icu::Normalizer2& FormC() {
  static const icu::FilteredNormalizer2 form_c = [] {
    UErrorCode status = U_ZERO_ERROR;
    // Kept for the program's life: the filter holds a reference.
    static const icu::UnicodeSet known = [&] {
      icu::UnicodeSet set(icu::UnicodeString("[:age=9.0:]"), status);
      set.freeze();
      return set;
    }();
    const icu::Normalizer2* const form = icu::Normalizer2::getNFCInstance(status);
    Require(status);
    return icu::FilteredNormalizer2(*form, known);
  }();
  return form_c;
}

}  // namespace

std::string_view NormalizeC(std::string_view text, std::string& room) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
  if (ascii) return text;
  UErrorCode status = U_ZERO_ERROR;
  const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
  room.clear();
  icu::StringByteSink<std::string> sink(&room);
  FormC().normalizeUTF8(0, piece, sink, nullptr, status);
  Require(status);
  return room;
}

std::size_t LastBoundaryC(std::string_view text) {
  auto at = static_cast<std::int32_t>(text.size());
  while (at > 0) {
    UChar32 code = 0;
    U8_PREV(reinterpret_cast<const std::uint8_t*>(text.data()), 0, at, code);
    if (code >= 0 && static_cast<bool>(FormC().hasBoundaryBefore(code))) break;
  }
  return static_cast<std::size_t>(at);
}

bool EndsWithLetter(std::string_view text) {
  static const icu::UnicodeSet letters = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(icu::UnicodeString("[[:L:]&[:age=9.0:]]"), status);
    Require(status);
    set.freeze();
    return set;
  }();
  if (text.empty()) return false;
  auto at = static_cast<std::int32_t>(std::min<std::size_t>(text.size(), U8_MAX_LENGTH));
  const char* const end = text.data() + text.size() - at;
  UChar32 last = 0;
  U8_PREV(reinterpret_cast<const std::uint8_t*>(end), 0, at, last);
  return last >= 0 && static_cast<bool>(letters.contains(last));
}

}  // namespace trireme::data
