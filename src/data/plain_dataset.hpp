// Datasets of a token file that may be hostile: checked by what describes them, before any of their
// data are read and any memory is taken.
#ifndef TRIREME_SRC_DATA_PLAIN_DATASET_HPP_
#define TRIREME_SRC_DATA_PLAIN_DATASET_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "hdf5.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

// "path: where: what", and what a token file is: exit code 2.
Error TokenFileError(const std::string& path, const std::string& where, const std::string& what);

// Why `name` ("/train/tokens") cannot be opened safely in `file`: it is missing, or a soft,
// external or user-defined link lies on the way to it. "" if all links are hard. Follows no other
// link.
std::string LinkFault(hid_t file, const std::string& name);

// One dimension of unsigned integers, stored in one piece within the file itself.
struct PlainDataset {
  Hdf5Handle set;
  std::int64_t count = 0;   // elements
  std::int64_t width = 0;   // bytes of one
  std::int64_t offset = 0;  // bytes, in the file; 0 without elements
  bool big_endian = false;
};

// Opens `name` in `file`, opened from `path`, which has `file_bytes` bytes. Throws InputError
// naming the dataset and the reason unless it is reached by hard links and has one fixed dimension,
// whole unsigned integers of one of the `widths`, contiguous storage without filters (what the
// writer and h5py make of any size, where compact storage must be asked for), none of it in other
// files, allocated as a whole and within the file.
PlainDataset OpenPlainDataset(hid_t file, const std::string& path, const std::string& name,
                              const std::vector<std::int64_t>& widths, std::int64_t file_bytes);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_PLAIN_DATASET_HPP_
