// UTF-8 through Boost.Locale's decoder (a header, no library) and the C library's case tables.
#include "utf8.hpp"

#include <locale.h>
#include <wctype.h>

#include <boost/locale/utf.hpp>
#include <iterator>

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

using Utf8 = boost::locale::utf::utf_traits<char>;

bool IsAscii(char c) { return static_cast<unsigned char>(c) < 0x80; }

}  // namespace

std::size_t FirstInvalidUtf8(std::string_view text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (IsAscii(*at)) {
      ++at;
      continue;
    }
    const char* const begin = at;
    if (!boost::locale::utf::is_valid_codepoint(Utf8::decode(at, end))) {
      return static_cast<std::size_t>(begin - text.data());
    }
  }
  return std::string_view::npos;
}

LowerCase::LowerCase()
    : locale_(newlocale(LC_CTYPE_MASK, "C.UTF-8", static_cast<locale_t>(nullptr))) {
  if (locale_ == nullptr) {
    throw RunError("tokenize.lowercase: this system has no C.UTF-8 locale",
                   "Lower the text before, or install the locale.");
  }
}

LowerCase::~LowerCase() { freelocale(static_cast<locale_t>(locale_)); }

std::string LowerCase::operator()(std::string_view text) const {
  std::string lower;
  lower.reserve(text.size());
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const auto point = static_cast<wint_t>(Utf8::decode_valid(at));
    const auto low = static_cast<boost::locale::utf::code_point>(
        towlower_l(point, static_cast<locale_t>(locale_)));
    Utf8::encode(low, std::back_inserter(lower));
  }
  return lower;
}

}  // namespace trireme::data
