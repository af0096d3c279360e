// A record of metrics.jsonl as a line of text.
#ifndef TRIREME_SRC_TOOLS_RECORD_LINE_HPP_
#define TRIREME_SRC_TOOLS_RECORD_LINE_HPP_

#include <string>
#include <string_view>

namespace trireme::tools {

// "step 100  epoch 0.39  loss 6.8102 ...": one line without a newline, of printable text. A line
// that is no record becomes "unreadable: a line of 12 bytes".
std::string RecordLine(std::string_view line);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_RECORD_LINE_HPP_
