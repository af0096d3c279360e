// One rank's look into an HDF5 file: attributes and datasets, with the file's name for messages.
#ifndef TRIREME_SRC_DATA_INSPECTOR_HPP_
#define TRIREME_SRC_DATA_INSPECTOR_HPP_

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "attribute_text.hpp"
#include "hdf5.hpp"
#include "plain_dataset.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

// Every fault is an InputError: "path: /train/tokens: what".
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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_INSPECTOR_HPP_
