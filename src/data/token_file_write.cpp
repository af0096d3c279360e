// WriteTokenFile: into a temporary file beside the target, reserved, synced, read back and renamed.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "hdf5.hpp"
#include "hdf5_writer.hpp"
#include "token_file_draft.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kReadBackTokens = std::int64_t{1} << 20;  // compared at once

void CheckData(const TokenData& data) {
  const auto words = static_cast<std::int64_t>(data.vocabulary.words.size());
  for (const Split split : kSplits) {
    const auto& tokens = data.tokens.at(static_cast<std::size_t>(split));
    constexpr std::size_t kLeast = 2;  // a first token, and one target
    if (tokens.size() < kLeast) {
      throw InputError(fmt::format("the {} split holds {} tokens; at least {} are needed",
                                   NameOf(split), tokens.size(), kLeast));
    }
    const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                  [&](std::int32_t id) { return id < 0 || id >= words; });
    const auto& counted = data.counted.at(static_cast<std::size_t>(split));
    if (!counted.empty() && counted.size() != tokens.size()) {
      throw InputError(fmt::format("the {} split: a mask of {} elements for {} tokens",
                                   NameOf(split), counted.size(), tokens.size()));
    }
    if (bad != tokens.end()) {
      throw InputError(fmt::format("the {} split: token {} has id {}, but there are {} words",
                                   NameOf(split), bad - tokens.begin(), *bad, words));
    }
  }
}

void WriteAttributes(Hdf5Writer& file, const TokenData& data) {
  file.Attribute("format", kTokenFormat);
  file.Attribute("tokenizer", data.tokenizer);
  file.Attribute("eos", data.vocabulary.eos);
  file.Attribute("unk", data.vocabulary.unk);
  file.Attribute("source_sha256", data.source_sha256);
  if (data.entropy_rate) file.Attribute("entropy_rate", *data.entropy_rate);
  if (data.harbour_seed) file.Attribute("harbour_seed", *data.harbour_seed);
}

void WriteDraft(const TokenFileDraft& draft, const TokenData& data) {
  std::string bytes;
  std::vector<std::uint64_t> offsets = {0};
  for (const std::string& word : data.vocabulary.words) {
    bytes += word;
    offsets.push_back(bytes.size());
  }
  constexpr std::size_t kNarrowIds = std::numeric_limits<std::uint16_t>::max() + std::size_t{1};
  const bool narrow = data.vocabulary.words.size() <= kNarrowIds;
  const hid_t id_type = narrow ? H5T_STD_U16LE : H5T_STD_U32LE;

  // HDF5 1.10 cannot close a file that found no space, and would crash at the program's end: the
  // space is tried before HDF5 begins, and kept from there on.
  std::size_t tokens_in_all = 0;
  std::size_t mask_bytes = 0;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    tokens_in_all += data.tokens[i].size();
    mask_bytes += data.documents[i].size() * sizeof(std::uint64_t) + data.counted[i].size();
  }
  const std::size_t id_bytes = narrow ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
  const std::size_t data_bytes =
      tokens_in_all * id_bytes + mask_bytes + offsets.size() * sizeof(std::uint64_t) + bytes.size();
  draft.Reserve(data_bytes + kHdf5MetadataBytes, false);

  Hdf5Writer file(draft.Path());
  WriteAttributes(file, data);
  file.Plan("/vocabulary/bytes", H5T_STD_U8LE, H5T_NATIVE_UINT8, bytes.size(), bytes.data());
  file.Plan("/vocabulary/offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, offsets.size(),
            offsets.data());
  for (const Split split : kSplits) {
    const auto& tokens = data.tokens.at(static_cast<std::size_t>(split));
    file.Plan(PathOf(split, Array::kTokens), id_type, H5T_NATIVE_INT32, tokens.size(),
              tokens.data());
    const auto& documents = data.documents.at(static_cast<std::size_t>(split));
    if (!documents.empty()) {
      file.Plan(PathOf(split, Array::kDocuments), H5T_STD_U64LE, H5T_NATIVE_INT64, documents.size(),
                documents.data());
    }
    const auto& counted = data.counted.at(static_cast<std::size_t>(split));
    if (!counted.empty()) {
      file.Plan(PathOf(split, Array::kMask), H5T_STD_U8LE, H5T_NATIVE_UINT8, counted.size(),
                counted.data());
    }
  }
  draft.Reserve(file.Bytes(), true);
  file.WriteAndClose();
}

void CompareTokens(const std::string& path, const Hdf5Handle& file, Split split,
                   const std::vector<std::int32_t>& tokens) {
  const std::string name = PathOf(split, Array::kTokens);
  const Hdf5Handle dataset(H5Dopen2(file.Get(), name.c_str(), H5P_DEFAULT), H5Dclose);
  const Hdf5Handle space(H5Dget_space(dataset.Get()), H5Sclose);
  std::vector<std::int32_t> piece;
  for (std::size_t begin = 0; begin < tokens.size(); begin += piece.size()) {
    piece.resize(std::min<std::size_t>(kReadBackTokens, tokens.size() - begin));
    const hsize_t start = begin, count = piece.size();
    H5Sselect_hyperslab(space.Get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr);
    const Hdf5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    if (H5Dread(dataset.Get(), H5T_NATIVE_INT32, memory.Get(), space.Get(), H5P_DEFAULT,
                piece.data()) < 0) {
      throw RunError(fmt::format("{}: {}: cannot be read back at offset {}", path, name, begin),
                     Hdf5Reason());
    }
    const auto expected = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto differing = std::mismatch(piece.begin(), piece.end(), expected).first;
    if (differing != piece.end()) {
      const auto offset = begin + static_cast<std::size_t>(differing - piece.begin());
      throw RunError(fmt::format("{}: {}: token {} differs when read back", path, name, offset),
                     "The disk did not keep what was written: is it full or broken?");
    }
  }
}

void ReadBack(const TokenFileDraft& draft, const TokenData& data) {
  const TokenLayout layout = InspectTokenFile(draft.Path());
  if (layout.vocabulary.words != data.vocabulary.words) {
    throw RunError(draft.Path() + ": /vocabulary differs when read back");
  }
  const Hdf5Handle file = OpenSerially(draft.Path());
  for (const Split split : kSplits) {
    CompareTokens(draft.Path(), file, split, data.tokens.at(static_cast<std::size_t>(split)));
  }
}

}  // namespace

void WriteTokenFile(const std::string& path, const TokenData& data, bool overwrite) {
  CheckTokenFileTarget(path, overwrite);
  CheckData(data);
  const QuietHdf5 quiet;
  TokenFileDraft draft(path);
  WriteDraft(draft, data);
  draft.Sync();
  ReadBack(draft, data);
  draft.Place();
}

}  // namespace trireme::data
