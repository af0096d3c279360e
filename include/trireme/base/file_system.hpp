// Types of file systems, as statfs(2) numbers them.
#ifndef TRIREME_BASE_FILE_SYSTEM_HPP_
#define TRIREME_BASE_FILE_SYSTEM_HPP_

#include <cstdint>
#include <string>

namespace trireme {

struct FileSystemType {
  std::uint64_t number;
  const char* name;
  bool shared;  // by many hosts
  bool memory;  // what lies there takes the node's memory
};
// statfs' f_type, which is signed on some systems.
std::uint64_t FileSystemNumber(std::int64_t type);
// Null for a type that is not known.
const FileSystemType* FindFileSystem(std::uint64_t number);
std::string NameOfFileSystem(std::uint64_t number);  // "nfs"; "type 0x1234" for another

inline constexpr std::uint64_t kNfsNumber = 0x6969, kLustreNumber = 0x0BD00BD0;

}  // namespace trireme

#endif  // TRIREME_BASE_FILE_SYSTEM_HPP_
