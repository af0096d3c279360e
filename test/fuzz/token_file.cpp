// Fuzz target: what a token file says of itself. HDF5 is not made for hostile bytes and not ours to
// repair, so that the input describes a file, which HDF5 writes; hostile_token_file.hpp says what
// of it may be wrong.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz.hpp"
#include "hdf5.hpp"
#include "token_layout.hpp"

namespace trireme::fuzz {

// Token files with every part chosen by fuzz input, as images in memory.

// Bytes of an HDF5 file that HDF5 itself has written. Choices of 0 make a good token file; others
// leave out or replace datasets (links, layouts, filters, types, extents, values) and attributes
// (types, spaces, values), then change bytes that HDF5 leaves to our own code, or does not read
// before our own code has: the end of the file in the superblock, the file's length, references to
// texts and the heap that holds them.
std::string HostileTokenFile(Choices& choices);

// HostileTokenFile: the file is made by HDF5's core driver, which keeps it in memory.

namespace {

using data::Hdf5Handle;
using data::MakeProperties;

constexpr std::size_t kSuperblockEnd = 40;  // offset of the end-of-file address, version 0

Hdf5Handle FileType(Choices& choices, hid_t good) {
  const std::array<hid_t, 12> plain = {
      good,          H5T_STD_U8LE,  H5T_STD_U16LE, H5T_STD_U16BE,  H5T_STD_U32LE,  H5T_STD_U64LE,
      H5T_STD_U64BE, H5T_STD_I16LE, H5T_STD_I64LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_STD_B16LE};
  Hdf5Handle type(H5Tcopy(plain.at(choices.Of(plain.size()))), H5Tclose);
  // Numbers with gaps.
  if (choices.Of(4) == 3) H5Tset_precision(type.Get(), 1 + choices.Of(16));
  if (choices.Of(4) == 3) H5Tset_offset(type.Get(), choices.Of(8));
  if (choices.Of(8) == 7) return {H5Tvlen_create(type.Get()), H5Tclose};
  if (choices.Of(8) == 7) return {H5Tenum_create(H5T_STD_U16LE), H5Tclose};
  return type;
}

Hdf5Handle Space(Choices& choices, hsize_t good) {
  switch (choices.Of(6)) {
    case 0:
      return {H5Screate_simple(1, &good, nullptr), H5Sclose};
    case 1:
      return {H5Screate(H5S_NULL), H5Sclose};
    case 2:
      return {H5Screate(H5S_SCALAR), H5Sclose};
    case 3: {
      const std::array<hsize_t, 2> both = {choices.Number() >> 32, 2};
      return {H5Screate_simple(2, both.data(), nullptr), H5Sclose};
    }
    case 4: {
      const hsize_t extent = choices.Of(64), most = H5S_UNLIMITED;
      return {H5Screate_simple(1, &extent, &most), H5Sclose};
    }
    default: {
      const hsize_t extent = choices.Number();
      return {H5Screate_simple(1, &extent, nullptr), H5Sclose};
    }
  }
}

Hdf5Handle Creation(Choices& choices) {
  Hdf5Handle list = MakeProperties(H5P_DATASET_CREATE);
  const hsize_t piece = 1 + choices.Of(4);
  switch (choices.Of(6)) {
    case 1:
      H5Pset_chunk(list.Get(), 1, &piece);
      break;
    case 2:
      H5Pset_chunk(list.Get(), 1, &piece);
      H5Pset_deflate(list.Get(), 9);
      break;
    case 3:
      H5Pset_layout(list.Get(), H5D_COMPACT);
      break;
    case 4:
      H5Pset_external(list.Get(), "/nowhere/no such file", 0, H5F_UNLIMITED);
      break;
    case 5: {
      const Hdf5Handle space(H5Screate_simple(1, &piece, nullptr), H5Sclose);
      H5Pset_virtual(list.Get(), space.Get(), "/nowhere/no such file", "/a", space.Get());
      break;
    }
    default:
      break;
  }
  return list;
}

class Maker {
 public:
  Maker(hid_t file, Choices& choices) : file_(file), choices_(choices) {}

  void Dataset(const char* name, hid_t type, std::vector<std::uint64_t> values) {
    constexpr hsize_t kMostWritten = 1024;  // elements; larger ones have no storage
    const std::size_t kind = choices_.Of(8);
    if (kind == 5) return;
    if (kind == 6) {
      H5Lcreate_soft("/train/tokens", file_, name, Links().Get(), H5P_DEFAULT);
      return;
    }
    if (kind == 7) {
      H5Lcreate_external("/nowhere/no such file", "/a", file_, name, Links().Get(), H5P_DEFAULT);
      return;
    }
    Hdf5Handle stored(H5Tcopy(type), H5Tclose);
    if (kind == 1) stored = FileType(choices_, type);
    hsize_t good = values.size();
    if (kind == 4) {  // other values, and another number of them
      values.resize(choices_.Of(32));
      for (std::uint64_t& value : values) value = choices_.Number();
      good = values.size();
    }
    const Hdf5Handle creation = kind == 2 ? Creation(choices_) : MakeProperties(H5P_DATASET_CREATE);
    Hdf5Handle space(H5Screate_simple(1, &good, nullptr), H5Sclose);
    if (kind == 3) space = Space(choices_, good);
    const Hdf5Handle set(H5Dcreate2(file_, name, stored.Get(), space.Get(), Links().Get(),
                                    creation.Get(), H5P_DEFAULT),
                         H5Dclose);
    const hssize_t count = set.Valid() ? H5Sget_simple_extent_npoints(space.Get()) : 0;
    if (count <= 0 || count > static_cast<hssize_t>(kMostWritten)) return;
    values.resize(static_cast<std::size_t>(count));
    H5Dwrite(set.Get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }

  void Number(const char* name, std::int64_t value) {
    const std::size_t kind = choices_.Of(4);
    if (kind == 1) return;
    Hdf5Handle stored(H5Tcopy(H5T_NATIVE_INT64), H5Tclose);
    if (kind == 2) stored = FileType(choices_, H5T_NATIVE_INT64);
    if (kind == 3) value = static_cast<std::int64_t>(choices_.Number());
    Attribute(name, stored, H5T_NATIVE_INT64, &value);
  }

  void Text(const char* name, const std::string& good) {
    const std::size_t kind = choices_.Of(4);
    if (kind == 1) return;
    std::string value = good;
    const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    if (kind == 3) {  // of a fixed length, or a number
      if (choices_.Yes()) return Number(name, 1);
      value.resize(1 + static_cast<std::size_t>(choices_.Number() % 65'000), 'x');
      H5Tset_size(type.Get(), value.size());
      H5Tset_strpad(type.Get(), choices_.Yes() ? H5T_STR_SPACEPAD : H5T_STR_NULLTERM);
      return Attribute(name, type, type.Get(), value.data());
    }
    if (kind == 2) value.assign(choices_.Of(200), 'x');
    H5Tset_size(type.Get(), H5T_VARIABLE);
    const char* text = value.c_str();
    Attribute(name, type, type.Get(), &text);
  }

 private:
  static Hdf5Handle Links() {
    Hdf5Handle links = MakeProperties(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links.Get(), 1);
    return links;
  }

  void Attribute(const char* name, const Hdf5Handle& stored, hid_t memory, const void* value) {
    // Several of it: no value is written.
    const hsize_t two = 2;
    const bool several = choices_.Of(16) == 15;
    const Hdf5Handle space(several ? H5Screate_simple(1, &two, nullptr) : H5Screate(H5S_SCALAR),
                           H5Sclose);
    const Hdf5Handle made(
        H5Acreate2(file_, name, stored.Get(), space.Get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (made.Valid() && !several) H5Awrite(made.Get(), memory, value);
  }

  hid_t file_;
  Choices& choices_;
};

std::string ImageOf(hid_t file) {
  H5Fflush(file, H5F_SCOPE_LOCAL);
  const ssize_t bytes = H5Fget_file_image(file, nullptr, 0);
  Require(bytes > 0, "HDF5 gives no image of a file of its own");
  std::string image(static_cast<std::size_t>(bytes), '\0');
  H5Fget_file_image(file, image.data(), image.size());
  return image;
}

std::string Made(Choices& choices) {
  constexpr std::size_t kGrowth = 4096;
  const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
  H5Pset_fapl_core(access.Get(), kGrowth, false);
  if (choices.Yes()) H5Pset_libver_bounds(access.Get(), H5F_LIBVER_V18, H5F_LIBVER_V18);
  const Hdf5Handle file(H5Fcreate("in memory", H5F_ACC_TRUNC, H5P_DEFAULT, access.Get()), H5Fclose);
  Require(file.Valid(), "HDF5 cannot make a file in memory");
  Maker maker(file.Get(), choices);
  maker.Number("format", 1);
  maker.Text("tokenizer", "word");
  maker.Text("source_sha256", std::string(64, 'a'));
  maker.Number("eos", 0);
  maker.Number("unk", 1);
  if (choices.Yes()) maker.Number("entropy_rate", 1);
  maker.Dataset("/vocabulary/bytes", H5T_STD_U8LE, {'a', 'b', 'c'});
  maker.Dataset("/vocabulary/offsets", H5T_STD_U64LE, {0, 1, 2, 3});
  maker.Dataset("/train/tokens", H5T_STD_U16LE, {0, 1, 2, 1});
  maker.Dataset("/valid/tokens", H5T_STD_U16LE, {0, 1, 2});
  maker.Dataset("/test/tokens", H5T_STD_U32LE, {0, 1});
  return ImageOf(file.Get());
}

// `bytes` of a number at `at`, if there is room.
void Put(std::string& image, std::size_t at, std::uint64_t value, std::size_t bytes) {
  if (at > image.size() || bytes > image.size() - at) return;
  std::memcpy(image.data() + at, &value, bytes);
}

void Patch(std::string& image, Choices& choices) {
  const std::size_t heap = image.find("GCOL");
  switch (choices.Of(5)) {
    case 1:  // the end of the file as the superblock has it, and a cut
      if (choices.Yes()) Put(image, kSuperblockEnd, choices.Number(), 8);
      image.resize(static_cast<std::size_t>(choices.Number() % (image.size() + 1)));
      break;
    case 2:  // a longer file
      image.append(choices.Of(64), '\0');
      break;
    case 3:  // the heap of texts: its own head, and those of its objects
      if (heap != std::string::npos) Put(image, heap + 8 * choices.Of(64), choices.Number(), 8);
      break;
    case 4: {  // a reference to a text: 4 bytes of length, 8 of the heap's offset, 4 of the object
      if (heap == std::string::npos) break;
      const std::uint64_t offset = heap;
      const std::uint32_t length = choices.Yes() ? 64 : 4;  // source_sha256, tokenizer
      std::string reference(sizeof length + sizeof offset, '\0');
      std::memcpy(reference.data(), &length, sizeof length);
      std::memcpy(reference.data() + sizeof length, &offset, sizeof offset);
      const std::size_t at = image.find(reference);
      if (at == std::string::npos) break;
      const std::array<std::array<std::size_t, 2>, 3> parts = {{{0, 4}, {4, 8}, {12, 4}}};
      const auto [begin, bytes] = parts.at(choices.Of(parts.size()));
      Put(image, at + begin, choices.Number(), bytes);
      break;
    }
    default:
      break;
  }
}

}  // namespace

std::string HostileTokenFile(Choices& choices) {
  std::string image = Made(choices);
  for (std::size_t patches = choices.Of(4); patches > 0; --patches) Patch(image, choices);
  return image;
}

namespace {

// A file of this process in TMPDIR, written over and over. HDF5 asks for the real path: an unnamed
// file in memory has none.
class ScratchFile {
 public:
  ScratchFile() {
    const char* folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr ? folder : "/tmp") + "/fuzz_token_file_" +
            std::to_string(getpid()) + ".h5";
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    Require(file_ >= 0, path_ + " cannot be made");
  }
  ~ScratchFile() {
    ::close(file_);
    ::unlink(path_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& Path() const { return path_; }
  void Fill(const std::string& bytes) const {
    const bool filled = ::ftruncate(file_, 0) == 0 &&
                        ::pwrite(file_, bytes.data(), bytes.size(), 0) == std::ssize(bytes);
    Require(filled, path_ + " cannot be filled");
  }

 private:
  std::string path_;
  int file_ = -1;
};

void Try(const std::string& path, std::int64_t file_bytes) {
  const data::TokenLayout layout = data::InspectTokenFile(path);
  const auto words = std::ssize(layout.vocabulary.words);
  Require(words >= 1 && layout.vocabulary.eos >= 0 && layout.vocabulary.eos < words &&
              layout.vocabulary.unk >= -1 && layout.vocabulary.unk < words,
          "ids outside the vocabulary");
  for (const data::Split split : data::kSplits) {
    const data::StoredArray& tokens = layout.Of(split, data::Array::kTokens);
    Require((tokens.width == 2 || tokens.width == 4) && tokens.count >= 2,
            "too few tokens, or too wide");
    for (const data::Array array : data::kArrays) {
      const data::StoredArray& stored = layout.Of(split, array);
      if (!stored.There()) continue;
      Require(stored.offset >= 0 && stored.offset <= file_bytes &&
                  stored.count <= (file_bytes - stored.offset) / stored.width,
              "elements that the file does not hold");
      Require(stored.count <= tokens.count, "more elements than tokens");
    }
  }
}

}  // namespace

int FuzzTokenFile(const std::uint8_t* data, std::size_t size) {
  static const ScratchFile file;
  const data::QuietHdf5 quiet;
  Choices choices(data, size);
  const std::string bytes = HostileTokenFile(choices);
  file.Fill(bytes);
  const bool accepted = Accepted([&] { Try(file.Path(), std::ssize(bytes)); });
  Require(accepted || size > 0, "the good token file was refused");
  return 0;
}

}  // namespace trireme::fuzz
