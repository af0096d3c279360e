// The identity of this binary: its version, the commit it was built from, the compiler.
#ifndef TRIREME_BASE_VERSION_HPP_
#define TRIREME_BASE_VERSION_HPP_

#include <string>

namespace trireme {

std::string Version();  // "0.1.0"
std::string Commit();   // "3f2a9c1", followed by "+" if the tree had changes; "unknown" outside git
std::string Compiler();  // "GCC 12.2.0"
std::string BuildId();   // the linker's hash of this program, hexadecimal; empty: it made none

}  // namespace trireme

#endif  // TRIREME_BASE_VERSION_HPP_
