// The identity of this binary: its version, the commit it was built from, the compiler.
#pragma once

#include <string>

namespace trireme {

std::string Version();  // "0.1.0"
std::string Commit();   // "3f2a9c1", followed by "+" if the tree had changes; "unknown" outside git
std::string Compiler();  // "GCC 12.2.0"
std::string BuildId();   // the linker's hash of this program, hexadecimal; empty: it made none

// Places of the program and of the files that come with it: decks, job scripts, documents.

// File of this program, links resolved; empty if the system does not tell.
std::string ProgramFile();
// The folder that holds input/, jobscripts/, vis/ and doc/ of the program in `program`:
// ../share/trireme seen from its folder, if it is installed, or the folder above its own, if that
// is the source tree; empty if neither is there.
std::string SharedFolder(const std::string& program);

// The processor that the program was built for.

// "x86-64-v3", "aarch64". A program that calls this ends with a message and code 2, before its
// first constructor runs, on a processor that lacks what the compiler was free to use.
const char* BuiltFor();

// Instruction sets that the compiler was free to use everywhere in this program.

// Bit i: kExtensions[i] of processor_check.cpp may be used. Data, not code: read before any
// instruction of these sets may run.
extern const unsigned kBuiltFor;

}  // namespace trireme
