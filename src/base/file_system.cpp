// FileSystemType: as in <linux/magic.h>, and as Lustre, GPFS, BeeGFS, PanFS and the others define
// theirs.
#include "trireme/base/file_system.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme {

namespace {

constexpr auto kTypes = std::to_array<FileSystemType>({{0x0BD00BD0, "lustre", true, false},
                                                       {0x47504653, "gpfs", true, false},
                                                       {0x19830326, "beegfs", true, false},
                                                       {0x6969, "nfs", true, false},
                                                       {0x00C36400, "ceph", true, false},
                                                       {0xAAD7AAEA, "panfs", true, false},
                                                       {0xFF534D42, "cifs", true, false},
                                                       {0xFE534D42, "smb", true, false},
                                                       {0x01021997, "9p", true, false},
                                                       {0x65735546, "fuse", true, false},
                                                       {0x01021994, "tmpfs", false, true},
                                                       {0x858458F6, "ramfs", false, true},
                                                       {0xEF53, "ext4", false, false},
                                                       {0x58465342, "xfs", false, false},
                                                       {0x9123683E, "btrfs", false, false},
                                                       {0x2FC12FC1, "zfs", false, false},
                                                       {0x794C7630, "overlay", false, false},
                                                       {0xF2F52010, "f2fs", false, false},
                                                       {0x73717368, "squashfs", false, false}});

}  // namespace

std::uint64_t FileSystemNumber(std::int64_t type) {
  constexpr std::uint64_t kMask = 0xFFFFFFFF;
  return static_cast<std::uint64_t>(type) & kMask;
}

const FileSystemType* FindFileSystem(std::uint64_t number) {
  const auto known = std::ranges::find(kTypes, number, &FileSystemType::number);
  return known == kTypes.end() ? nullptr : &*known;
}

std::string NameOfFileSystem(std::uint64_t number) {
  const FileSystemType* const known = FindFileSystem(number);
  return known == nullptr ? fmt::format("type {:#x}", number) : known->name;
}

}  // namespace trireme
