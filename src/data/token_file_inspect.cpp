// One rank's look at a token file before all ranks read it: attributes, sizes, types, vocabulary.
#include <fmt/format.h>

#include <array>
#include <vector>

#include "hdf5.hpp"
#include "inspector.hpp"
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

// Names in a file of pairs with two vocabularies begin with `prefix`, "source_", for the source's.
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

// Files of a subword tokenizer, which the token file keeps so that prompts can be encoded.
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

// Place of an array in the file; none if it may be missing and is.
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

// Finds the arrays of all splits, and checks their lengths.
void FindArrays(const Inspector& file, TokenLayout& layout) {
  std::int64_t bytes = 0;  // of all in memory
  for (const Split split : kSplits) {
    for (const Array array : kArrays) {
      StoredArray& found =
          layout.arrays[static_cast<std::size_t>(split)][static_cast<std::size_t>(array)];
      found = Find(file, split, array, layout.side);
      const std::string name = layout.PathOf(split, array);
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

std::string PathOf(Split split, Array array, Side side) {
  using Names = std::array<const char*, 3>;
  constexpr std::array<Names, 3> kNames = {Names{"tokens", "documents", "mask"},
                                           Names{"source", "source_offsets", "source_mask"},
                                           Names{"target", "target_offsets", "target_mask"}};
  const Names& names = kNames.at(static_cast<std::size_t>(side));
  return fmt::format("/{}/{}", NameOf(split), names.at(static_cast<std::size_t>(array)));
}

namespace {

bool SaysPairs(const Inspector& file) {
  return file.HasAttribute("contents") && file.Text("contents") == kPairContents;
}

// Throws InputError unless the file holds what is asked for.
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

bool HoldsPairs(const std::string& path) {
  const std::int64_t bytes_of_file = CheckWhole(path);
  const QuietHdf5 quiet;
  return SaysPairs(Inspector(path, bytes_of_file));
}

TokenLayout InspectTokenFile(const std::string& path, Side side) {
  const std::int64_t bytes_of_file = CheckWhole(path);
  const QuietHdf5 quiet;
  const Inspector file(path, bytes_of_file);
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
