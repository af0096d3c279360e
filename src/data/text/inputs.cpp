// Globs through glob(3), formats by the ends of names.
#include "inputs.hpp"

#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

std::vector<std::string> Parts(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    std::string part = list.substr(begin, end - begin);
    part.erase(0, part.find_first_not_of(" \t"));
    part.erase(part.find_last_not_of(" \t") + 1);
    if (!part.empty()) parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> Expand(const std::string& pattern) {
  std::error_code ignored;
  if (std::filesystem::exists(pattern, ignored)) return {pattern};
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths;
  if (result == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    const bool glob = pattern.find_first_of("*?[") != std::string::npos;
    throw InputError(pattern + (glob ? ": no file matches" : ": there is no such file"));
  }
  return paths;
}

bool TakeEnding(std::string_view& name, std::string_view ending) {
  if (!name.ends_with(ending)) return false;
  name.remove_suffix(ending.size());
  return true;
}

// Refuses files that are no text and are not unpacked here.
void RefusePacked(const std::string& path) {
  constexpr std::array kOthers = {".bz2", ".xz", ".lz4", ".zip", ".7z"};
  if (path.ends_with(".parquet")) {
    throw InputError(path + ": Parquet is not read",
                     "Make JSON lines of it: python3 vis/parquet_to_jsonl.py FILES -o FOLDER");
  }
  for (const char* ending : kOthers) {
    if (!path.ends_with(ending)) continue;
    throw InputError(fmt::format("{}: {} is not read", path, ending),
                     "Unpack it, or pack its text as .gz or .zst.");
  }
}

TextFile Describe(const std::string& path, Split split) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error) throw InputError(fmt::format("{}: cannot be read: {}", path, error.message()));
  if (!std::filesystem::is_regular_file(status)) {
    throw InputError(path + ": is not a file",
                     "Name the files of a folder by a glob: folder/*.jsonl");
  }
  if (::access(path.c_str(), R_OK) != 0) {
    throw InputError(fmt::format("{}: cannot be read: {}", path, ErrorText(errno)));
  }
  RefusePacked(path);
  TextFile file{.path = path, .split = split};
  std::string_view name = path;
  if (TakeEnding(name, ".gz")) file.packing = Packing::kGzip;
  if (TakeEnding(name, ".zst")) file.packing = Packing::kZstd;
  file.json_lines =
      TakeEnding(name, ".jsonl") || TakeEnding(name, ".json") || TakeEnding(name, ".ndjson");
  file.bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  if (error) throw InputError(fmt::format("{}: its size is unknown: {}", path, error.message()));
  return file;
}

}  // namespace

std::vector<TextFile> FindTextFiles(const std::string& list, Split split) {
  std::vector<TextFile> files;
  for (const std::string& part : Parts(list)) {
    for (const std::string& path : Expand(part)) files.push_back(Describe(path, split));
  }
  if (files.empty()) throw InputError("no file is named");
  return files;
}

}  // namespace trireme::data
