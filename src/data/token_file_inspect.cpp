// Inspection of a token file by one rank before all read it: attributes, sizes, types, vocabulary.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <hdf5.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "hdf5.hpp"
#include "token_arrays.hpp"
#include "token_codec.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// Reading text attributes of files that may be malicious. Fixed-length texts go through HDF5. A
// variable-length text lies in a heap of the file ("HDF5 File Format Specification", III.E): HDF5
// 1.10 allocates the length that the attribute claims, but copies the length that the heap claims.
// So this code reads the heap itself and compares the two lengths.

constexpr std::size_t kMaxAttributeText = std::size_t{64} << 10;  // bytes

// How an attribute stores a variable-length text: little-endian, without padding.
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

// A conversion that changes nothing, from variable-length text to a list: with it HDF5 hands out
// the stored reference. It declines conversions from text to text, which writing needs.
herr_t KeepStored(hid_t, hid_t to, H5T_cdata_t* state, std::size_t, std::size_t, std::size_t, void*,
                  void*, hid_t) {
  if (state->command != H5T_CONV_INIT) return 0;
  state->need_bkg = H5T_BKG_NO;
  return H5Tget_class(to) == H5T_VLEN ? 0 : -1;
}

// While an object lives, HDF5 converts variable-length texts to lists by KeepStored.
class StoredReferences {
 public:
  StoredReferences() {
    H5Tset_size(text_.Get(), H5T_VARIABLE);
    good_ = H5Tregister(H5T_PERS_SOFT, kName, text_.Get(), Type(), KeepStored) >= 0;
  }
  // -1: for all types. With the types named, HDF5 would keep using KeepStored between similar ones.
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

// Reads from a heap collection of the file, which has `file_bytes` bytes, the object that
// `reference` names. False if the file contradicts it.
bool ReadObject(int file, std::uint64_t file_bytes, const Reference& reference, std::string& text) {
  const auto read = [&](std::uint64_t offset, std::size_t count, char* to) {
    if (offset > file_bytes || count > file_bytes - offset) return false;
    const auto bytes = static_cast<std::int64_t>(count);
    return ReadAt(file, to, bytes, static_cast<std::int64_t>(offset)) == bytes;
  };
  constexpr std::size_t kHeadBytes = 16;  // header of a collection, and of each object in it
  std::array<char, kHeadBytes> head{};
  if (!read(reference.heap, kHeadBytes, head.data())) return false;
  const auto collection = Unpack<std::uint64_t>(head.data() + 8);
  const bool is_heap = std::memcmp(head.data(), "GCOL\1", 5) == 0;
  // The collection lies within the file, so the sums below are far from overflow.
  if (!is_heap || collection > file_bytes - reference.heap) return false;
  const std::uint64_t end = reference.heap + collection;
  // Each pass skips at least one header, so the file's size bounds the number of passes.
  for (std::uint64_t at = reference.heap + kHeadBytes; at < end;) {
    if (!read(at, kHeadBytes, head.data())) return false;
    const auto object = Unpack<std::uint16_t>(head.data());
    const auto bytes = Unpack<std::uint64_t>(head.data() + 8);
    if (object == 0 || bytes > end - at) return false;  // object 0 is free space, which comes last
    if (object == reference.object) {
      text.resize(reference.length);
      return bytes == reference.length && read(at + kHeadBytes, text.size(), text.data());
    }
    constexpr std::uint64_t kAlignment = 8;
    at += kHeadBytes + (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return false;
}

// Reads the text of an attribute that holds one string, of fixed or variable length. file,
// file_bytes: its file's descriptor and size. Returns what is wrong: another type, a text above
// kMaxAttributeText bytes, or damage; "" for a good text.
std::string ReadAttributeText(hid_t attribute, int file, std::int64_t file_bytes,
                              std::string& text) {
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  if (H5Tget_class(type.Get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.Get()) != 1) {
    return "is not one text";
  }
  const bool variable = H5Tis_variable_str(type.Get()) > 0;
  Reference reference;
  if (variable && !ReadReference(attribute, reference)) return "cannot be read: " + Hdf5Reason();
  const std::size_t bytes = variable ? reference.length : H5Tget_size(type.Get());
  if (bytes > kMaxAttributeText) {
    return fmt::format("claims {} bytes, more than {}", bytes, kMaxAttributeText);
  }
  text.assign(bytes, '\0');
  if (!variable && H5Aread(attribute, type.Get(), text.data()) < 0) {
    return "cannot be read: " + Hdf5Reason();
  }
  if (variable && bytes > 0 &&
      !ReadObject(file, static_cast<std::uint64_t>(file_bytes), reference, text)) {
    return fmt::format("its {} bytes are not in the file", bytes);
  }
  text.resize(std::min(text.find('\0'), bytes));
  return {};
}

// Opens a file for reads at byte offsets. Throws InputError unless it has HDF5's signature.
Descriptor OpenHdf5(const std::string& path) {
  if (path.empty()) {
    throw InputError("data.file is empty: it must name a token file",
                     "job.task = tokenize writes one.");
  }
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw InputError(path + ": this token file does not exist",
                     "job.task = tokenize writes it; data.file names it.");
  }
  if (!std::filesystem::status_known(status)) {
    throw InputError(fmt::format("{}: cannot be opened: {}", path, error.message()));
  }
  if (!std::filesystem::is_regular_file(status)) throw InputError(path + ": this is not a file");
  Descriptor file(path, O_RDONLY);
  if (!file.Valid()) {
    throw InputError(fmt::format("{}: cannot be opened: {}", path, ErrorText(errno)));
  }
  constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
  std::array<char, kSignature.size()> begin{};
  if (ReadAt(file.Get(), begin.data(), std::ssize(begin), 0) == 0) {
    throw InputError(path + ": this token file is empty (0 bytes)");
  }
  if (std::string_view(begin.data(), begin.size()) != kSignature) {
    throw InputError(path + ": this is not an HDF5 file",
                     "data.file names a file that job.task = tokenize has written.");
  }
  return file;
}

// What is wrong with the storage; "" if it is contiguous and within the file. To be called before
// Extent: to tell a virtual dataset's extent, HDF5 opens its source files.
std::string LayoutFault(const Hdf5Handle& set) {
  const Hdf5Handle creation(H5Dget_create_plist(set.Get()), H5Pclose);
  if (!creation.Valid()) return "its description cannot be read";
  switch (H5Pget_layout(creation.Get())) {
    case H5D_CONTIGUOUS:
      break;
    case H5D_CHUNKED:
      return "it is stored in chunks, not in one piece";
    case H5D_COMPACT:
      return "its storage is compact, not contiguous";
    case H5D_VIRTUAL:
      return "it is a virtual dataset, put together from others";
    default:
      return "its layout is unknown";
  }
  if (H5Pget_external_count(creation.Get()) != 0) return "it is stored in other files (external)";
  if (H5Pget_nfilters(creation.Get()) != 0) return "it is stored through filters";
  return {};
}

// Number of elements along the only dimension. On failure 0, and `fault` says what is wrong.
std::int64_t Extent(const Hdf5Handle& set, std::int64_t width, std::string& fault) {
  const Hdf5Handle space(H5Dget_space(set.Get()), H5Sclose);
  const H5S_class_t kind = H5Sget_simple_extent_type(space.Get());
  if (kind == H5S_NULL) {
    fault = "has no elements at all (a null dataspace)";
    return 0;
  }
  const int dimensions = H5Sget_simple_extent_ndims(space.Get());
  if (dimensions != 1) {
    fault = fmt::format("has {} dimensions, not 1", dimensions);
    return 0;
  }
  hsize_t extent = 0, largest = 0;
  if (H5Sget_simple_extent_dims(space.Get(), &extent, &largest) != 1) {
    fault = "its extent cannot be read";
  } else if (largest != extent) {
    fault = "its extent is not fixed";
  } else if (extent > static_cast<hsize_t>(std::numeric_limits<std::int64_t>::max() / width)) {
    fault = fmt::format("{} elements of {} bytes are too many", extent, width);
  }
  return fault.empty() ? static_cast<std::int64_t>(extent) : 0;
}

// Sets the array's width and byte order. Returns what is wrong with the element type; "": nothing.
std::string TypeFault(const Hdf5Handle& set, const std::vector<std::int64_t>& widths,
                      StoredArray& array) {
  const Hdf5Handle type(H5Dget_type(set.Get()), H5Tclose);
  // Compares whole types: a damaged type may have gaps, or a byte order that HDF5 cannot convert.
  struct Known {
    std::int64_t bytes;
    hid_t little, big;
  };
  const std::array<Known, 4> known = {{{1, H5T_STD_U8LE, H5T_STD_U8BE},
                                       {2, H5T_STD_U16LE, H5T_STD_U16BE},
                                       {4, H5T_STD_U32LE, H5T_STD_U32BE},
                                       {8, H5T_STD_U64LE, H5T_STD_U64BE}}};
  for (const auto& [bytes, little, big] : known) {
    const bool is_big = bytes > 1 && H5Tequal(type.Get(), big) > 0;
    if (!is_big && H5Tequal(type.Get(), little) <= 0 && H5Tequal(type.Get(), big) <= 0) continue;
    if (std::find(widths.begin(), widths.end(), bytes) == widths.end()) break;
    array.width = bytes;
    array.big_endian = is_big;
    return {};
  }
  std::vector<std::string> names;
  for (const std::int64_t each : widths) names.push_back(fmt::format("uint{}", 8 * each));
  return fmt::format("its elements are not {}", fmt::join(names, " or "));
}

// Sets the array's offset. Returns what is wrong with its storage; "": nothing.
std::string StorageFault(const Hdf5Handle& set, std::int64_t file_bytes, StoredArray& array) {
  const std::int64_t bytes = array.Bytes();
  if (bytes == 0) return {};  // then nothing is allocated
  const haddr_t offset = H5Dget_offset(set.Get());
  const hsize_t stored = H5Dget_storage_size(set.Get());
  if (offset == HADDR_UNDEF || stored == 0) {
    return fmt::format("its {} elements were never written: it has no storage", array.count);
  }
  if (stored != static_cast<hsize_t>(bytes)) {
    return fmt::format("{} bytes of storage expected for {} elements of {} bytes, {} found", bytes,
                       array.count, array.width, stored);
  }
  const auto end = static_cast<haddr_t>(file_bytes);
  array.offset = static_cast<std::int64_t>(offset);
  if (offset <= end && stored <= end - offset) return {};
  return fmt::format("its {} bytes at offset {} do not fit the file of {} bytes", bytes, offset,
                     file_bytes);
}

// Why `name` ("/train/tokens") cannot be opened safely in `file`: it is missing, or a link on the
// way to it is soft, external or user-defined. "" if all are hard links. Follows only hard links.
std::string LinkFault(hid_t file, const std::string& name) {
  for (std::size_t slash = name.find('/', 1);; slash = name.find('/', slash + 1)) {
    const std::string part = name.substr(0, slash);
    H5L_info_t link = {};
    if (H5Lget_info(file, part.c_str(), &link, H5P_DEFAULT) < 0) return "this dataset is missing";
    if (link.type == H5L_TYPE_SOFT) return part + " is a soft link, which is not followed";
    if (link.type == H5L_TYPE_EXTERNAL) {
      return part + " is a link to another file, which is not followed";
    }
    if (link.type != H5L_TYPE_HARD) return part + " is a link of an unknown kind";
    if (slash == std::string::npos) return {};
  }
}

// An HDF5 file opened by one rank to read attributes and datasets. Every fault is an InputError:
// "path: /train/tokens: what".
class Inspector {
 public:
  explicit Inspector(const std::string& path)
      : path_(path), raw_(OpenHdf5(path)), file_(Open(path)) {
    haddr_t end = 0;
    if (H5Fget_eoa(file_.Get(), &end) < 0) throw Complain("superblock", Hdf5Reason());
    bytes_ = static_cast<std::int64_t>(end);
    // StoredArray and ReadAttributeText rely on 8 bytes, the size that all libraries write.
    const Hdf5Handle creation(H5Fget_create_plist(file_.Get()), H5Pclose);
    std::size_t address = 0, length = 0;
    if (H5Pget_sizes(creation.Get(), &address, &length) < 0 || address != 8 || length != 8) {
      throw Complain("superblock", fmt::format("addresses of 8 bytes expected, {} found", address));
    }
  }

  int Raw() const { return raw_.Get(); }  // for reads at byte offsets

  Error Complain(const std::string& where, const std::string& what) const {
    return TokenFileError(path_, where, what);
  }

  // Whether dataset `path` exists; folder: the group that it is in.
  bool Has(const std::string& folder, const std::string& path) const {
    return H5Lexists(file_.Get(), folder.c_str(), H5P_DEFAULT) > 0 &&
           H5Lexists(file_.Get(), path.c_str(), H5P_DEFAULT) > 0;
  }

  bool HasAttribute(const std::string& name) const {
    return H5Aexists(file_.Get(), name.c_str()) > 0;
  }

  template <typename T>
  T Number(const std::string& name, hid_t memory_type) const {
    const Hdf5Handle attribute = Attribute(name);
    const Hdf5Handle type(H5Aget_type(attribute.Get()), H5Tclose);
    const Hdf5Handle space(H5Aget_space(attribute.Get()), H5Sclose);
    const H5T_class_t kind = H5Tget_class(type.Get());
    const bool is_number =
        kind == H5T_INTEGER || (kind == H5T_FLOAT && std::is_floating_point_v<T>);
    T value{};
    if (!is_number || H5Tget_size(type.Get()) > sizeof(std::int64_t) ||
        H5Sget_simple_extent_npoints(space.Get()) != 1 ||
        H5Aread(attribute.Get(), memory_type, &value) < 0) {
      throw Complain("attribute " + name, "is not a number");
    }
    return value;
  }
  std::int64_t Integer(const std::string& name) const {
    return Number<std::int64_t>(name, H5T_NATIVE_INT64);
  }

  std::string Text(const std::string& name) const {
    const Hdf5Handle attribute = Attribute(name);
    std::string text;
    const std::string fault = ReadAttributeText(attribute.Get(), raw_.Get(), bytes_, text);
    if (!fault.empty()) throw Complain("attribute " + name, fault);
    return text;
  }

  // Opens dataset `name`, checking it before any data are read or memory is allocated, since the
  // file may be malicious: it must be reached by hard links and have one fixed dimension, unsigned
  // integers of one of the `widths`, and contiguous storage without filters (which the writer and
  // h5py make at any size), fully allocated and within this file. array: receives what was found.
  Hdf5Handle Open(const std::string& name, const std::vector<std::int64_t>& widths,
                  StoredArray& array) const {
    const auto check = [&](const std::string& fault) {
      if (!fault.empty()) throw Complain(name, fault);
    };
    check(LinkFault(file_.Get(), name));
    Hdf5Handle set(H5Dopen2(file_.Get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    if (!set.Valid()) throw Complain(name, "cannot be opened as a dataset: " + Hdf5Reason());
    check(LayoutFault(set));
    check(TypeFault(set, widths, array));
    std::string fault;
    array.count = Extent(set, array.width, fault);
    check(fault);
    check(StorageFault(set, bytes_, array));
    return set;
  }

  // Reads a whole dataset. More than `most` elements are an error.
  template <typename T>
  std::vector<T> Read(const std::string& name, hid_t memory_type, std::int64_t most) const {
    StoredArray array;
    const Hdf5Handle set = Open(name, {sizeof(T)}, array);
    if (array.count > most) {
      throw Complain(name,
                     fmt::format("holds {} elements; at most {} are allowed", array.count, most));
    }
    std::vector<T> values(static_cast<std::size_t>(array.count));
    if (!values.empty() &&
        H5Dread(set.Get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
      throw InputError(fmt::format("{}: {}: cannot be read", path_, name), Hdf5Reason());
    }
    return values;
  }

 private:
  Hdf5Handle Attribute(const std::string& name) const {
    if (!HasAttribute(name)) throw Complain("attribute " + name, "is missing");
    Hdf5Handle attribute(H5Aopen(file_.Get(), name.c_str(), H5P_DEFAULT), H5Aclose);
    if (!attribute.Valid()) throw Complain("attribute " + name, "cannot be opened");
    return attribute;
  }

  static Hdf5Handle Open(const std::string& path) {
    Hdf5Handle file = OpenSerially(path);
    if (file.Valid()) return file;
    const std::string reason = Hdf5Reason();
    // HDF5's message tells the original length: "truncated file: eof = 2, ..., stored_eof = 3".
    constexpr std::string_view kWhole = "stored_eof = ";
    const std::size_t at = reason.find(kWhole);
    if (at == std::string::npos) {
      throw InputError(path + ": HDF5 cannot open this file", reason);
    }
    const auto whole = std::strtoull(reason.c_str() + at + kWhole.size(), nullptr, 10);
    const std::uintmax_t size = std::filesystem::file_size(path);
    throw InputError(fmt::format("{}: the file is cut off at offset {}: {} of {} bytes are missing",
                                 path, size, whole - std::min<std::uintmax_t>(size, whole), whole),
                     "Copy it again, or write it again with job.task = tokenize.");
  }

  std::string path_;
  Descriptor raw_;
  Hdf5Handle file_;
  std::int64_t bytes_ = 0;  // size by the superblock; HDF5 reads nothing beyond it
};

// Upper limits of a vocabulary's words and bytes, so that a damaged file cannot ask for too much
// memory: above any vocabulary, and small beside a model that has it.
constexpr std::int64_t kMaxWords = std::int64_t{1} << 24;
constexpr std::int64_t kMaxVocabularyBytes = std::int64_t{1} << 28;

// Names that a tokenizer's files may have.
constexpr std::array kTokenizerFiles = {"tokenizer.json", "vocab.json", "merges.txt",
                                        "tokenizer.model"};

// prefix: "source_" for the source's own vocabulary in a file of pairs; otherwise empty.
Vocabulary ReadVocabulary(const Inspector& file, const std::string& prefix) {
  const std::string folder = "/" + prefix + "vocabulary";
  const std::string where = folder + "/offsets";
  const auto bytes =
      file.Read<std::uint8_t>(folder + "/bytes", H5T_NATIVE_UINT8, kMaxVocabularyBytes);
  const auto offsets = file.Read<std::uint64_t>(where, H5T_NATIVE_UINT64, kMaxWords + 1);
  if (offsets.size() < 2) throw file.Complain(where, "the vocabulary is empty");
  if (offsets.front() != 0) throw file.Complain(where, "does not begin with 0");
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      throw file.Complain(
          where, fmt::format("falls from {} to {} at offset {}", offsets[i - 1], offsets[i], i));
    }
  }
  if (offsets.back() != bytes.size()) {
    throw file.Complain(where, fmt::format("ends with {}, but {}/bytes holds {} bytes",
                                           offsets.back(), folder, bytes.size()));
  }
  Vocabulary vocabulary;
  vocabulary.words.reserve(offsets.size() - 1);
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(offsets[i - 1]);
    const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(offsets[i]);
    vocabulary.words.emplace_back(begin, end);
  }
  return vocabulary;
}

// Files of the subword tokenizer, stored so that prompts can be encoded.
Files ReadTokenizer(const Inspector& file, const std::string& prefix) {
  const std::string folder = "/" + prefix + "tokenizer";
  Files files;
  for (const char* name : kTokenizerFiles) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (!file.Has(folder, path)) continue;
    const auto bytes = file.Read<std::uint8_t>(path, H5T_NATIVE_UINT8, kMaxVocabularyBytes);
    files[name].assign(bytes.begin(), bytes.end());
  }
  if (files.empty()) {
    throw file.Complain(folder, "holds none of tokenizer.json, vocab.json, tokenizer.model");
  }
  return files;
}

void CheckSpecials(const Inspector& file, const Vocabulary& vocabulary, const std::string& prefix) {
  const auto words = static_cast<std::int64_t>(vocabulary.words.size());
  const auto check = [&](const char* name, std::int64_t id, std::int64_t least) {
    if (id >= least && id < words) return;
    throw file.Complain(fmt::format("attribute {}{}", prefix, name),
                        fmt::format("{} is not an id of the {} words", id, words));
  };
  check("eos", vocabulary.eos, 0);
  check("unk", vocabulary.unk, -1);
}

// Finds an array in the file; width 0 for an optional one that is absent.
StoredArray Find(const Inspector& file, Split split, Array array, Side side) {
  const StoredArray none{.split = split, .array = array, .side = side};
  if (array == Array::kMask && side != Side::kText) return none;
  const std::string name = none.Path();
  const bool optional = array != Array::kTokens && side == Side::kText;
  if (optional && !file.Has(fmt::format("/{}", NameOf(split)), name)) return none;
  StoredArray found = none;
  array == Array::kTokens      ? file.Open(name, {2, 4}, found)
  : array == Array::kDocuments ? file.Open(name, {8}, found)
                               : file.Open(name, {1}, found);
  return array == Array::kDocuments && found.count == 0 ? none : found;
}

// Finds the arrays of all splits and checks their lengths.
void FindArrays(const Inspector& file, TokenLayout& layout) {
  std::int64_t bytes = 0;  // memory for all arrays
  for (const Split split : kSplits) {
    for (const Array array : kArrays) {
      StoredArray& found =
          layout.arrays[static_cast<std::size_t>(split)][static_cast<std::size_t>(array)];
      found = Find(file, split, array, layout.side);
      const std::string name = found.Path();
      // Each array fits the file, whose size is below 2^63, but the sum may overflow.
      if (__builtin_add_overflow(bytes, found.Bytes() + kTokenAlignment, &bytes)) {
        throw file.Complain(name, "its elements and those before are too many for memory");
      }
      const std::int64_t tokens = layout.Tokens(split);
      found.limit = array == Array::kTokens ? layout.vocabulary.words.size()
                    : array == Array::kMask ? 2
                                            : static_cast<std::uint64_t>(tokens);
      constexpr std::int64_t kLeast = 2;  // a first token, and one target
      if (array == Array::kTokens && tokens < kLeast) {
        throw file.Complain(name,
                            fmt::format("holds {} tokens; at least {} are needed", tokens, kLeast));
      }
      if (array == Array::kDocuments && layout.side != Side::kText && !found.There()) {
        throw file.Complain(name, "is empty: there are no pairs");
      }
      const bool too_many = array == Array::kDocuments && found.count > tokens;
      const bool unequal = array == Array::kMask && found.There() && found.count != tokens;
      if (too_many || unequal) {
        throw file.Complain(name,
                            fmt::format("holds {} elements for {} tokens", found.count, tokens));
      }
    }
  }
}

bool SaysPairs(const Inspector& file) {
  return file.HasAttribute("contents") && file.Text("contents") == kPairContents;
}

// Throws InputError unless the file holds what `side` asks for: single texts or pairs.
void CheckContents(const Inspector& file, const std::string& path, Side side) {
  const bool pairs = SaysPairs(file);
  if (pairs == (side != Side::kText)) return;
  throw InputError(
      path + (pairs
                  ? ": holds pairs of source and target texts; a language model needs a file of "
                    "single texts: tokenize.train in place of tokenize.source; or translate them: "
                    "model.kind = encoder_decoder"
                  : ": holds single texts; a file of pairs is needed, which tokenize.source and "
                    "tokenize.target make; or model.kind = decoder"));
}

}  // namespace

const char* NameOf(Split split) {
  constexpr std::array kNames = {"train", "valid", "test"};
  return kNames.at(static_cast<std::size_t>(split));
}

std::string PathOf(Split split, Array array, Side side) {
  using Names = std::array<const char*, 3>;
  constexpr std::array<Names, 3> kNames = {Names{"tokens", "documents", "mask"},
                                           Names{"source", "source_offsets", "source_mask"},
                                           Names{"target", "target_offsets", "target_mask"}};
  const Names& names = kNames.at(static_cast<std::size_t>(side));
  return fmt::format("/{}/{}", NameOf(split), names.at(static_cast<std::size_t>(array)));
}

bool HoldsPairs(const std::string& path) {
  const QuietHdf5 quiet;
  return SaysPairs(Inspector(path));
}

TokenLayout InspectTokenFile(const std::string& path, Side side) {
  const QuietHdf5 quiet;
  const Inspector file(path);
  const std::int64_t format = file.Integer("format");
  if (format != kTokenFormat) {
    throw file.Complain("attribute format",
                        fmt::format("is {}; this program reads format {}", format, kTokenFormat));
  }
  CheckContents(file, path, side);
  TokenLayout layout;
  layout.side = side;
  layout.two_vocabularies = side != Side::kText && file.HasAttribute("source_tokenizer");
  const std::string prefix = side == Side::kSource && layout.two_vocabularies ? "source_" : "";
  layout.tokenizer = file.Text(prefix + "tokenizer");
  layout.source_sha256 = file.Text("source_sha256");
  if (file.HasAttribute("entropy_rate")) {
    layout.entropy_rate = file.Number<double>("entropy_rate", H5T_NATIVE_DOUBLE);
  }
  layout.vocabulary = ReadVocabulary(file, prefix);
  layout.vocabulary.eos = file.Integer(prefix + "eos");
  layout.vocabulary.unk = file.Integer(prefix + "unk");
  CheckSpecials(file, layout.vocabulary, prefix);
  if (IsSubword(layout.tokenizer)) layout.tokenizer_files = ReadTokenizer(file, prefix);
  FindArrays(file, layout);
  TakeSample(path, file.Raw(), layout);
  return layout;
}

void Broadcast(const comm::Communicator& world, std::vector<std::string>& texts) {
  std::string joined;
  std::vector<std::int64_t> lengths;
  for (const std::string& text : texts) {
    joined += text;
    lengths.push_back(std::ssize(text));
  }
  std::int64_t count = std::ssize(lengths);
  world.Broadcast(&count, sizeof count);
  lengths.resize(static_cast<std::size_t>(count));
  world.Broadcast(lengths.data(), count * static_cast<std::int64_t>(sizeof count));
  joined = world.Broadcast(joined);
  texts.clear();
  for (std::size_t begin = 0; const std::int64_t length : lengths) {
    texts.push_back(joined.substr(begin, static_cast<std::size_t>(length)));
    begin += texts.back().size();
  }
}

void Broadcast(const comm::Communicator& world, TokenLayout& layout) {
  static_assert(std::is_trivially_copyable_v<LayoutNumbers>);
  world.Broadcast(static_cast<LayoutNumbers*>(&layout), sizeof(LayoutNumbers));
  world.Broadcast(&layout.vocabulary.eos, sizeof layout.vocabulary.eos);
  world.Broadcast(&layout.vocabulary.unk, sizeof layout.vocabulary.unk);
  for (std::string* text : {&layout.sample, &layout.tokenizer, &layout.source_sha256}) {
    *text = world.Broadcast(*text);
  }
  for (const char* name : kTokenizerFiles) {
    std::string& contents = layout.tokenizer_files[name];
    contents = world.Broadcast(contents);
    if (contents.empty()) layout.tokenizer_files.erase(name);
  }
  Broadcast(world, layout.vocabulary.words);
}

}  // namespace trireme::data
