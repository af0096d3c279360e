// Descriptions of keys that --help-deck and the manual page share.
#ifndef TRIREME_SRC_DECK_HELP_WORDS_HPP_
#define TRIREME_SRC_DECK_HELP_WORDS_HPP_

#include <string>

#include "trireme/deck/schema.hpp"

namespace trireme::deck {

// Kind, unit and range: "integer (steps), at least 1".
std::string KindText(const Key& key);
// "Excludes schedule.steps."; empty if the key excludes none.
std::string ExcludesText(const Schema& schema, const Key& key);

}  // namespace trireme::deck

#endif  // TRIREME_SRC_DECK_HELP_WORDS_HPP_
