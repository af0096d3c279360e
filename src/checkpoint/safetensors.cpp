// Building and checking the header of a safetensors file.
#include "safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are stored as they lie in memory, and safetensors is little-endian");

constexpr const char* kMetadata = "__metadata__";

// Parses the JSON text and refuses a name given twice, of which the parser would keep only the
// last.
nlohmann::ordered_json ParseObject(const std::string& text, const std::string& path) {
  std::set<std::string> names;
  const auto check_names = [&](int depth, nlohmann::ordered_json::parse_event_t event,
                               nlohmann::ordered_json& value) {
    if (depth == 1 && event == nlohmann::ordered_json::parse_event_t::key &&
        !names.insert(value.get<std::string>()).second) {
      throw InputError(
          fmt::format("{}: tensor {}: named twice in the header", path, value.get<std::string>()));
    }
    return true;
  };
  try {
    auto object = nlohmann::ordered_json::parse(text, check_names);
    if (!object.is_object())
      throw InputError(fmt::format("{}: the header is no JSON object", path));
    return object;
  } catch (const nlohmann::json::exception& problem) {
    throw InputError(fmt::format("{}: the header is not valid JSON: {}", path, problem.what()));
  }
}

// A list of whole numbers >= 0 under `key`.
std::vector<std::int64_t> Numbers(const nlohmann::ordered_json& object, const char* key,
                                  const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) {
    throw InputError(fmt::format("{}: {} expected as a list of numbers, {} found", where, key,
                                 found == object.end() ? "nothing" : found->dump()));
  }
  std::vector<std::int64_t> numbers;
  for (const auto& item : *found) {
    if (!item.is_number_unsigned() ||
        item.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      throw InputError(
          fmt::format("{}: {} expected as whole numbers, {} found", where, key, found->dump()));
    }
    numbers.push_back(item.get<std::int64_t>());
  }
  return numbers;
}

Dtype ParseDtype(const nlohmann::ordered_json& object, const std::string& where) {
  const auto found = object.find("dtype");
  const std::string text = found == object.end() ? "nothing" : found->dump();
  if (text == "\"F32\"") return Dtype::kFloat32;
  if (text == "\"F64\"") return Dtype::kFloat64;
  throw InputError(fmt::format("{}: dtype \"F32\" or \"F64\" expected, {} found", where, text));
}

// Bytes of a tensor; throws when the product does not fit 63 bits.
std::int64_t TensorBytes(const tensor::Shape& shape, Dtype dtype, const std::string& where) {
  std::int64_t bytes = static_cast<std::int64_t>(SizeOf(dtype));
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      throw InputError(fmt::format("{}: shape {} is too large", where, ShapeText(shape)));
    }
  }
  return bytes;
}

Entry ParseEntry(const std::string& name, const nlohmann::ordered_json& value,
                 std::int64_t data_start, std::int64_t file_bytes, const std::string& path) {
  const std::string where = fmt::format("{}: tensor {}", path, name);
  if (!value.is_object()) {
    throw InputError(fmt::format("{}: an object expected, {} found", where, value.dump()));
  }
  Entry entry{name, ParseDtype(value, where), Numbers(value, "shape", where), 0, 0};
  entry.bytes = TensorBytes(entry.shape, entry.dtype, where);
  const auto range = Numbers(value, "data_offsets", where);
  if (range.size() != 2 || range[0] > range[1] || range[1] > file_bytes - data_start) {
    throw InputError(
        fmt::format("{}: data_offsets expected as [begin, end] within the file's {} bytes "
                    "of data, [{}] found",
                    where, file_bytes - data_start, fmt::join(range, ", ")));
  }
  if (range[1] - range[0] != entry.bytes) {
    throw InputError(fmt::format("{}: {} bytes expected for {} {}, {} found", where, entry.bytes,
                                 SafetensorsName(entry.dtype), ShapeText(entry.shape),
                                 range[1] - range[0]));
  }
  entry.offset = data_start + range[0];
  return entry;
}

// Every byte of the data belongs to exactly one tensor.
void CheckTiling(const Layout& layout, const std::string& path) {
  std::int64_t at = static_cast<std::int64_t>(layout.header.size());
  for (const Entry& entry : layout.entries) {
    if (entry.offset != at) {
      throw InputError(fmt::format(
          "{}: tensor {}: offset {} expected, {} found ({})", path, entry.name, at, entry.offset,
          entry.offset < at ? "it overlaps another tensor" : "a hole lies before it"));
    }
    at += entry.bytes;
  }
  if (at != layout.bytes) {
    throw InputError(
        fmt::format("{}: the tensors end at offset {}, the file at {}", path, at, layout.bytes));
  }
}

}  // namespace

const char* SafetensorsName(Dtype type) { return type == Dtype::kFloat32 ? "F32" : "F64"; }

std::string ShapeText(const tensor::Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Layout BuildLayout(const std::vector<tensor::StateBlock>& blocks) {
  Layout layout;
  nlohmann::ordered_json header;
  // "format" is what Python's loaders ask for; all values must be strings, and the same for each
  // run.
  header[kMetadata] = {{"format", "pt"}, {"trireme_checkpoint", "1"}};
  std::int64_t end = 0;
  for (const tensor::StateBlock& block : blocks) {
    Entry entry{block.name, block.dtype, block.shape, end, 0};
    entry.bytes = TensorBytes(block.shape, block.dtype, block.name);
    end += entry.bytes;
    header[block.name] = {{"dtype", SafetensorsName(entry.dtype)},
                          {"shape", entry.shape},
                          {"data_offsets", {entry.offset, end}}};
    layout.entries.push_back(std::move(entry));
  }
  std::string text = header.dump();
  const std::size_t start = kLengthBytes + text.size();
  text.append((kDataAlignment - start % kDataAlignment) % kDataAlignment, ' ');
  const std::uint64_t length = text.size();
  layout.header.resize(kLengthBytes);
  std::memcpy(layout.header.data(), &length, kLengthBytes);
  layout.header += text;
  for (Entry& entry : layout.entries)
    entry.offset += static_cast<std::int64_t>(layout.header.size());
  layout.bytes = static_cast<std::int64_t>(layout.header.size()) + end;
  return layout;
}

std::int64_t HeaderBytes(const char* start, std::int64_t file_bytes, const std::string& path) {
  std::uint64_t length = 0;
  std::memcpy(&length, start, kLengthBytes);
  const std::int64_t largest = std::min(kMaxHeaderBytes, file_bytes - kLengthBytes);
  if (length < 2 || length > static_cast<std::uint64_t>(std::max<std::int64_t>(largest, 0))) {
    throw InputError(
        fmt::format("{}: header length of 2 to {} bytes expected at offset 0, {} found: "
                    "no safetensors file, or a damaged one",
                    path, largest, length));
  }
  return kLengthBytes + static_cast<std::int64_t>(length);
}

Layout ParseLayout(const std::string& header, std::int64_t file_bytes, const std::string& path) {
  Layout layout{header, {}, file_bytes};
  const auto object = ParseObject(header.substr(kLengthBytes), path);
  const auto data_start = static_cast<std::int64_t>(header.size());
  for (const auto& [name, value] : object.items()) {
    if (name == kMetadata) continue;
    layout.entries.push_back(ParseEntry(name, value, data_start, file_bytes, path));
  }
  // Stable: an empty tensor stays before the one that begins at the same offset if it is listed so.
  std::stable_sort(layout.entries.begin(), layout.entries.end(),
                   [](const Entry& a, const Entry& b) {
                     return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
                   });
  CheckTiling(layout, path);
  return layout;
}

}  // namespace trireme::checkpoint
