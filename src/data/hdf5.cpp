// HDF5's reasons for failures, and opening of files.
#include "hdf5.hpp"

#include <fmt/format.h>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

std::string Hdf5Reason() {
  const auto take_first = [](unsigned number, const H5E_error2_t* error, void* text) -> herr_t {
    if (number == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
    return 0;
  };
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
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
  // Many parallel file systems have no locks; HDF5 then goes on without them.
  H5Pset_file_locking(access.Get(), true, true);
  // A POSIX file, whatever HDF5's environment variables say.
  H5Pset_fapl_sec2(access.Get());
  return {H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.Get()), H5Fclose};
}

Error TokenFileError(const std::string& path, const std::string& where, const std::string& what) {
  return InputError(fmt::format("{}: {}: {}", path, where, what),
                    "data.file names a file that job.task = tokenize has written.");
}

}  // namespace trireme::data
