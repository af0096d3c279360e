// Reading of /<split>/documents and /<split>/mask: by one rank, for all.
#include "token_masks.hpp"

#include <fmt/format.h>

#include "hdf5.hpp"
#include "plain_dataset.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

std::string DocumentsOf(Split split) { return fmt::format("/{}/documents", NameOf(split)); }
std::string MaskOf(Split split) { return fmt::format("/{}/mask", NameOf(split)); }

bool Has(const Hdf5Handle& file, const std::string& name) {
  return H5Lexists(file.Get(), name.c_str(), H5P_DEFAULT) > 0;
}

Hdf5Handle OpenFile(const std::string& path) {
  Hdf5Handle file = OpenSerially(path);
  if (!file.Valid()) throw InputError(path + ": HDF5 cannot open this file", Hdf5Reason());
  return file;
}

// All of a dataset of at most `most` elements; empty if it is not there.
template <typename T>
std::vector<T> ReadWhole(const Hdf5Handle& file, const std::string& path, const std::string& name,
                         hid_t type, std::int64_t most) {
  if (!Has(file, name)) return {};
  const PlainDataset dataset =
      OpenPlainDataset(file.Get(), path, name, {sizeof(T)}, CheckWhole(path));
  if (dataset.count > most) {
    throw TokenFileError(path, name,
                         fmt::format("holds {} elements for {} tokens", dataset.count, most));
  }
  std::vector<T> values(static_cast<std::size_t>(dataset.count));
  if (H5Dread(dataset.set.Get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    throw InputError(fmt::format("{}: {}: cannot be read", path, name), Hdf5Reason());
  }
  return values;
}

void CheckDocuments(const std::string& path, Split split,
                    const std::vector<std::int64_t>& documents, std::int64_t tokens) {
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::int64_t begin = documents[i];
    const bool good = i == 0 ? begin == 0 : begin > documents[i - 1] && begin < tokens;
    if (good) continue;
    throw TokenFileError(path, DocumentsOf(split),
                         fmt::format("{} at offset {}: beginnings ascend from 0 and stay below the "
                                     "{} tokens",
                                     begin, i, tokens));
  }
}

void CheckMask(const std::string& path, Split split, const std::vector<std::uint8_t>& counted,
               std::int64_t tokens) {
  if (counted.empty()) return;
  if (std::ssize(counted) != tokens) {
    throw TokenFileError(path, MaskOf(split),
                         fmt::format("holds {} elements for {} tokens", counted.size(), tokens));
  }
  for (std::size_t i = 0; i < counted.size(); ++i) {
    if (counted[i] <= 1) continue;
    throw TokenFileError(path, MaskOf(split),
                         fmt::format("{} at offset {}: 0 or 1 expected", counted[i], i));
  }
}

}  // namespace

TokenMasks ReadMasks(const std::string& path, const TokenLayout& layout) {
  const QuietHdf5 quiet;
  const Hdf5Handle file = OpenFile(path);
  TokenMasks masks;
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    const std::int64_t tokens = layout.counts[i];
    masks.documents[i] =
        ReadWhole<std::int64_t>(file, path, DocumentsOf(split), H5T_NATIVE_INT64, tokens);
    CheckDocuments(path, split, masks.documents[i], tokens);
    masks.counted[i] = ReadWhole<std::uint8_t>(file, path, MaskOf(split), H5T_NATIVE_UINT8, tokens);
    CheckMask(path, split, masks.counted[i], tokens);
  }
  return masks;
}

void Broadcast(const comm::Communicator& world, TokenMasks& masks) {
  const auto share = [&](auto& values) {
    std::int64_t count = std::ssize(values);
    world.Broadcast(&count, sizeof count);
    values.resize(static_cast<std::size_t>(count));
    if (count > 0) {
      world.Broadcast(values.data(), count * static_cast<std::int64_t>(sizeof values.front()));
    }
  };
  for (auto& documents : masks.documents) share(documents);
  for (auto& counted : masks.counted) share(counted);
}

void FindMasks(const std::string& path, TokenCounts& counts) {
  const QuietHdf5 quiet;
  const Hdf5Handle file = OpenFile(path);
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    counts.documents[i] = Has(file, DocumentsOf(split));
    counts.masks[i] = Has(file, MaskOf(split));
  }
}

}  // namespace trireme::data
