// HDF5's text of a failure, and the opening of files and property lists.
#include "hdf5.hpp"

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

namespace {

herr_t TakeFirst(unsigned number, const H5E_error2_t* error, void* text) {
  if (number == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

}  // namespace

std::string Hdf5Reason() {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, &TakeFirst, &reason);
  if (reason.find("unable to lock file") != std::string::npos) {
    return "another process has it open for writing, or the file system has no locks, for which "
           "HDF5_USE_FILE_LOCKING=FALSE is made (HDF5: " +
           reason + ")";
  }
  return "HDF5: " + (reason.empty() ? "no reason given" : reason);
}

Hdf5Handle MakeProperties(hid_t kind) {
  Hdf5Handle list(H5Pcreate(kind), H5Pclose);
  if (!list.Valid()) throw RunError("HDF5 cannot make a property list", Hdf5Reason());
  return list;
}

std::string Hdf5Version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

Hdf5Handle OpenSerially(const std::string& path) {
  const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
  // Many parallel file systems have no locks: HDF5 then goes on without.
  H5Pset_file_locking(access.Get(), true, true);
  H5Pset_fapl_sec2(access.Get());  // a POSIX file, whatever the environment says: DescriptorOf
  return {H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.Get()), H5Fclose};
}

int DescriptorOf(hid_t object) {
  const Hdf5Handle file(H5Iget_file_id(object), H5Fclose);
  void* descriptor = nullptr;
  if (!file.Valid() || H5Fget_vfd_handle(file.Get(), H5P_DEFAULT, &descriptor) < 0) {
    throw RunError("HDF5 does not tell the descriptor of a file", Hdf5Reason());
  }
  return *static_cast<const int*>(descriptor);
}

}  // namespace trireme::data
