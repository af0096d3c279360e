// Token files with every part chosen by fuzz input, as images in memory.
#ifndef TRIREME_TEST_FUZZ_HOSTILE_TOKEN_FILE_HPP_
#define TRIREME_TEST_FUZZ_HOSTILE_TOKEN_FILE_HPP_

#include <string>

#include "choices.hpp"

namespace trireme::fuzz {

// Bytes of an HDF5 file that HDF5 itself has written. Choices of 0 make a good token file; others
// leave out or replace datasets (links, layouts, filters, types, extents, values) and attributes
// (types, spaces, values), then change bytes that HDF5 leaves to our own code, or does not read
// before our own code has: the end of the file in the superblock, the file's length, references to
// texts and the heap that holds them.
std::string HostileTokenFile(Choices& choices);

}  // namespace trireme::fuzz

#endif  // TRIREME_TEST_FUZZ_HOSTILE_TOKEN_FILE_HPP_
