// The identity of this binary (version, commit, compiler), where it is, and the processor that it
// needs.
#pragma once

#include <string>

namespace trireme {

std::string Version();  // "0.1.0"
std::string Commit();   // "3f2a9c1", followed by "+" if the tree had changes; "unknown" outside git
std::string Compiler();  // "GCC 12.2.0"
std::string BuildId();   // the linker's hash of this program, hexadecimal; empty: none

// Path of this program, with links resolved; empty if the system does not tell.
std::string ProgramFile();
// The folder that holds input/, jobscripts/, vis/ and doc/. program: path of the program. If it is
// installed, ../share/trireme seen from its folder; in the source tree, the folder above its own;
// empty if neither is there.
std::string SharedFolder(const std::string& program);

// What the program was built for: "x86-64-v3", "aarch64". A program that calls this function is
// checked at start: on a processor without an instruction set that the compiler was free to use, it
// ends with a message and code 2 before its first constructor runs.
const char* BuiltFor();

// Instruction sets that the compiler was free to use in this program: bit i stands for kNames[i] of
// processor_check.cpp. Data, not code: it is read before any such instruction may run.
extern const unsigned kBuiltFor;

}  // namespace trireme
