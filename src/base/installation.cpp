// The program's own place, and from it that of its files: no path is compiled in.
#include "trireme/base/installation.hpp"

#include <filesystem>
#include <system_error>

namespace trireme {

namespace fs = std::filesystem;

std::string ProgramFile() {
  std::error_code unknown;
  return fs::read_symlink("/proc/self/exe", unknown).string();
}

std::string SharedFolder(const std::string& program) {
  if (program.empty()) return {};
  const fs::path above = fs::path(program).parent_path() / "..";
  std::error_code ignored;
  for (const fs::path& folder : {above / "share" / "trireme", above}) {
    if (fs::is_directory(folder / "input", ignored)) return folder.lexically_normal().string();
  }
  return {};
}

}  // namespace trireme
