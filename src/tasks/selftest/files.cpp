// Files: one folder for all ranks, and HDF5 through MPI-IO.
#include <fmt/format.h>
#include <hdf5.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "checks.hpp"
#include "trireme/base/descriptor.hpp"
#include "trireme/base/posix_file.hpp"

namespace trireme::tasks {

namespace {

constexpr hsize_t kEach = 50'000;  // elements of a rank

std::int64_t ValueAt(hsize_t index) { return static_cast<std::int64_t>(index) * 7 - 3; }

void Good(herr_t status, const char* what) {
  Expect(status >= 0, fmt::format("HDF5: {} failed", what),
         "The file system may refuse MPI-IO, or HDF5 stand on another MPI library (ldd tells).");
}

// Handles of one parallel file, closed in order. All calls are collective.
class ParallelFile {
 public:
  ParallelFile(const comm::Communicator& world, const std::string& path, bool create)
      : access_(H5Pcreate(H5P_FILE_ACCESS)), transfer_(H5Pcreate(H5P_DATASET_XFER)) {
    H5Pset_fapl_mpio(access_, world.Handle(), MPI_INFO_NULL);
    H5Pset_dxpl_mpio(transfer_, H5FD_MPIO_COLLECTIVE);
    const hsize_t all = kEach * static_cast<hsize_t>(world.Size());
    space_ = H5Screate_simple(1, &all, nullptr);
    if (create) {
      file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access_);
      set_ = H5Dcreate2(file_, "numbers", H5T_STD_I64LE, space_, H5P_DEFAULT, H5P_DEFAULT,
                        H5P_DEFAULT);
    } else {
      file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access_);
      set_ = H5Dopen2(file_, "numbers", H5P_DEFAULT);
    }
  }
  ~ParallelFile() {
    H5Dclose(set_);
    H5Sclose(space_);
    H5Fclose(file_);
    H5Pclose(transfer_);
    H5Pclose(access_);
  }
  ParallelFile(const ParallelFile&) = delete;
  ParallelFile& operator=(const ParallelFile&) = delete;

  bool Open() const { return file_ >= 0 && set_ >= 0; }
  herr_t Write(hsize_t begin, const std::vector<std::int64_t>& values) {
    const hid_t memory = Choose(begin);
    const herr_t status =
        H5Dwrite(set_, H5T_NATIVE_INT64, memory, space_, transfer_, values.data());
    H5Sclose(memory);
    return status;
  }
  herr_t Read(hsize_t begin, std::vector<std::int64_t>& values) {
    const hid_t memory = Choose(begin);
    const herr_t status = H5Dread(set_, H5T_NATIVE_INT64, memory, space_, transfer_, values.data());
    H5Sclose(memory);
    return status;
  }

 private:
  // Elements [begin, begin + kEach) of the file; returns their place in memory.
  hid_t Choose(hsize_t begin) const {
    const hsize_t count = kEach;
    H5Sselect_hyperslab(space_, H5S_SELECT_SET, &begin, nullptr, &count, nullptr);
    return H5Screate_simple(1, &count, nullptr);
  }
  hid_t access_, transfer_;
  hid_t space_ = -1, file_ = -1, set_ = -1;
};

}  // namespace

std::string CheckFolder(const comm::Communicator& world, const std::string& folder) {
  constexpr double kLeastFree = 64.0 * (1 << 20), kMib = 1 << 20;
  const std::string path = folder + "/seen";
  world.Together([&] {
    if (!world.IsRoot()) return;
    std::ofstream file(path);
    file << "here\n";
    file.close();
    Expect(!file.fail(), fmt::format("{}: cannot be written: {}", path, ErrorText(errno)));
  });
  double free = 0;
  world.Together([&] {
    std::string word;
    std::ifstream(path) >> word;
    Expect(word == "here", fmt::format("{}: not seen by every rank", folder),
           "Name a folder of a file system that all nodes share: trireme --self-test FOLDER.");
    free = static_cast<double>(FreeBytes(folder));  // negative: unknown
    Expect(free < 0 || free >= kLeastFree,
           fmt::format("{}: only {:.0f} MiB free", folder, free / kMib), "64 MiB are needed.");
  });
  return free < 0 ? folder : fmt::format("{}, {:.0f} MiB free", folder, free / kMib);
}

std::string CheckHdf5(const comm::Communicator& world, const std::string& folder) {
  const std::string path = folder + "/parallel.h5";
  const auto rank = static_cast<hsize_t>(world.Rank()), size = static_cast<hsize_t>(world.Size());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  std::vector<std::int64_t> values(kEach);
  {
    ParallelFile file(world, path, true);
    world.Together([&] { Good(file.Open() ? 0 : -1, "making a parallel file"); });
    for (hsize_t i = 0; i < kEach; ++i) values[i] = ValueAt(rank * kEach + i);
    const herr_t status = file.Write(rank * kEach, values);
    world.Together([&] { Good(status, "a collective write"); });
  }
  world.Barrier();
  ParallelFile file(world, path, false);
  world.Together([&] { Good(file.Open() ? 0 : -1, "opening a parallel file"); });
  const hsize_t begin = (rank + 1) % size * kEach;
  std::fill(values.begin(), values.end(), 0);
  const herr_t status = file.Read(begin, values);
  world.Together([&] {
    Good(status, "a collective read");
    for (hsize_t i = 0; i < kEach; ++i) {
      Expect(values[i] == ValueAt(begin + i),
             "HDF5: what another rank wrote is read as something "
             "else");
    }
  });
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{}, {} KiB by each rank", major, minor, release,
                     kEach * sizeof(std::int64_t) / 1024);
}

}  // namespace trireme::tasks
