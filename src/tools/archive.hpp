// Writing a compressed tar archive.
#ifndef TRIREME_SRC_TOOLS_ARCHIVE_HPP_
#define TRIREME_SRC_TOOLS_ARCHIVE_HPP_

#include <string>
#include <vector>

#include "entries.hpp"

namespace trireme::tools {

// Writes `path`, a new file, with the entries below the folder `top`, all dated now. Appears under
// its name once it is complete. Throws InputError if it cannot be written; then nothing is left.
void WriteArchive(const std::string& path, const std::string& top,
                  const std::vector<Entry>& entries);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_ARCHIVE_HPP_
