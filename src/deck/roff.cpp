// Escapes of roff: backslashes, minus signs, quotation marks, characters beyond ASCII.
#include "roff.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <sstream>

namespace trireme::deck::roff {

namespace {

constexpr std::size_t kRoffColumns = 78;

bool IsLetter(char character) { return std::isalpha(static_cast<unsigned char>(character)) != 0; }

// The code point that begins at text[at], which is moved to its last byte. The text is well-formed.
std::uint32_t CodePoint(const std::string& text, std::size_t& at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  std::uint32_t code = first & (0x3FU >> static_cast<unsigned>(more));
  for (int i = 0; i < more && at + 1 < text.size(); ++i) {
    code = (code << 6U) | (static_cast<unsigned char>(text[++at]) & 0x3FU);
  }
  return code;
}

// Keeps a line from being read as a request.
std::string Line(const std::string& escaped) {
  const bool request = escaped.starts_with('.') || escaped.starts_with('\'');
  return (request ? "\\&" : "") + escaped + "\n";
}

}  // namespace

std::string Escaped(const std::string& text, Hyphen hyphen) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool in_word = hyphen == Hyphen::kInWords && i > 0 && i + 1 < text.size() &&
                         IsLetter(text[i - 1]) && IsLetter(text[i + 1]);
    switch (text[i]) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += in_word ? "-" : "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '"':
        out += "\\(dq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        if (static_cast<unsigned char>(text[i]) < 0x80) {
          out += text[i];
        } else {
          out += fmt::format("\\[u{:04X}]", CodePoint(text, i));
        }
    }
  }
  return out;
}

std::string Bold(const std::string& text) {
  return "\\fB" + Escaped(text, Hyphen::kMinus) + "\\fP\n";
}

std::string Prose(const std::string& text) {
  std::istringstream words(text);
  std::string out, line, word;
  const auto flush = [&] {
    if (!line.empty()) out += Line(line);
    line.clear();
  };
  while (words >> word) {
    const bool ends = word.ends_with('.');
    word = Escaped(word, Hyphen::kInWords);
    if (!line.empty() && line.size() + 1 + word.size() > kRoffColumns) flush();
    line += (line.empty() ? "" : " ") + word;
    if (ends) flush();
  }
  flush();
  return out;
}

}  // namespace trireme::deck::roff
