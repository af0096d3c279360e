// The hashes of a checkpoint's segments, as text and against files.
#include "checksums.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::checkpoint {

namespace {

constexpr const char* kAlgorithm = "XXH3_64bits";

constexpr std::size_t kHashDigits = 16;

// A segment of a file that was checked up to `at`; `where` names file and segment.
Segment ParseSegment(const nlohmann::json& item, std::int64_t at, std::int64_t file_bytes,
                     const std::string& where) {
  const bool has_form = item.is_array() && item.size() == 3 && item[2].is_string();
  const auto offset = has_form ? deck::WholeNumber(item[0]) : std::nullopt;
  const auto length = has_form ? deck::WholeNumber(item[1]) : std::nullopt;
  if (!offset || !length) {
    throw InputError(
        fmt::format("{}: [offset, length, hash] expected, {} found", where, deck::Brief(item)));
  }
  if (*offset != at || *length <= 0 || *length > file_bytes - at) {
    throw InputError(fmt::format("{}: segments do not cover the file at offset {}", where, at));
  }
  const std::int64_t longest = at == 0 ? kMaxHeaderBytes + kLengthBytes : kSegmentBytes;
  if (*length > longest) {
    throw InputError(
        fmt::format("{}: a segment of at most {} bytes expected at offset {}, {} found", where,
                    longest, at, *length));
  }
  const auto& digits = item[2].get_ref<const std::string&>();
  Segment segment{*offset, *length, 0};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), segment.hash, 16);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      digits.size() != kHashDigits) {
    throw InputError(fmt::format("{}: {} is no hexadecimal hash of {} digits", where,
                                 deck::Brief(item[2]), kHashDigits));
  }
  return segment;
}

FileSums ParseFile(const deck::JsonObject& object) {
  FileSums sums;
  sums.bytes = object.Integer("bytes");
  std::int64_t at = 0;
  for (const nlohmann::json& item : object.List("segments")) {
    sums.segments.push_back(ParseSegment(item, at, sums.bytes, object.Where()));
    at += sums.segments.back().length;
  }
  if (at == sums.bytes) return sums;
  throw InputError(
      fmt::format("{}: segments do not cover the file at offset {}", object.Where(), at));
}

// "tensor X" or "the header".
std::string Owner(std::int64_t offset, const std::vector<Entry>& tensors) {
  for (const Entry& entry : tensors) {
    if (offset >= entry.offset && offset < entry.offset + entry.bytes) {
      return "tensor " + deck::Shown(entry.name);
    }
  }
  return "the header";
}

}  // namespace

std::uint64_t Hash(const void* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

std::string ChecksumsText(const Checksums& sums) {
  // Written by hand rather than by the library, for one line a segment.
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
  const std::string damaged = path + ": damaged";
  const nlohmann::json object = deck::ParseJson(text, damaged, kMaxChecksumsBytes);
  const deck::JsonObject top(object, damaged);
  if (const std::string& algorithm = top.Text("algorithm"); algorithm != kAlgorithm) {
    throw InputError(fmt::format("{}: algorithm {} expected, {} found", damaged, kAlgorithm,
                                 deck::Brief(algorithm)));
  }
  const deck::JsonObject files = top.Object("files");
  Checksums sums;
  for (const auto& [name, value] : object.at("files").items()) {
    if (name.empty() || name.size() > kMaxFileNameBytes || name.find('/') != std::string::npos) {
      throw InputError(fmt::format("{}: the name of a file expected, {} found", files.Where(),
                                   deck::Brief(name)));
    }
    sums[name] = ParseFile({value, fmt::format("{}: {}", damaged, deck::Shown(name))});
  }
  return sums;
}

void CheckSegment(const Segment& segment, const void* data, const std::string& path,
                  const std::vector<Entry>& tensors, ExitCode blame) {
  CheckHash(segment, Hash(data, segment.length), path, tensors, blame);
}

void CheckHash(const Segment& segment, std::uint64_t found, const std::string& path,
               const std::vector<Entry>& tensors, ExitCode blame) {
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
