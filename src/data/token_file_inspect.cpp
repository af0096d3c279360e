// One rank's look at a token file before all ranks read it: attributes, sizes, types, vocabulary.
#include <fmt/format.h>

#include <array>
#include <type_traits>
#include <vector>

#include "attribute_text.hpp"
#include "hdf5.hpp"
#include "plain_dataset.hpp"
#include "positioned_file.hpp"
#include "token_codec.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// Bounds of the memory that one process takes before the tokens: beyond any vocabulary, and small
// beside a model of such a one.
constexpr std::int64_t kMaxWords = std::int64_t{1} << 24;
constexpr std::int64_t kMaxVocabularyBytes = std::int64_t{1} << 28;

// Names that a tokenizer's files can have.
constexpr std::array kTokenizerFiles = {"tokenizer.json", "vocab.json", "merges.txt",
                                        "tokenizer.model"};

// The file with its name, for messages: "path: /train/tokens: what".
class Inspector {
 public:
  // `bytes`: where HDF5 ends the file.
  Inspector(const std::string& path, std::int64_t bytes)
      : path_(path), bytes_(bytes), file_(OpenSerially(path)) {
    if (!file_.Valid()) {
      throw InputError(path + ": HDF5 cannot open this file", Hdf5Reason());
    }
    // The width that OpenPlainDataset and ReadAttributeText count on; all libraries write it.
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

  // Whether there is a dataset of that path, in a folder of the file.
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

  // All of a dataset of at most `most` elements.
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

  std::string path_;
  std::int64_t bytes_;  // of the file
  Hdf5Handle file_;
};

Vocabulary ReadVocabulary(const Inspector& file) {
  const std::string where = "/vocabulary/offsets";
  const auto bytes =
      file.Read<std::uint8_t>("/vocabulary/bytes", H5T_NATIVE_UINT8, kMaxVocabularyBytes);
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
    throw file.Complain(where, fmt::format("ends with {}, but /vocabulary/bytes holds {} bytes",
                                           offsets.back(), bytes.size()));
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

// Files of a subword tokenizer, which the token file keeps so that prompts can be encoded.
tokenizer::Files ReadTokenizer(const Inspector& file) {
  tokenizer::Files files;
  for (const char* name : kTokenizerFiles) {
    const std::string path = std::string("/tokenizer/") + name;
    if (!file.Has("/tokenizer", path)) continue;
    const auto bytes = file.Read<std::uint8_t>(path, H5T_NATIVE_UINT8, kMaxVocabularyBytes);
    files[name].assign(bytes.begin(), bytes.end());
  }
  if (files.empty()) {
    throw file.Complain("/tokenizer", "holds none of tokenizer.json, vocab.json, tokenizer.model");
  }
  return files;
}

void CheckSpecials(const Inspector& file, const Vocabulary& vocabulary) {
  const auto words = static_cast<std::int64_t>(vocabulary.words.size());
  const auto check = [&](const char* name, std::int64_t id, std::int64_t least) {
    if (id >= least && id < words) return;
    throw file.Complain(fmt::format("attribute {}", name),
                        fmt::format("{} is not an id of the {} words", id, words));
  };
  check("eos", vocabulary.eos, 0);
  check("unk", vocabulary.unk, -1);
}

// Place of an array in the file; none if it may be missing and is.
StoredArray Find(const Inspector& file, Split split, Array array) {
  const std::string name = PathOf(split, array);
  if (array != Array::kTokens && !file.Has(fmt::format("/{}", NameOf(split)), name)) return {};
  const PlainDataset dataset = array == Array::kTokens      ? file.Open(name, {2, 4})
                               : array == Array::kDocuments ? file.Open(name, {8})
                                                            : file.Open(name, {1});
  if (array == Array::kDocuments && dataset.count == 0) return {};
  return {.offset = dataset.offset,
          .count = dataset.count,
          .width = dataset.width,
          .big_endian = dataset.big_endian};
}

// Finds the arrays of all splits, and checks their lengths.
void FindArrays(const Inspector& file, TokenLayout& layout) {
  std::int64_t bytes = 0;  // of all in memory
  for (const Split split : kSplits) {
    for (const Array array : kArrays) {
      StoredArray& found =
          layout.arrays[static_cast<std::size_t>(split)][static_cast<std::size_t>(array)];
      found = Find(file, split, array);
      const std::string name = PathOf(split, array);
      // Lengths fit the file one by one, and the file's length 63 bits; all together need not.
      if (__builtin_add_overflow(bytes, found.Bytes() + kTokenAlignment, &bytes)) {
        throw file.Complain(name, "its elements and those before are too many for memory");
      }
      const std::int64_t tokens = layout.Tokens(split);
      constexpr std::int64_t kLeast = 2;  // a first token, and one target
      if (array == Array::kTokens && tokens < kLeast) {
        throw file.Complain(name,
                            fmt::format("holds {} tokens; at least {} are needed", tokens, kLeast));
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

}  // namespace

const char* NameOf(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    case Split::kTest:
      return "test";
  }
  return "?";
}

std::string PathOf(Split split, Array array) {
  constexpr std::array<const char*, 3> kNames = {"tokens", "documents", "mask"};
  return fmt::format("/{}/{}", NameOf(split), kNames.at(static_cast<std::size_t>(array)));
}

TokenLayout InspectTokenFile(const std::string& path) {
  const std::int64_t bytes_of_file = CheckWhole(path);
  const QuietHdf5 quiet;
  const Inspector file(path, bytes_of_file);
  const std::int64_t format = file.Integer("format");
  if (format != kTokenFormat) {
    throw file.Complain("attribute format",
                        fmt::format("is {}; this program reads format {}", format, kTokenFormat));
  }
  TokenLayout layout;
  layout.tokenizer = file.Text("tokenizer");
  layout.source_sha256 = file.Text("source_sha256");
  if (file.HasAttribute("entropy_rate")) {
    layout.entropy_rate = file.Number<double>("entropy_rate", H5T_NATIVE_DOUBLE);
  }
  layout.vocabulary = ReadVocabulary(file);
  layout.vocabulary.eos = file.Integer("eos");
  layout.vocabulary.unk = file.Integer("unk");
  CheckSpecials(file, layout.vocabulary);
  if (IsSubword(layout.tokenizer)) layout.tokenizer_files = ReadTokenizer(file);
  FindArrays(file, layout);
  TakeSample(path, file.Descriptor(), layout);
  return layout;
}

void Broadcast(const comm::Communicator& world, TokenLayout& layout) {
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
