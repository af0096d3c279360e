// The hashes of a checkpoint's segments, as text and against files.
#include "checksums.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint {

namespace {

constexpr const char* kAlgorithm = "XXH3_64bits";

std::uint64_t ParseHash(const std::string& text) {
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError(fmt::format("\"{}\" is no hexadecimal hash", text));
  }
  return hash;
}

FileSums ParseFile(const nlohmann::json& value) {
  FileSums sums;
  sums.bytes = value.at("bytes").get<std::int64_t>();
  std::int64_t at = 0;
  for (const auto& item : value.at("segments")) {
    const Segment segment{item.at(0).get<std::int64_t>(), item.at(1).get<std::int64_t>(),
                          ParseHash(item.at(2).get<std::string>())};
    if (segment.offset != at || segment.length <= 0 || segment.length > sums.bytes - at) {
      throw InputError(fmt::format("segments do not cover the file at offset {}", at));
    }
    at += segment.length;
    sums.segments.push_back(segment);
  }
  if (at != sums.bytes)
    throw InputError(fmt::format("segments do not cover the file at offset {}", at));
  return sums;
}

// "tensor X" or "the header".
std::string Owner(std::int64_t offset, const std::vector<Entry>& tensors) {
  for (const Entry& entry : tensors) {
    if (offset >= entry.offset && offset < entry.offset + entry.bytes) {
      return "tensor " + entry.name;
    }
  }
  return "the header";
}

}  // namespace

std::uint64_t Hash(const void* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

std::string ChecksumsText(const Checksums& sums) {
  // By hand rather than by the library, for one line a segment.
  std::string text = fmt::format("{{\n  \"algorithm\": \"{}\",\n  \"files\": {{", kAlgorithm);
  const char* file_comma = "";
  for (const auto& [name, file] : sums) {
    text += fmt::format("{}\n    {}: {{\n      \"bytes\": {},\n      \"segments\": [", file_comma,
                        nlohmann::json(name).dump(), file.bytes);
    file_comma = ",";
    const char* comma = "";
    for (const Segment& segment : file.segments) {
      text += fmt::format("{}\n        [{}, {}, \"{:016x}\"]", comma, segment.offset,
                          segment.length, segment.hash);
      comma = ",";
    }
    text += "\n      ]\n    }";
  }
  return text + "\n  }\n}\n";
}

Checksums ParseChecksums(const std::string& text, const std::string& path) {
  std::string where;
  try {
    const auto object = nlohmann::json::parse(text);
    const auto algorithm = object.at("algorithm").get<std::string>();
    if (algorithm != kAlgorithm) {
      throw InputError(fmt::format("algorithm {} expected, {} found", kAlgorithm, algorithm));
    }
    Checksums sums;
    for (const auto& [name, value] : object.at("files").items()) {
      where = name + ": ";
      sums[name] = ParseFile(value);
    }
    return sums;
  } catch (const std::exception& problem) {
    throw InputError(fmt::format("{}: damaged: {}{}", path, where, problem.what()));
  }
}

void CheckSegment(const Segment& segment, const void* data, const std::string& path,
                  const std::vector<Entry>& tensors, ExitCode blame) {
  const std::uint64_t found = Hash(data, segment.length);
  if (found == segment.hash) return;
  throw Error(
      blame,
      fmt::format("{}: {}: bytes {} to {} are damaged: checksum {:016x} expected, {:016x} found",
                  path, Owner(segment.offset, tensors), segment.offset,
                  segment.offset + segment.length, segment.hash, found),
      blame == ExitCode::kBadInput ? "take another checkpoint of the run"
                                   : "what was written does not read back: the disk is full or "
                                     "faulty");
}

}  // namespace trireme::checkpoint
