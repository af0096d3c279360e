// The version, the commit and the compiler of this binary.
#include "trireme/base/version.hpp"

#include "commit.hpp"  // generated: kCommit, kVersion

namespace trireme {

std::string Version() { return generated::kVersion; }
std::string Commit() { return generated::kCommit; }

std::string Compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

}  // namespace trireme
