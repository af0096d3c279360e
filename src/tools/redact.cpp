// Texts and secrets: how they are recognised.
#include "redact.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <sstream>

#include "entries.hpp"

#include "trireme/base/json.hpp"

namespace trireme::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLeftOut = "(left out)";

// Line with which the program goes on after a sample, which may have several lines of its own.
// After a gap in the log it may be any record's.
bool EndsSample(const std::string& line) {
  static const std::regex next(
      R"((done|stopped) +[0-9,]+ steps?[ ,].*| *[0-9,]+( +[0-9.]+){3} .*|Trireme [0-9]+\.[0-9].*|trireme: .*)");
  return std::regex_match(line, next);
}

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Random words: long, of letters and digits in turn, without what separates parts of paths or
// lists.
bool LooksRandom(std::string_view value) {
  constexpr std::size_t kShortest = 20;
  std::size_t run = 0, digits = 0, letters = 0;
  for (const char c : value) {
    if (IsWord(c) || c == '_' || c == '-' || c == '+' || c == '=') {
      ++run;
      digits += std::isdigit(static_cast<unsigned char>(c)) != 0 ? 1 : 0;
      letters += std::isalpha(static_cast<unsigned char>(c)) != 0 ? 1 : 0;
    } else {
      run = digits = letters = 0;
    }
    if (run >= kShortest && digits >= 4 && letters >= 4) return true;
  }
  return false;
}

bool IsSecretName(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr auto kWords =
      std::to_array<std::string_view>({"TOKEN", "SECRET", "PASS", "PWD", "KEY", "CRED", "AUTH",
                                       "COOKIE", "JWT", "SIGNATURE", "CERT", "MUNGE", "PRIVATE"});
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return upper.find(word) != std::string::npos; });
}

// A line "key = value" of [generate], or generate.key=value on a command line.
std::string DeckLineWithoutText(const std::string& line, bool in_generate) {
  static const std::regex in_section(R"(^\s*(prompt|stop)\s*=\s*\S.*$)");
  static const std::regex anywhere(R"(generate\.(prompt|stop)\s*=.*$)");
  if (in_generate && std::regex_match(line, in_section)) {
    return line.substr(0, line.find('=')) + "= " + kLeftOut;
  }
  return std::regex_replace(line, anywhere, std::string("generate.$1=") + kLeftOut);
}

void Clean(Json& json) {
  if (json.is_object()) {
    for (const char* const name : {"samples", "sample", "prompt", "stop", "generate.prompt",
                                   "generate.stop", "completion"}) {
      if (json.contains(name)) json[name] = kLeftOut;
    }
  }
  if (json.is_string()) {
    const std::string text = json.get<std::string>();
    json = WithoutPasswords(text.find('\n') == std::string::npos ? text : DeckWithoutTexts(text));
  } else if (json.is_structured()) {
    for (Json& each : json) Clean(each);
  }
}

}  // namespace

bool LooksSecret(std::string_view name, std::string_view value) {
  return IsSecretName(name) || LooksRandom(value) || WithoutPasswords(std::string(value)) != value;
}

std::string WithoutPasswords(std::string text) {
  static const std::regex address(R"(([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@"']+@)");
  static const std::regex bearer(R"(\b([Bb]earer|[Tt]oken|[Pp]assword)([ =:]+)[^\s"',]{8,})");
  if (text.find("://") != std::string::npos) {
    text = std::regex_replace(text, address, std::string("$1") + kLeftOut + "@");
  }
  return std::regex_replace(text, bearer, std::string("$1$2") + kLeftOut);
}

std::string DeckWithoutTexts(const std::string& deck) {
  std::istringstream lines(deck);
  std::string result;
  bool in_generate = false;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t start = line.find_first_not_of(" \t");
    if (start != std::string::npos && line[start] == '[') {
      in_generate = line.compare(start, 10, "[generate]") == 0;
    }
    result += DeckLineWithoutText(line, in_generate);
    if (!lines.eof()) result += '\n';
  }
  return result;
}

std::string LogWithoutSamples(const std::string& log) {
  std::istringstream lines(log);
  std::string result;
  bool in_sample = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("sample  ")) {
      in_sample = true;
      result += std::string("sample  ") + kLeftOut + "\n";
      continue;
    }
    if (line.starts_with(kGapMark)) {
      in_sample = true;  // the gap may end in the middle of one
      result += line + "\n";
      continue;
    }
    in_sample = in_sample && !EndsSample(line);
    if (in_sample) continue;
    result += DeckLineWithoutText(line, false);
    if (!lines.eof()) result += '\n';
  }
  return result;
}

std::string JsonWithoutTexts(const std::string& json) {
  Json parsed = Json::parse(json, nullptr, false);
  if (parsed.is_discarded()) return {};
  Clean(parsed);
  return parsed.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::tools
