// Diagnosis of a cut-off HDF5 file. HDF5 refuses to open one, so it gets an image in memory: the
// file's pages, and zeros for missing bytes.
#include "cut_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <limits>

#include "hdf5.hpp"
#include "plain_dataset.hpp"
#include "token_layout.hpp"

namespace trireme::data {

namespace {

// The mapped image; unmapped at the end of the scope.
class Image {
 public:
  Image(const std::string& path, std::size_t there, std::size_t whole) : bytes_(whole) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    // Read-only: what HDF5 does not touch costs no memory.
    void* zeros =
        ::mmap(nullptr, whole, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros != MAP_FAILED) {
      start_ = zeros;
      good_ = ::mmap(zeros, there, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) != MAP_FAILED;
    }
    ::close(file);
  }
  ~Image() {
    if (start_ != nullptr) ::munmap(start_, bytes_);
  }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  bool Good() const { return good_; }
  void* Start() const { return start_; }
  std::size_t Bytes() const { return bytes_; }

 private:
  void* start_ = nullptr;
  std::size_t bytes_;
  bool good_ = false;
};

// HDF5 would copy an image several times; told to "allocate" and "copy" by these, it uses the one
// that is there (H5Pset_file_image_callbacks). Its user data is the image's start.
void* TakeImage(std::size_t, H5FD_file_image_op_t, void* image) { return image; }
void* KeepBytes(void* target, const void*, std::size_t, H5FD_file_image_op_t, void*) {
  return target;
}
void* KeepSize(void*, std::size_t, H5FD_file_image_op_t, void*) { return nullptr; }  // never grows
herr_t KeepImage(void*, H5FD_file_image_op_t, void*) { return 0; }
void* ShareUserData(void* image) { return image; }
herr_t KeepUserData(void*) { return 0; }

Hdf5Handle OpenImage(const std::string& name, const Image& image) {
  constexpr std::size_t kGrowth = 4096;  // bytes; unused
  const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
  H5Pset_fapl_core(access.Get(), kGrowth, false);
  H5FD_file_image_callbacks_t callbacks = {TakeImage,     KeepBytes,    KeepSize,     KeepImage,
                                           ShareUserData, KeepUserData, image.Start()};
  H5Pset_file_image_callbacks(access.Get(), &callbacks);
  H5Pset_file_image(access.Get(), image.Start(), image.Bytes());
  return {H5Fopen(name.c_str(), H5F_ACC_RDONLY, access.Get()), H5Fclose};
}

}  // namespace

std::string FirstCutDataset(const std::string& path, std::uint64_t there, std::uint64_t whole) {
  const QuietHdf5 quiet;
  const Image image(path, there, whole);
  if (!image.Good()) return {};
  // HDF5 wants a name under which there is no file.
  const Hdf5Handle file = OpenImage(path + " in memory", image);
  if (!file.Valid()) return {};
  std::string first;
  std::uint64_t first_offset = std::numeric_limits<std::uint64_t>::max();
  for (const std::string& name :
       {std::string("/vocabulary/bytes"), std::string("/vocabulary/offsets"),
        PathOf(Split::kTrain, Array::kTokens), PathOf(Split::kValid, Array::kTokens),
        PathOf(Split::kTest, Array::kTokens), PathOf(Split::kTrain, Array::kTokens, Side::kSource),
        PathOf(Split::kTrain, Array::kTokens, Side::kTarget),
        PathOf(Split::kValid, Array::kTokens, Side::kSource),
        PathOf(Split::kValid, Array::kTokens, Side::kTarget),
        PathOf(Split::kTest, Array::kTokens, Side::kSource),
        PathOf(Split::kTest, Array::kTokens, Side::kTarget)}) {
    if (!LinkFault(file.Get(), name).empty()) continue;
    const Hdf5Handle set(H5Dopen2(file.Get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    if (!set.Valid()) continue;
    const haddr_t offset = H5Dget_offset(set.Get());
    if (offset == HADDR_UNDEF || offset >= first_offset) continue;
    if (offset <= there && H5Dget_storage_size(set.Get()) <= there - offset) continue;
    first = name;
    first_offset = offset;
  }
  return first;
}

}  // namespace trireme::data
