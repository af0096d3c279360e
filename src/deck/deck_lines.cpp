// Boost.Program_options' INI reader gives options in file order but no line numbers, and stops at
// the first line that it cannot read. The lines are found again from that order; a line that
// stopped the reader is blanked and the text read again, so that one run reports every fault.
#include "deck_lines.hpp"

#include <algorithm>
#include <boost/program_options/errors.hpp>
#include <boost/program_options/options_description.hpp>
#include <boost/program_options/parsers.hpp>
#include <cstddef>
#include <sstream>

#include "trireme/base/error.hpp"
#include "value.hpp"

namespace trireme::deck {

namespace {

namespace po = boost::program_options;

// A file with more unreadable lines than these is no deck: the rest is not looked at.
constexpr std::size_t kMaximumErrors = 20;

std::vector<std::string> SplitLines(std::string text) {
  constexpr const char* kByteOrderMark = "\xEF\xBB\xBF";  // some editors put one first
  if (text.starts_with(kByteOrderMark)) text.erase(0, 3);
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;  // DOS
    if (text[i] == '\n' || text[i] == '\r') {  // the latter alone: old Macs
      lines.emplace_back();
    } else {
      lines.back() += text[i];
    }
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

std::string WithoutComment(const std::string& line) { return Trim(line.substr(0, line.find('#'))); }

bool IsSection(const std::string& line) { return line.front() == '[' && line.back() == ']'; }

bool HasGluedComment(const std::string& line) {
  const std::size_t hash = line.find('#');
  if (hash == std::string::npos || hash == 0) return false;
  const char before = line[hash - 1];
  return before != ' ' && before != '\t' && before != '=';
}

// Reads until the reader accepts every line that is left; blanks those that it did not.
std::vector<po::option> ReadOptions(std::vector<std::string>& lines,
                                    std::vector<SyntaxError>& errors) {
  const po::options_description nothing_registered;
  for (;;) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    std::istringstream stream(text);
    try {
      return po::parse_config_file(stream, nothing_registered, true).options;
    } catch (const po::invalid_config_file_syntax&) {
      stream.clear();  // tellg() gives -1 at the end of the file otherwise
      const auto read = static_cast<std::ptrdiff_t>(stream.tellg());
      const auto line = std::count(text.begin(), text.begin() + read, '\n');
      std::string& culprit = lines[static_cast<std::size_t>(line - 1)];
      errors.push_back({static_cast<int>(line), WithoutComment(culprit)});
      culprit.clear();
      if (errors.size() == kMaximumErrors) {
        std::fill(lines.begin() + line, lines.end(), std::string());
      }
    }
  }
}

}  // namespace

DeckLines ReadLines(const std::string& text) {
  DeckLines result;
  std::vector<std::string> lines = SplitLines(text);
  // Boost 1.74 reads past the end of an empty section name: take such lines out of its sight.
  std::vector<std::string> readable = lines;
  for (std::string& line : readable) {
    if (WithoutComment(line) == "[]") line.clear();
  }
  const std::vector<po::option> options = ReadOptions(readable, result.errors);

  // The i-th option is the i-th line left that is neither blank nor a section.
  std::string section;
  std::size_t next = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const int number = static_cast<int>(i) + 1;
    const std::string line = WithoutComment(lines[i]);
    if (line.empty()) continue;
    if (IsSection(line)) {
      section = line.substr(1, line.size() - 2);
      result.sections.push_back({number, section});
    } else if (!readable[i].empty() && next < options.size()) {
      const po::option& option = options[next++];
      const std::string key = Trim(line.substr(0, line.find('=')));
      result.assignments.push_back(
          {number, section, key, option.value.front(), HasGluedComment(lines[i])});
      // A reader with other ideas about lines would shift every line number: better to stop.
      if (!option.string_key.ends_with(key)) next = options.size() + 1;
    }
  }
  if (next != options.size()) {
    throw RunError("the lines of the deck and the options that Boost.Program_options read differ");
  }
  return result;
}

}  // namespace trireme::deck
