// An HDF5 file under construction: attributes, and contiguous datasets whose space is in the file
// before their values are.
#ifndef TRIREME_SRC_DATA_HDF5_WRITER_HPP_
#define TRIREME_SRC_DATA_HDF5_WRITER_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hdf5.hpp"

namespace trireme::data {

// Bytes of a file; more than HDF5's own structures need.
inline constexpr std::size_t kHdf5MetadataBytes = std::size_t{1} << 16;

// Every failure is a RunError that names the file and the thing.
class Hdf5Writer {
 public:
  struct InMemory {};

  explicit Hdf5Writer(const std::string& path);  // an empty file takes the place of what is there
  // Writes nothing to any disk: for a look at the offsets. path: for messages.
  Hdf5Writer(const std::string& path, InMemory);

  void Attribute(const char* name, hid_t type, const void* value);
  void Attribute(const char* name, std::int64_t value);
  void Attribute(const char* name, double value);
  void Attribute(const char* name, const std::string& value);

  // A dataset whose space is in the file at once and whose values follow in WriteAndClose; null:
  // somebody else writes them, at the offset that is returned. Contiguous and without a date: same
  // data, same bytes. Groups on the way are made. Returns the offset of the values in the file.
  std::int64_t Plan(const std::string& name, hid_t file_type, hid_t memory_type, std::size_t count,
                    const void* values);

  std::size_t Bytes() const;  // of the file with all planned blocks
  void WriteAndClose();

 private:
  void Create(hid_t access);
  [[noreturn]] void Fail(const std::string& what) const;

  struct Planned {
    std::string name;
    Hdf5Handle set;
    hid_t memory_type;
    const void* values;
  };

  std::string path_;
  Hdf5Handle file_;
  std::vector<Planned> planned_;  // closed before the file
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_HDF5_WRITER_HPP_
