// One rank's look at a token file before all ranks read it: attributes, sizes, types, vocabulary.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "hdf5.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// The file with its name, for messages: "path: /train/tokens: what".
class Inspector {
 public:
  explicit Inspector(const std::string& path) : path_(path), file_(OpenSerially(path)) {
    if (!file_.Valid()) {
      throw InputError(path + ": HDF5 cannot open this file", Hdf5Reason());
    }
  }

  Error Complain(const std::string& where, const std::string& what) const {
    return InputError(fmt::format("{}: {}: {}", path_, where, what),
                      "data.file names a file that job.task = tokenize has written.");
  }

  bool HasAttribute(const std::string& name) const {
    return H5Aexists(file_.Get(), name.c_str()) > 0;
  }

  template <typename T>
  T Number(const std::string& name, hid_t memory_type) const {
    const Hdf5Handle attribute = Attribute(name);
    const Hdf5Handle space(H5Aget_space(attribute.Get()), H5Sclose);
    T value{};
    if (H5Sget_simple_extent_npoints(space.Get()) != 1 ||
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
    const Hdf5Handle type(H5Aget_type(attribute.Get()), H5Tclose);
    const Hdf5Handle space(H5Aget_space(attribute.Get()), H5Sclose);
    const bool is_text =
        H5Tget_class(type.Get()) == H5T_STRING && H5Sget_simple_extent_npoints(space.Get()) == 1;
    if (!is_text) throw Complain("attribute " + name, "is not one text");
    if (H5Tis_variable_str(type.Get()) > 0) {
      char* text = nullptr;
      const bool read = H5Aread(attribute.Get(), type.Get(), &text) >= 0 && text != nullptr;
      if (!read) throw Complain("attribute " + name, "cannot be read");
      std::string result(text);
      H5free_memory(text);
      return result;
    }
    std::string result(H5Tget_size(type.Get()), '\0');
    if (H5Aread(attribute.Get(), type.Get(), result.data()) < 0) {
      throw Complain("attribute " + name, "cannot be read");
    }
    return result.substr(0, result.find('\0'));
  }

  // Length and width in bytes of a 1-D dataset of unsigned integers of one of the widths.
  std::pair<std::int64_t, std::int64_t> Extent(const std::string& name,
                                               const std::vector<std::size_t>& widths) const {
    const Hdf5Handle dataset = Dataset(name);
    const Hdf5Handle space(H5Dget_space(dataset.Get()), H5Sclose);
    const int dimensions = H5Sget_simple_extent_ndims(space.Get());
    if (dimensions != 1) throw Complain(name, fmt::format("has {} dimensions, not 1", dimensions));
    const Hdf5Handle type(H5Dget_type(dataset.Get()), H5Tclose);
    const std::size_t width = H5Tget_size(type.Get());
    const bool matches = H5Tget_class(type.Get()) == H5T_INTEGER &&
                         H5Tget_sign(type.Get()) == H5T_SGN_NONE &&
                         std::find(widths.begin(), widths.end(), width) != widths.end();
    if (!matches) {
      std::vector<std::string> names;
      for (const std::size_t bytes : widths) names.push_back(fmt::format("uint{}", 8 * bytes));
      throw Complain(name, fmt::format("its elements are not {}", fmt::join(names, " or ")));
    }
    return {H5Sget_simple_extent_npoints(space.Get()), static_cast<std::int64_t>(width)};
  }

  template <typename T>
  std::vector<T> Read(const std::string& name, hid_t memory_type) const {
    std::vector<T> values(static_cast<std::size_t>(Extent(name, {sizeof(T)}).first));
    const Hdf5Handle dataset = Dataset(name);
    if (!values.empty() &&
        H5Dread(dataset.Get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
      throw InputError(fmt::format("{}: {}: cannot be read", path_, name), Hdf5Reason());
    }
    return values;
  }

 private:
  Hdf5Handle Attribute(const std::string& name) const {
    if (!HasAttribute(name)) throw Complain("attribute " + name, "is missing");
    return {H5Aopen(file_.Get(), name.c_str(), H5P_DEFAULT), H5Aclose};
  }
  Hdf5Handle Dataset(const std::string& name) const {
    Hdf5Handle dataset(H5Dopen2(file_.Get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    if (!dataset.Valid()) throw Complain(name, "this dataset is missing");
    return dataset;
  }

  std::string path_;
  Hdf5Handle file_;
};

Vocabulary ReadVocabulary(const Inspector& file) {
  const std::string where = "/vocabulary/offsets";
  const auto bytes = file.Read<std::uint8_t>("/vocabulary/bytes", H5T_NATIVE_UINT8);
  const auto offsets = file.Read<std::uint64_t>(where, H5T_NATIVE_UINT64);
  if (offsets.size() < 2) throw file.Complain(where, "the vocabulary is empty");
  // Ids are int32 in memory.
  if (offsets.size() - 1 > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw file.Complain(where, fmt::format("{} words are too many", offsets.size() - 1));
  }
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

}  // namespace

std::string TokensOf(Split split) { return fmt::format("/{}/tokens", NameOf(split)); }

TokenLayout InspectTokenFile(const std::string& path) {
  CheckWhole(path);
  const QuietHdf5 quiet;
  const Inspector file(path);
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
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    std::tie(layout.counts[i], layout.widths[i]) = file.Extent(TokensOf(split), {2, 4});
    constexpr std::int64_t kLeast = 2;  // a first token, and one target
    if (layout.counts[i] < kLeast) {
      throw file.Complain(TokensOf(split), fmt::format("holds {} tokens; at least {} are needed",
                                                       layout.counts[i], kLeast));
    }
  }
  return layout;
}

void Broadcast(const comm::Communicator& world, TokenLayout& layout) {
  world.Broadcast(layout.counts.data(), sizeof layout.counts);
  world.Broadcast(layout.widths.data(), sizeof layout.widths);
  layout.tokenizer = world.Broadcast(layout.tokenizer);
  layout.source_sha256 = world.Broadcast(layout.source_sha256);
  std::array<double, 2> entropy = {layout.entropy_rate ? 1.0 : 0.0,
                                   layout.entropy_rate.value_or(0.0)};
  world.Broadcast(entropy.data(), sizeof entropy);
  if (entropy[0] != 0.0) layout.entropy_rate = entropy[1];

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
