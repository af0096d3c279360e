// HDF5 handles that close themselves, HDF5's descriptions of failures, and checked datasets.
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
  // Closes, but keeps HDF5's description of the last failure, which closing would erase.
  ~Hdf5Handle() {
    if (id_ < 0) return;
    const hid_t failure = H5Eget_current_stack();
    Close();
    H5Eset_current_stack(failure);
  }

  bool Valid() const { return id_ >= 0; }
  hid_t Get() const { return id_; }
  // Closes early. False if HDF5 reports a failure: a full disk may only show now.
  bool Close() {
    if (id_ < 0) return true;
    return closer_(std::exchange(id_, H5I_INVALID_HID)) >= 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

// Turns off HDF5's printing of errors until the end of the scope.
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

// "HDF5: " and the innermost description of its last failure, for use as a hint in messages.
std::string Hdf5Reason();

// A property list of the given class (H5P_FILE_ACCESS, ...).
Hdf5Handle MakeProperties(hid_t kind);

// Opens a file for reading by this process alone; the handle is invalid on failure.
Hdf5Handle OpenSerially(const std::string& path);

// Descriptor of a file opened by OpenSerially, or of the file that an object belongs to: for reads
// at byte offsets while it is open. Throws RunError.
int DescriptorOf(hid_t object);

// InputError "path: where: what" with a hint that tells what a token file is.
Error TokenFileError(const std::string& path, const std::string& where, const std::string& what);

// A checked dataset: one dimension of unsigned integers, contiguous within the file itself.
struct PlainDataset {
  Hdf5Handle set;
  std::int64_t count = 0;   // elements
  std::int64_t width = 0;   // bytes per element
  std::int64_t offset = 0;  // bytes from the start of the file; 0 without elements
  bool big_endian = false;
};

// Opens dataset `name` in `file`, checking it before any data are read or memory is allocated,
// since the file may be malicious. path, file_bytes: name and size of the file. Throws InputError
// naming the dataset and the reason unless it is reached by hard links and has one fixed dimension,
// unsigned integers of one of the `widths`, and contiguous storage without filters (which the
// writer and h5py make at any size), fully allocated and within this file.
PlainDataset OpenPlainDataset(hid_t file, const std::string& path, const std::string& name,
                              const std::vector<std::int64_t>& widths, std::int64_t file_bytes);

inline constexpr std::int64_t kNoElement = std::numeric_limits<std::int64_t>::max();

// Elements [begin, end) of an array, in this machine's order of bytes.
struct Elements {
  const void* values = nullptr;
  std::int64_t begin = 0, end = 0;
  std::uint64_t before = 0;  // value at begin - 1; for documents only
};

// Value at an offset of the array, which must lie within `elements`.
std::uint64_t ValueAt(const StoredArray& array, const Elements& elements, std::int64_t offset);

// Offset in the array of the first bad element, or kNoElement. Bad are: an id that is not below the
// vocabulary size; a document that does not begin after the one before it (the first one: at 0), or
// begins beyond the tokens; a mask value other than 0 and 1.
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
