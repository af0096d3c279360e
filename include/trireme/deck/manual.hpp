// The manual page: made from the declarations of the keys and the text of --help when Trireme is
// built.
#ifndef TRIREME_DECK_MANUAL_HPP_
#define TRIREME_DECK_MANUAL_HPP_

#include <string>

#include "trireme/deck/schema.hpp"

namespace trireme::deck {

// Content of the page besides the keys.
struct ManualFacts {
  std::string version;  // "0.1.0"
  std::string date;     // of the sources: "2026-11-24"
  std::string help;     // text of --help: a sentence, "usage:", options, "exit codes:"
};

// The page trireme(1), in the macros of man(7), plain ASCII. Throws std::logic_error for a help
// text of another form.
std::string ManualPage(const Schema& schema, const ManualFacts& facts);

}  // namespace trireme::deck

#endif  // TRIREME_DECK_MANUAL_HPP_
