// Places of the program and of the files that come with it: decks, job scripts, documents.
#ifndef TRIREME_BASE_INSTALLATION_HPP_
#define TRIREME_BASE_INSTALLATION_HPP_

#include <string>

namespace trireme {

// File of this program, links resolved; empty if the system does not tell.
std::string ProgramFile();
// The folder that holds input/, jobscripts/, vis/ and doc/ of the program in `program`:
// ../share/trireme seen from its folder, if it is installed, or the folder above its own, if that
// is the source tree; empty if neither is there.
std::string SharedFolder(const std::string& program);

}  // namespace trireme

#endif  // TRIREME_BASE_INSTALLATION_HPP_
