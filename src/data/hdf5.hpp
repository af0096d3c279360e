// HDF5 handles that close themselves, and HDF5's descriptions of failures.
#pragma once

#include <hdf5.h>
#include <string>
#include <utility>

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

// InputError "path: where: what" with a hint that tells what a token file is.
Error TokenFileError(const std::string& path, const std::string& where, const std::string& what);

}  // namespace trireme::data
