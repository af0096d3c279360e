// Small files shared between jobs, through POSIX calls: read within bounds, never through a
// symbolic link, and written durably under a name that nothing else has.
#ifndef TRIREME_SRC_APP_SMALL_FILE_HPP_
#define TRIREME_SRC_APP_SMALL_FILE_HPP_

#include <cstddef>
#include <string>

#include "trireme/base/descriptor.hpp"

namespace trireme::app {

struct SmallFile {
  bool exists = false;
  std::string fault;        // why an existing one cannot be used; empty: `text` is its content
  bool unreadable = false;  // the fault is a failed call, and may pass
  std::string text;
};

// Reads at most `most_bytes`; a longer file, a symbolic link, a folder and the like have a fault.
SmallFile ReadSmallFile(const std::string& path, std::size_t most_bytes);

// Creates the file, which must not exist, and syncs it. Throws RunError with path and reason and
// leaves nothing there.
void CreateDurably(const std::string& path, const std::string& text, const std::string& hint);

}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_SMALL_FILE_HPP_
