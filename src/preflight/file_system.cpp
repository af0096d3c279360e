// Type of a file system, and how Lustre spreads a file over its servers. No file is opened.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string>

#include "trireme/preflight/system.hpp"

namespace trireme::preflight {

namespace {

namespace fs = std::filesystem;

struct Type {
  std::uint64_t magic;
  const char* name;
  bool shared;  // by many hosts
};
// As in <linux/magic.h>, and as Lustre, GPFS, BeeGFS, PanFS and the others define theirs.
constexpr std::array<Type, 19> kTypes = {{{0x0BD00BD0, "lustre", true},
                                          {0x47504653, "gpfs", true},
                                          {0x19830326, "beegfs", true},
                                          {0x6969, "nfs", true},
                                          {0x00C36400, "ceph", true},
                                          {0xAAD7AAEA, "panfs", true},
                                          {0xFF534D42, "cifs", true},
                                          {0xFE534D42, "smb", true},
                                          {0x01021997, "9p", true},
                                          {0x65735546, "fuse", true},
                                          {0x01021994, "tmpfs", false},
                                          {0x858458F6, "ramfs", false},
                                          {0xEF53, "ext4", false},
                                          {0x58465342, "xfs", false},
                                          {0x9123683E, "btrfs", false},
                                          {0x2FC12FC1, "zfs", false},
                                          {0x794C7630, "overlay", false},
                                          {0xF2F52010, "f2fs", false},
                                          {0x73717368, "squashfs", false}}};
constexpr std::uint64_t kNfs = 0x6969, kLustre = 0x0BD00BD0;

template <typename T>
T At(std::string_view bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size())
    std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string Size(std::uint64_t bytes) {
  constexpr std::uint64_t kMebi = 1 << 20, kKibi = 1 << 10;
  return bytes % kMebi == 0 ? fmt::format("{} MiB", bytes / kMebi)
                            : fmt::format("{} KiB", bytes / kKibi);
}

// struct lov_user_md of lustre_user.h: magic, pattern, object (16 bytes), stripe size, count,
// first.
constexpr std::uint32_t kPlain = 0x0BD10BD0, kPooled = 0x0BD30BD0, kComposite = 0x0BD60BD0;
std::string PlainStriping(std::string_view bytes) {
  constexpr std::size_t kSizeAt = 24, kCountAt = 28, kLeast = 32;
  const auto magic = At<std::uint32_t>(bytes, 0);
  if (bytes.size() < kLeast || (magic != kPlain && magic != kPooled)) return {};
  const auto count = At<std::uint16_t>(bytes, kCountAt);
  constexpr std::uint16_t kAll = 0xFFFF;
  const std::string size = Size(At<std::uint32_t>(bytes, kSizeAt));
  if (count == kAll) return "stripes of " + size + " over all servers";
  if (count == 0) return "the file system's default striping";
  return fmt::format("{} stripe{} of {}", count, count == 1 ? "" : "s", size);
}

std::string ReadStriping(const std::string& path) {
  constexpr std::size_t kMost = 65536;
  std::string bytes(kMost, '\0');
  const ssize_t length = ::getxattr(path.c_str(), "lustre.lov", bytes.data(), bytes.size());
  if (length <= 0) return {};
  return StripingOf(std::string_view(bytes).substr(0, static_cast<std::size_t>(length)));
}

std::string NearestExisting(const std::string& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  while (at.has_relative_path() && !fs::exists(at, error)) at = at.parent_path();
  return at.string();
}

}  // namespace

// A composite: header of 32 bytes with the number of components, then 48 bytes for each, which tell
// where its own lov_user_md lies. The last component holds the bulk of a large file.
std::string StripingOf(std::string_view attribute) {
  if (At<std::uint32_t>(attribute, 0) != kComposite) return PlainStriping(attribute);
  constexpr std::size_t kCountAt = 14, kHeader = 32, kEntry = 48, kOffsetAt = 24, kSizeAt = 28;
  const auto count = At<std::uint16_t>(attribute, kCountAt);
  if (count == 0) return {};
  const std::size_t entry = kHeader + static_cast<std::size_t>(count - 1) * kEntry;
  const auto offset = At<std::uint32_t>(attribute, entry + kOffsetAt);
  if (entry + kEntry > attribute.size() || offset > attribute.size()) return {};
  const std::string last =
      PlainStriping(attribute.substr(offset, At<std::uint32_t>(attribute, entry + kSizeAt)));
  return last.empty() ? last : fmt::format("{} components, the last with {}", count, last);
}

std::string NameOfType(std::uint64_t type) {
  const auto known = std::ranges::find(kTypes, type, &Type::magic);
  return known == kTypes.end() ? fmt::format("type {:#x}", type) : known->name;
}

FileSystem FileSystemOf(const std::string& path) {
  FileSystem system;
  const std::string at = NearestExisting(path);
  struct statfs facts {};
  struct stat place {};
  if (::statfs(at.c_str(), &facts) != 0 || ::stat(at.c_str(), &place) != 0) {
    system.type = "unknown";
    return system;
  }
  constexpr std::uint64_t kMask = 0xFFFFFFFF;  // f_type is signed on some systems
  const std::uint64_t type = static_cast<std::uint64_t>(facts.f_type) & kMask;
  system.type = NameOfType(type);
  const auto known = std::ranges::find(kTypes, type, &Type::magic);
  system.shared = known == kTypes.end() || known->shared;
  system.network_file_system = type == kNfs;
  if (type == kLustre) system.striping = ReadStriping(at);
  std::uint64_t id = 0;
  std::memcpy(&id, &facts.f_fsid, sizeof id);
  if (!system.shared) system.identity = id * 31 + place.st_dev * 7 + place.st_ino;
  return system;
}

std::string FileSystem::Text() const {
  return striping.empty() ? type : fmt::format("{}, {}", type, striping);
}

}  // namespace trireme::preflight
