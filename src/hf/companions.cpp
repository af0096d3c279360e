// Copying companions, and folders that appear whole.
#include "trireme/hf/companions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/new_file.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/hf/listing.hpp"

namespace trireme::hf {

namespace {

namespace fs = std::filesystem;

// In a folder that is not whole yet.
constexpr const char* kUnfinished = ".unfinished";

constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;  // of a companion

bool IsCompanion(const std::string& name) {
  constexpr std::array<const char*, 5> kEndings = {".json", ".txt", ".model", ".md", ".jinja"};
  constexpr std::array<const char*, 4> kBeginnings = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
  if (name.ends_with(".index.json") || name == kListingFile) return false;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](const char* ending) { return name.ends_with(ending); }) ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](const char* beginning) { return name.starts_with(beginning); });
}

void RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw RunError(fmt::format("{}: cannot be removed: {}", path, error.message()));
}

void RequireFree(const std::string& folder) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(folder, ignored);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) && fs::is_empty(folder, ignored)) return;
  throw InputError(fmt::format("{}: is there already", folder),
                   "Name another folder, or move this one away.");
}

}  // namespace

void MakeFolder(const std::string& folder) {
  if (const int failure = MakeFolderDurably(folder); failure != 0) {
    throw RunError(fmt::format("{}: cannot be made: {}", folder, ErrorText(failure)));
  }
}

void WriteText(const std::string& path, const std::string& text) {
  std::error_code ignored;
  fs::remove(path, ignored);
  WriteTextDurably(path, text);
}

void CopyCompanions(const std::string& from, const std::string& to) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(from, error)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (!IsCompanion(name) || !entry.is_regular_file(ignored)) continue;
    WriteText(to + "/" + name, ReadText(entry.path().string(), kMostBytes));
  }
  if (error) throw InputError(fmt::format("{}: cannot be read: {}", from, error.message()));
}

std::int64_t CompanionBytes(const std::string& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (!IsCompanion(entry.path().filename().string()) || !entry.is_regular_file(ignored)) continue;
    const std::uintmax_t size = entry.file_size(ignored);
    if (!ignored) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

void CopyRunPart(const std::string& from, const std::string& to) {
  const std::string source = from + "/" + kRunPart, target = to + "/" + kRunPart;
  std::error_code ignored;
  if (from.empty() || !fs::exists(source + "/" + kListingFile, ignored)) return;
  MakeFolder(target);
  CopyCompanions(source, target);
  const std::string listing = ReadText(source + "/" + kListingFile, kMostBytes);
  WriteText(target + "/" + kListingFile, listing);
}

void MakeFolderWhole(const comm::Communicator& world, const std::string& folder,
                     const std::function<void(const std::string& temporary)>& fill) {
  fs::path path = fs::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // of "out/"
  const std::string temporary = DraftName(path.string());
  std::error_code ignored;
  world.Together([&] {
    if (!world.IsRoot()) return;
    RequireFree(path.string());
    // What an end without warning left is known by its mark; anything else is the user's.
    if (fs::exists(temporary + "/" + kUnfinished, ignored)) RemoveAll(temporary);
    RequireFree(temporary);
    if (const int failure = MakeFolderDurably(temporary); failure != 0) {
      throw InputError(fmt::format("{}: cannot be made: {}", temporary, ErrorText(failure)));
    }
    WriteTextDurably(temporary + "/" + kUnfinished, "");
  });
  try {
    fill(temporary);
    world.Together([&] {
      if (!world.IsRoot()) return;
      fs::remove(temporary + "/" + kUnfinished);
      SyncPath(temporary);
      Rename(temporary, path.string());
      SyncPath(path.has_parent_path() ? path.parent_path().string() : ".");
    });
  } catch (const AgreedError&) {  // on all ranks
    if (world.IsRoot()) fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace trireme::hf
