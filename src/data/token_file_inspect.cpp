// Inspection of a token file by one rank before all read it: attributes, sizes, types, vocabulary.
#include <fmt/format.h>
#include <hdf5.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

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

constexpr std::int64_t kMaxAttributeText = std::int64_t{64} << 10;  // bytes

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

// Reads parts of the file; refuses to read beyond its end.
class Bytes {
 public:
  Bytes(int file, std::int64_t file_bytes)
      : file_(file), end_(static_cast<std::uint64_t>(file_bytes)) {}

  std::uint64_t End() const { return end_; }

  bool Read(std::uint64_t offset, std::size_t count, char* to) const {
    if (offset > end_ || count > end_ - offset) return false;
    const auto bytes = static_cast<std::int64_t>(count);
    return ReadAt(file_, to, bytes, static_cast<std::int64_t>(offset)) == bytes;
  }

 private:
  int file_;
  std::uint64_t end_;
};

// Reads from a heap collection the object that `reference` names. False if the file contradicts it.
bool ReadObject(const Bytes& file, const Reference& reference, std::string& text) {
  constexpr std::size_t kHeadBytes = 16;  // header of a collection, and of each object in it
  std::array<char, kHeadBytes> head{};
  if (!file.Read(reference.heap, kHeadBytes, head.data())) return false;
  const auto collection = Unpack<std::uint64_t>(head.data() + 8);
  const bool is_heap = std::memcmp(head.data(), "GCOL\1", 5) == 0;
  // The collection lies within the file, so the sums below are far from overflow.
  if (!is_heap || collection > file.End() - reference.heap) return false;
  const std::uint64_t end = reference.heap + collection;
  // Each turn skips at least one header, so the file's size bounds the number of turns.
  for (std::uint64_t at = reference.heap + kHeadBytes; at < end;) {
    if (!file.Read(at, kHeadBytes, head.data())) return false;
    const auto object = Unpack<std::uint16_t>(head.data());
    const auto bytes = Unpack<std::uint64_t>(head.data() + 8);
    if (object == 0 || bytes > end - at) return false;  // object 0 is free space, which comes last
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

// The text of an attribute that holds one string, of fixed or variable length. attribute: in a file
// opened by OpenSerially; file_bytes: its size. Sets `fault` to a message for another type, a text
// above kMaxAttributeText bytes, or damage.
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

// Throws InputError unless `path` names a file with HDF5's signature.
void RequireHdf5(const std::string& path) {
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
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw InputError(
        fmt::format("{}: cannot be opened: {}", path, std::generic_category().message(errno)));
  }
  constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
  std::array<char, kSignature.size()> begin{};
  file.read(begin.data(), begin.size());
  if (file.gcount() == 0) throw InputError(path + ": this token file is empty (0 bytes)");
  if (std::string_view(begin.data(), begin.size()) != kSignature) {
    throw InputError(path + ": this is not an HDF5 file",
                     "data.file names a file that job.task = tokenize has written.");
  }
}

// An HDF5 file opened by one rank to read attributes and datasets. Every fault is an InputError:
// "path: /train/tokens: what".
class Inspector {
 public:
  explicit Inspector(const std::string& path) : path_(path), file_(Open(path)) {
    haddr_t end = 0;
    if (H5Fget_eoa(file_.Get(), &end) < 0) throw Complain("superblock", Hdf5Reason());
    bytes_ = static_cast<std::int64_t>(end);
    // OpenPlainDataset and ReadAttributeText rely on 8 bytes, the size that all libraries write.
    const Hdf5Handle creation(H5Fget_create_plist(file_.Get()), H5Pclose);
    std::size_t address = 0, length = 0;
    if (H5Pget_sizes(creation.Get(), &address, &length) < 0 || address != 8 || length != 8) {
      throw Complain("superblock", fmt::format("addresses of 8 bytes expected, {} found", address));
    }
  }

  int Descriptor() const { return DescriptorOf(file_.Get()); }

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
    std::string fault;
    std::string text = ReadAttributeText(attribute.Get(), bytes_, fault);
    if (!fault.empty()) throw Complain("attribute " + name, fault);
    return text;
  }

  PlainDataset Open(const std::string& name, const std::vector<std::int64_t>& widths) const {
    return OpenPlainDataset(file_.Get(), path_, name, widths, bytes_);
  }

  // Reads a whole dataset. More than `most` elements are an error.
  template <typename T>
  std::vector<T> Read(const std::string& name, hid_t memory_type, std::int64_t most) const {
    const PlainDataset dataset = Open(name, {sizeof(T)});
    if (dataset.count > most) {
      throw Complain(name,
                     fmt::format("holds {} elements; at most {} are allowed", dataset.count, most));
    }
    std::vector<T> values(static_cast<std::size_t>(dataset.count));
    if (!values.empty() &&
        H5Dread(dataset.set.Get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
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
    RequireHdf5(path);
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
  Hdf5Handle file_;
  std::int64_t bytes_ = 0;  // size by the superblock; HDF5 reads nothing beyond it
};

// Limits on the memory that a process takes before reading tokens: above any vocabulary, and small
// beside a model with that vocabulary.
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

// Finds an array in the file; returns an empty StoredArray for an optional one that is absent.
StoredArray Find(const Inspector& file, Split split, Array array, Side side) {
  if (array == Array::kMask && side != Side::kText) return {};
  const std::string name = PathOf(split, array, side);
  const bool optional = array != Array::kTokens && side == Side::kText;
  if (optional && !file.Has(fmt::format("/{}", NameOf(split)), name)) return {};
  const PlainDataset dataset = array == Array::kTokens      ? file.Open(name, {2, 4})
                               : array == Array::kDocuments ? file.Open(name, {8})
                                                            : file.Open(name, {1});
  if (array == Array::kDocuments && dataset.count == 0) return {};
  return {.offset = dataset.offset,
          .count = dataset.count,
          .width = dataset.width,
          .big_endian = dataset.big_endian};
}

// Finds the arrays of all splits and checks their lengths.
void FindArrays(const Inspector& file, TokenLayout& layout) {
  std::int64_t bytes = 0;  // memory for all arrays
  for (const Split split : kSplits) {
    for (const Array array : kArrays) {
      StoredArray& found =
          layout.arrays[static_cast<std::size_t>(split)][static_cast<std::size_t>(array)];
      found = Find(file, split, array, layout.side);
      const std::string name = layout.PathOf(split, array);
      // Each array fits the file, whose size is below 2^63, but the sum may overflow.
      if (__builtin_add_overflow(bytes, found.Bytes() + kTokenAlignment, &bytes)) {
        throw file.Complain(name, "its elements and those before are too many for memory");
      }
      const std::int64_t tokens = layout.Tokens(split);
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
  TakeSample(path, file.Descriptor(), layout);
  return layout;
}

void Broadcast(const comm::Communicator& world, TokenLayout& layout) {
  world.Broadcast(&layout.side, sizeof layout.side);
  world.Broadcast(&layout.two_vocabularies, sizeof layout.two_vocabularies);
  world.Broadcast(layout.arrays.data(), sizeof layout.arrays);
  world.Broadcast(&layout.bytes, sizeof layout.bytes);
  layout.sample = world.Broadcast(layout.sample);
  layout.tokenizer = world.Broadcast(layout.tokenizer);
  layout.source_sha256 = world.Broadcast(layout.source_sha256);
  std::array<double, 2> entropy = {layout.entropy_rate ? 1.0 : 0.0,
                                   layout.entropy_rate.value_or(0.0)};
  world.Broadcast(entropy.data(), sizeof entropy);
  if (entropy[0] != 0.0) layout.entropy_rate = entropy[1];

  for (const char* name : kTokenizerFiles) {
    std::string& contents = layout.tokenizer_files[name];
    contents = world.Broadcast(contents);
    if (contents.empty()) layout.tokenizer_files.erase(name);
  }

  std::array<std::int64_t, 3> numbers = {static_cast<std::int64_t>(layout.vocabulary.words.size()),
                                         layout.vocabulary.eos, layout.vocabulary.unk};
  world.Broadcast(numbers.data(), sizeof numbers);
  std::string joined;
  std::vector<std::int64_t> lengths;
  for (const std::string& word : layout.vocabulary.words) {
    joined += word;
    lengths.push_back(static_cast<std::int64_t>(word.size()));
  }
  lengths.resize(static_cast<std::size_t>(numbers[0]));
  joined = world.Broadcast(joined);
  world.Broadcast(lengths.data(), numbers[0] * static_cast<std::int64_t>(sizeof(std::int64_t)));
  layout.vocabulary = {{}, numbers[1], numbers[2]};
  std::size_t begin = 0;
  for (const std::int64_t length : lengths) {
    layout.vocabulary.words.push_back(joined.substr(begin, static_cast<std::size_t>(length)));
    begin += static_cast<std::size_t>(length);
  }
}

}  // namespace trireme::data
