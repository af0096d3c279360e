// Reading attribute texts: fixed ones through HDF5, those of variable length from the global heap
// ("HDF5 File Format Specification", III.E).
#include "attribute_text.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>

#include "hdf5.hpp"
#include "positioned_file.hpp"

namespace trireme::data {

namespace {

// A text of variable length as an attribute stores it: little-endian, without padding.
struct Reference {
  std::uint32_t length = 0;
  std::uint64_t heap = 0;  // offset of a heap collection in the file
  std::uint32_t object = 0;
};
constexpr std::size_t kReferenceBytes = 16;
static_assert(sizeof(hvl_t) == kReferenceBytes);

template <typename T>
T Unpack(const char* bytes) {
  T value{};
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Conversion that changes nothing, of a text of variable length (or any list) to a list: HDF5 then
// hands out the stored reference. Not offered to conversions of texts to texts, those of writing.
herr_t KeepStored(hid_t, hid_t to, H5T_cdata_t* state, std::size_t, std::size_t, std::size_t, void*,
                  void*, hid_t) {
  if (state->command != H5T_CONV_INIT) return 0;
  state->need_bkg = H5T_BKG_NO;
  return H5Tget_class(to) == H5T_VLEN ? 0 : -1;
}

// While it lives, HDF5 converts texts of variable length to lists by KeepStored.
class StoredReferences {
 public:
  StoredReferences() {
    H5Tset_size(text_.Get(), H5T_VARIABLE);
    good_ = H5Tregister(H5T_PERS_SOFT, kName, text_.Get(), Type(), KeepStored) >= 0;
  }
  // For all types: with named ones, HDF5 would go on using KeepStored between others like them.
  ~StoredReferences() { H5Tunregister(H5T_PERS_SOFT, kName, -1, -1, KeepStored); }
  StoredReferences(const StoredReferences&) = delete;
  StoredReferences& operator=(const StoredReferences&) = delete;

  bool Good() const { return good_; }
  hid_t Type() const { return raw_.Get(); }

 private:
  static constexpr const char* kName = "stored references";
  Hdf5Handle text_{H5Tcopy(H5T_C_S1), H5Tclose};
  Hdf5Handle raw_{H5Tvlen_create(H5T_NATIVE_UINT8), H5Tclose};
  bool good_ = false;
};

bool ReadReference(hid_t attribute, Reference& reference) {
  std::array<char, kReferenceBytes> stored{};
  const StoredReferences raw;
  if (!raw.Good() || H5Aget_storage_size(attribute) != kReferenceBytes ||
      H5Aread(attribute, raw.Type(), stored.data()) < 0) {
    return false;
  }
  reference = {Unpack<std::uint32_t>(stored.data()), Unpack<std::uint64_t>(stored.data() + 4),
               Unpack<std::uint32_t>(stored.data() + 12)};
  return true;
}

// Parts of the file; every read is checked against its end.
class Bytes {
 public:
  Bytes(int file, std::int64_t file_bytes)
      : file_(file), end_(static_cast<std::uint64_t>(file_bytes)) {}

  std::uint64_t End() const { return end_; }

  bool Read(std::uint64_t offset, std::size_t count, char* to) const {
    if (offset > end_ || count > end_ - offset) return false;
    const std::span room(reinterpret_cast<std::byte*>(to), count);
    return ReadAt(file_, static_cast<std::int64_t>(offset), room) == std::ssize(room);
  }

 private:
  int file_;
  std::uint64_t end_;
};

// The referenced object of a heap collection. False if the file says something else than the
// reference.
bool ReadObject(const Bytes& file, const Reference& reference, std::string& text) {
  constexpr std::size_t kHeadBytes = 16;  // of a collection, and of each object in it
  std::array<char, kHeadBytes> head{};
  if (!file.Read(reference.heap, kHeadBytes, head.data())) return false;
  const auto collection = Unpack<std::uint64_t>(head.data() + 8);
  const bool is_heap = std::memcmp(head.data(), "GCOL\1", 5) == 0;
  // Within the file: sums below are then far from overflow.
  if (!is_heap || collection > file.End() - reference.heap) return false;
  const std::uint64_t end = reference.heap + collection;
  // At least one head each, so that the file's end bounds the number of turns.
  for (std::uint64_t at = reference.heap + kHeadBytes; at < end;) {
    if (!file.Read(at, kHeadBytes, head.data())) return false;
    const auto object = Unpack<std::uint16_t>(head.data());
    const auto bytes = Unpack<std::uint64_t>(head.data() + 8);
    if (object == 0 || bytes > end - at) return false;  // 0: free space, the last of all
    if (object == reference.object) {
      text.resize(reference.length);
      return bytes == reference.length && file.Read(at + kHeadBytes, text.size(), text.data());
    }
    constexpr std::uint64_t kAlignment = 8;
    at += kHeadBytes + (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return false;
}

std::string ReadVariable(hid_t attribute, std::int64_t file_bytes, std::string& fault) {
  Reference reference;
  std::string text;
  if (!ReadReference(attribute, reference)) {
    fault = "cannot be read: " + Hdf5Reason();
  } else if (reference.length > kMaxAttributeText) {
    fault = fmt::format("claims {} bytes, more than {}", reference.length, kMaxAttributeText);
  } else if (reference.length > 0) {
    const Bytes file(DescriptorOf(attribute), file_bytes);
    if (!ReadObject(file, reference, text)) {
      fault = fmt::format("its {} bytes are not in the file", reference.length);
    }
  }
  return text;
}

std::string ReadFixed(hid_t attribute, const Hdf5Handle& type, std::string& fault) {
  const std::size_t bytes = H5Tget_size(type.Get());
  if (bytes > static_cast<std::size_t>(kMaxAttributeText)) {
    fault = fmt::format("claims {} bytes, more than {}", bytes, kMaxAttributeText);
    return {};
  }
  std::string text(bytes, '\0');
  if (H5Aread(attribute, type.Get(), text.data()) < 0) fault = "cannot be read: " + Hdf5Reason();
  return text;
}

}  // namespace

std::string ReadAttributeText(hid_t attribute, std::int64_t file_bytes, std::string& fault) {
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  if (H5Tget_class(type.Get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.Get()) != 1) {
    fault = "is not one text";
    return {};
  }
  std::string text = H5Tis_variable_str(type.Get()) > 0 ? ReadVariable(attribute, file_bytes, fault)
                                                        : ReadFixed(attribute, type, fault);
  if (!fault.empty()) return {};
  return text.substr(0, text.find('\0'));
}

}  // namespace trireme::data
