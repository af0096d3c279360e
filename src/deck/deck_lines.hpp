// The lines of a deck's text: the options that Boost.Program_options reads, each with its line
// number.
#ifndef TRIREME_SRC_DECK_DECK_LINES_HPP_
#define TRIREME_SRC_DECK_DECK_LINES_HPP_

#include <string>
#include <vector>

namespace trireme::deck {

struct Assignment {
  int line = 0;                // from 1
  std::string section;         // as between the brackets; empty before the first section
  std::string key;             // without the section
  std::string value;           // without surrounding blanks, comment cut
  bool glued_comment = false;  // a '#' follows the value without a blank between
};

struct SectionLine {
  int line = 0;
  std::string name;
};

struct SyntaxError {
  int line = 0;
  std::string text;  // the line, comment cut
};

// Each list in the order of lines.
struct DeckLines {
  std::vector<Assignment> assignments;
  std::vector<SectionLine> sections;
  std::vector<SyntaxError> errors;
};

DeckLines ReadLines(const std::string& text);

}  // namespace trireme::deck

#endif  // TRIREME_SRC_DECK_DECK_LINES_HPP_
