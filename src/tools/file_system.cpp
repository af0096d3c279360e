// Type of a file system, and how Lustre spreads a file over its servers. No file is opened.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>

#include "trireme/base/file_system.hpp"
#include "trireme/tools/system.hpp"

namespace trireme::tools {

namespace {

namespace fs = std::filesystem;

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

FileSystem FileSystemOf(const std::string& path) {
  FileSystem system;
  const std::string at = NearestExisting(path);
  struct statfs facts {};
  struct stat place {};
  if (::statfs(at.c_str(), &facts) != 0 || ::stat(at.c_str(), &place) != 0) {
    system.type = "unknown";
    return system;
  }
  const std::uint64_t type = FileSystemNumber(facts.f_type);
  const FileSystemType* const known = FindFileSystem(type);
  system.type = NameOfFileSystem(type);
  system.shared = known == nullptr || known->shared;
  system.network_file_system = type == kNfsNumber;
  if (type == kLustreNumber) system.striping = ReadStriping(at);
  std::uint64_t id = 0;
  std::memcpy(&id, &facts.f_fsid, sizeof id);
  if (!system.shared) system.identity = id * 31 + place.st_dev * 7 + place.st_ino;
  return system;
}

std::string FileSystem::Text() const {
  return striping.empty() ? type : fmt::format("{}, {}", type, striping);
}

}  // namespace trireme::tools
