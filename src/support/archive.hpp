// Writing a compressed tar archive.
#ifndef TRIREME_SRC_SUPPORT_ARCHIVE_HPP_
#define TRIREME_SRC_SUPPORT_ARCHIVE_HPP_

#include <string>
#include <vector>

#include "entries.hpp"

namespace trireme::support {

// Writes `path`, a new file, with the entries below the folder `top`, all dated now. Appears under
// its name once it is complete. Throws InputError if it cannot be written; then nothing is left.
void WriteArchive(const std::string& path, const std::string& top,
                  const std::vector<Entry>& entries);

}  // namespace trireme::support

#endif  // TRIREME_SRC_SUPPORT_ARCHIVE_HPP_
