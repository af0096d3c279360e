// HDF5 handles that close themselves, and HDF5's own words about a failure, which HDF5 does not
// print while a QuietHdf5 lives.
#pragma once

#include <hdf5.h>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

class Hdf5Handle {
 public:
  using Closer = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept { *this = std::move(other); }
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(closer_, other.closer_);
    return *this;
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  // Keeps HDF5's description of the last failure, which closing anything would drop.
  ~Hdf5Handle() {
    if (id_ < 0) return;
    const hid_t failure = H5Eget_current_stack();
    Close();
    H5Eset_current_stack(failure);
  }

  bool Valid() const { return id_ >= 0; }
  hid_t Get() const { return id_; }
  // Closes early. False if HDF5 reports a failure: a full disk may show only now.
  bool Close() {
    if (id_ < 0) return true;
    return closer_(std::exchange(id_, H5I_INVALID_HID)) >= 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

// Switches HDF5's printing of its error stack off, and back on at the end of the scope.
class QuietHdf5 {
 public:
  QuietHdf5() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

// "HDF5: " and the innermost description of the last failure: a hint under our own message.
std::string Hdf5Reason();

// A property list of the given class (H5P_FILE_ACCESS, ...).
Hdf5Handle MakeProperties(hid_t kind);

// Opens for reading by this process alone; invalid on failure.
Hdf5Handle OpenSerially(const std::string& path);

// Descriptor of the file that OpenSerially opened, or that an object in it belongs to: for reads at
// positions, until it is closed. Throws RunError.
int DescriptorOf(hid_t object);

// Datasets of a token file that may be hostile: checked by what describes them, before any of their
// data are read and any memory is taken.

// "path: where: what", and what a token file is: exit code 2.
Error TokenFileError(const std::string& path, const std::string& where, const std::string& what);

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

// Elements of a token file's arrays that cannot be what they should.

inline constexpr std::int64_t kNoElement = std::numeric_limits<std::int64_t>::max();

// Elements [begin, end) of an array, in this machine's order of bytes.
struct Elements {
  const void* values = nullptr;
  std::int64_t begin = 0, end = 0;
  std::uint64_t before = 0;  // value at begin - 1, of documents
};

// Value at an offset of the array, which must lie within.
std::uint64_t ValueAt(const StoredArray& array, const Elements& elements, std::int64_t offset);

// Offset in the array of the first bad element, or kNoElement: an id that is not below the
// vocabulary, a document that does not begin after the one before it or begins after the end, a
// mask that is neither 0 nor 1.
std::int64_t FirstBad(const TokenLayout& layout, Split split, Array array,
                      const Elements& elements);

// A bad element: its offset in the array, and the value that was read.
struct BadValue {
  std::int64_t offset = 0;
  std::uint64_t value = 0;
};

// InputError that names file, dataset and offset.
Error BadElement(const std::string& path, const TokenLayout& layout, Split split, Array array,
                 const BadValue& bad);

}  // namespace trireme::data
