// Files of results.
#include "result_file.hpp"

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/base/new_file.hpp"

namespace trireme::tasks {

void WriteResult(const std::string& path, std::string_view text) {
  Replacement file(path);
  file.Write(text);
  if (const std::error_code error = file.Place()) {
    throw RunError(fmt::format("{}: cannot be written: {}", path, error.message()),
                   "The results are on the screen.");
  }
}

}  // namespace trireme::tasks
