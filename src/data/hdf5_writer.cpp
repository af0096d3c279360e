// Making of an HDF5 file whose structures lie at its front and whose datasets are contiguous.
#include "hdf5_writer.hpp"

#include <fmt/format.h>

#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr hsize_t kMetadataBlock = hsize_t{1} << 14;  // bytes; more than a token file's structures

}  // namespace

Hdf5Writer::Hdf5Writer(const std::string& path) : path_(path) {
  const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
  H5Pset_file_locking(access.Get(), true, true);
  Create(access.Get());
}

Hdf5Writer::Hdf5Writer(const std::string& path, InMemory) : path_(path) {
  constexpr std::size_t kStep = std::size_t{1} << 20;  // bytes of memory
  const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
  H5Pset_fapl_core(access.Get(), kStep, false);
  Create(access.Get());
}

void Hdf5Writer::Create(hid_t access) {
  // All of HDF5's own structures at the front: a file that is cut off can then still say what it
  // lacks.
  H5Pset_meta_block_size(access, kMetadataBlock);
  file_ = {H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose};
  if (!file_.Valid()) Fail("cannot be created");
}

void Hdf5Writer::Attribute(const char* name, hid_t type, const void* value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(
      H5Acreate2(file_.Get(), name, type, space.Get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (H5Awrite(attribute.Get(), type, value) < 0) {
    Fail(fmt::format("attribute {}: cannot be written", name));
  }
}

void Hdf5Writer::Attribute(const char* name, std::int64_t value) {
  Attribute(name, H5T_NATIVE_INT64, &value);
}

void Hdf5Writer::Attribute(const char* name, double value) {
  Attribute(name, H5T_NATIVE_DOUBLE, &value);
}

void Hdf5Writer::Attribute(const char* name, const std::string& value) {
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.Get(), H5T_VARIABLE);
  H5Tset_cset(type.Get(), H5T_CSET_UTF8);
  const char* text = value.c_str();
  Attribute(name, type.Get(), &text);
}

std::int64_t Hdf5Writer::Plan(const std::string& name, hid_t file_type, hid_t memory_type,
                              std::size_t count, const void* values) {
  const Hdf5Handle links = MakeProperties(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(links.Get(), 1);
  const Hdf5Handle creation = MakeProperties(H5P_DATASET_CREATE);
  H5Pset_layout(creation.Get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.Get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.Get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.Get(), false);
  const hsize_t extent = count;
  const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  Hdf5Handle set(H5Dcreate2(file_.Get(), name.c_str(), file_type, space.Get(), links.Get(),
                            creation.Get(), H5P_DEFAULT),
                 H5Dclose);
  if (!set.Valid()) Fail(name + ": cannot be created");
  const haddr_t offset = H5Dget_offset(set.Get());
  planned_.push_back({name, std::move(set), memory_type, values});
  return static_cast<std::int64_t>(offset);
}

std::size_t Hdf5Writer::Bytes() const {
  hsize_t bytes = 0;
  if (H5Fget_filesize(file_.Get(), &bytes) < 0) Fail("has no size");
  return bytes;
}

void Hdf5Writer::WriteAndClose() {
  for (Planned& block : planned_) {
    const bool good =
        block.values == nullptr || H5Dwrite(block.set.Get(), block.memory_type, H5S_ALL, H5S_ALL,
                                            H5P_DEFAULT, block.values) >= 0;
    if (!good || !block.set.Close()) Fail(block.name + ": cannot be written");
  }
  if (!file_.Close()) Fail("cannot be closed");
}

void Hdf5Writer::Fail(const std::string& what) const {
  throw RunError(fmt::format("{}: {}", path_, what), Hdf5Reason());
}

}  // namespace trireme::data
