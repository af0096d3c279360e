// Diagnosis of a cut-off HDF5 file: the first dataset that lacks bytes.
#ifndef TRIREME_SRC_DATA_CUT_FILE_HPP_
#define TRIREME_SRC_DATA_CUT_FILE_HPP_

#include <cstdint>
#include <string>

namespace trireme::data {

// The name ("/valid/tokens") of the token file's dataset that begins first among those that do not
// end within the `there` bytes of a file that should have `whole`; empty if the description of the
// datasets is missing as well.
std::string FirstCutDataset(const std::string& path, std::uint64_t there, std::uint64_t whole);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_CUT_FILE_HPP_
