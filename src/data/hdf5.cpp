// HDF5's reasons for failures, opening of files and datasets, and checks of a token file's
// elements.
#include "hdf5.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

std::string Hdf5Reason() {
  const auto take_first = [](unsigned number, const H5E_error2_t* error, void* text) -> herr_t {
    if (number == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
    return 0;
  };
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
  if (reason.find("unable to lock file") != std::string::npos) {
    return "another process has it open for writing, or the file system has no locks, for which "
           "HDF5_USE_FILE_LOCKING=FALSE is made (HDF5: " +
           reason + ")";
  }
  return "HDF5: " + (reason.empty() ? "no reason given" : reason);
}

Hdf5Handle MakeProperties(hid_t kind) {
  Hdf5Handle list(H5Pcreate(kind), H5Pclose);
  if (!list.Valid()) throw RunError("HDF5 cannot make a property list", Hdf5Reason());
  return list;
}

std::string Hdf5Version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

Hdf5Handle OpenSerially(const std::string& path) {
  const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
  // Many parallel file systems have no locks; HDF5 then goes on without them.
  H5Pset_file_locking(access.Get(), true, true);
  // A POSIX file, whatever HDF5's environment variables say; DescriptorOf needs it.
  H5Pset_fapl_sec2(access.Get());
  return {H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.Get()), H5Fclose};
}

int DescriptorOf(hid_t object) {
  const Hdf5Handle file(H5Iget_file_id(object), H5Fclose);
  void* descriptor = nullptr;
  if (!file.Valid() || H5Fget_vfd_handle(file.Get(), H5P_DEFAULT, &descriptor) < 0) {
    throw RunError("HDF5 does not tell the descriptor of a file", Hdf5Reason());
  }
  return *static_cast<const int*>(descriptor);
}

namespace {

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

// Number of elements along the one dimension.
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

std::string TypeFault(const std::vector<std::int64_t>& widths, PlainDataset& dataset) {
  const Hdf5Handle type(H5Dget_type(dataset.set.Get()), H5Tclose);
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
    dataset.width = bytes;
    dataset.big_endian = is_big;
    return {};
  }
  std::vector<std::string> names;
  for (const std::int64_t each : widths) names.push_back(fmt::format("uint{}", 8 * each));
  return fmt::format("its elements are not {}", fmt::join(names, " or "));
}

std::string StorageFault(const PlainDataset& dataset, std::int64_t file_bytes) {
  const std::int64_t bytes = dataset.count * dataset.width;
  if (bytes == 0) return {};  // then nothing is allocated
  const haddr_t offset = H5Dget_offset(dataset.set.Get());
  const hsize_t stored = H5Dget_storage_size(dataset.set.Get());
  if (offset == HADDR_UNDEF || stored == 0) {
    return fmt::format("its {} elements were never written: it has no storage", dataset.count);
  }
  if (stored != static_cast<hsize_t>(bytes)) {
    return fmt::format("{} bytes of storage expected for {} elements of {} bytes, {} found", bytes,
                       dataset.count, dataset.width, stored);
  }
  const auto end = static_cast<haddr_t>(file_bytes);
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

template <typename T>
std::span<const T> As(const Elements& elements) {
  return {static_cast<const T*>(elements.values),
          static_cast<std::size_t>(elements.end - elements.begin)};
}

// Offset of the first element that is at least `limit`, or kNoElement.
template <typename T>
std::int64_t FirstFrom(const Elements& elements, std::uint64_t limit) {
  const std::span<const T> values = As<T>(elements);
  const auto at =
      std::find_if(values.begin(), values.end(), [limit](T value) { return value >= limit; });
  return at == values.end() ? kNoElement : elements.begin + (at - values.begin());
}

std::int64_t FirstBadDocument(const Elements& elements, std::uint64_t tokens) {
  std::uint64_t before = elements.before;
  std::int64_t offset = elements.begin;
  for (const std::uint64_t value : As<std::uint64_t>(elements)) {
    const bool good = offset == 0 ? value == 0 : value > before && value < tokens;
    if (!good) return offset;
    before = value;
    ++offset;
  }
  return kNoElement;
}

}  // namespace

Error TokenFileError(const std::string& path, const std::string& where, const std::string& what) {
  return InputError(fmt::format("{}: {}: {}", path, where, what),
                    "data.file names a file that job.task = tokenize has written.");
}

PlainDataset OpenPlainDataset(hid_t file, const std::string& path, const std::string& name,
                              const std::vector<std::int64_t>& widths, std::int64_t file_bytes) {
  const auto check = [&](const std::string& fault) {
    if (!fault.empty()) throw TokenFileError(path, name, fault);
  };
  check(LinkFault(file, name));
  PlainDataset dataset{.set = {H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose}};
  if (!dataset.set.Valid()) {
    throw TokenFileError(path, name, "cannot be opened as a dataset: " + Hdf5Reason());
  }
  check(LayoutFault(dataset.set));
  check(TypeFault(widths, dataset));
  std::string fault;
  dataset.count = Extent(dataset.set, dataset.width, fault);
  check(fault);
  check(StorageFault(dataset, file_bytes));
  if (dataset.count == 0) return dataset;
  dataset.offset = static_cast<std::int64_t>(H5Dget_offset(dataset.set.Get()));
  return dataset;
}

std::uint64_t ValueAt(const StoredArray& array, const Elements& elements, std::int64_t offset) {
  const auto at = static_cast<std::size_t>(offset - elements.begin);
  if (array.width == 1) return As<std::uint8_t>(elements)[at];
  if (array.width == 2) return As<std::uint16_t>(elements)[at];
  return array.width == 4 ? As<std::uint32_t>(elements)[at] : As<std::uint64_t>(elements)[at];
}

std::int64_t FirstBad(const TokenLayout& layout, Split split, Array array,
                      const Elements& elements) {
  if (array == Array::kDocuments) {
    return FirstBadDocument(elements, static_cast<std::uint64_t>(layout.Tokens(split)));
  }
  if (array == Array::kMask) return FirstFrom<std::uint8_t>(elements, 2);
  const auto words = static_cast<std::uint64_t>(layout.vocabulary.words.size());
  return layout.Of(split, array).width == 2 ? FirstFrom<std::uint16_t>(elements, words)
                                            : FirstFrom<std::uint32_t>(elements, words);
}

Error BadElement(const std::string& path, const TokenLayout& layout, Split split, Array array,
                 const BadValue& bad) {
  const auto& [offset, value] = bad;
  const std::string name = layout.PathOf(split, array);
  if (array == Array::kDocuments) {
    return TokenFileError(
        path, name,
        fmt::format("{} at offset {}: beginnings ascend from 0 and stay below the "
                    "{} tokens",
                    value, offset, layout.Tokens(split)));
  }
  if (array == Array::kMask) {
    return TokenFileError(path, name,
                          fmt::format("{} at offset {}: 0 or 1 expected", value, offset));
  }
  return InputError(
      fmt::format("{}: {}: token at offset {} has id {}, but the vocabulary has {} words", path,
                  name, offset, value, layout.vocabulary.words.size()),
      "The file is damaged: write it again with job.task = tokenize.");
}

}  // namespace trireme::data
