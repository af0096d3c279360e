// Descriptions of keys that --help-deck and the manual page share.
#ifndef TRIREME_SRC_INPUT_HELP_WORDS_HPP_
#define TRIREME_SRC_INPUT_HELP_WORDS_HPP_

#include <string>

#include "trireme/input/schema.hpp"

namespace trireme::input {

// Kind, unit and range: "integer (steps), at least 1".
std::string KindText(const Key& key);
// "Excludes schedule.steps."; empty if the key excludes none.
std::string ExcludesText(const Schema& schema, const Key& key);

}  // namespace trireme::input

#endif  // TRIREME_SRC_INPUT_HELP_WORDS_HPP_
