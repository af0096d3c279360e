// Building and checking the header of a safetensors file.
#include "safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/input/json_text.hpp"
#include "trireme/input/shown.hpp"

namespace trireme::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are stored as they lie in memory, and safetensors is little-endian");

constexpr const char* kMetadata = "__metadata__";

Dtype ParseDtype(const input::JsonObject& object) {
  const std::string text = object.Has("dtype") ? object.Text("dtype") : "";
  if (text == "F32") return Dtype::kFloat32;
  if (text == "F64") return Dtype::kFloat64;
  throw InputError(fmt::format("{}: dtype \"F32\" or \"F64\" expected, {} found", object.Where(),
                               text.empty() ? "nothing" : input::Brief(text)));
}

// Bytes of a tensor; throws when the product does not fit 63 bits, an extent of 0 left out: others
// multiply in another order.
std::int64_t TensorBytes(const tensor::Shape& shape, Dtype dtype, const std::string& where) {
  std::int64_t bytes = static_cast<std::int64_t>(SizeOf(dtype));
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
      throw InputError(fmt::format("{}: shape {} is too large", where, ShapeText(shape)));
    }
  }
  return empty ? 0 : bytes;
}

Entry ParseEntry(const std::string& name, const nlohmann::json& value, std::int64_t data_start,
                 std::int64_t file_bytes, const std::string& path) {
  const std::string where = fmt::format("{}: tensor {}", path, input::Shown(name));
  if (name.size() > kMaxNameBytes) {
    throw InputError(fmt::format("{}: a name of at most {} bytes expected, {} found", where,
                                 kMaxNameBytes, name.size()));
  }
  const input::JsonObject object(value, where);
  Entry entry{name, ParseDtype(object), object.Integers("shape", kMaxDimensions), 0, 0};
  entry.bytes = TensorBytes(entry.shape, entry.dtype, where);
  const auto range = object.Integers("data_offsets", 2);
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
      throw InputError(
          fmt::format("{}: tensor {}: offset {} expected, {} found ({})", path,
                      input::Shown(entry.name), at, entry.offset,
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
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  if (header_bytes < kLengthBytes || header_bytes > file_bytes) {
    throw InputError(fmt::format("{}: a header of {} to {} bytes expected, {} found", path,
                                 kLengthBytes, file_bytes, header_bytes));
  }
  const auto object = input::ParseJson(std::string_view(header).substr(kLengthBytes),
                                       path + ": the header", kMaxHeaderBytes);
  if (!object.is_object()) throw InputError(fmt::format("{}: the header is no JSON object", path));
  const auto data_start = static_cast<std::int64_t>(header.size());
  for (const auto& [name, value] : object.items()) {
    if (name == kMetadata) continue;
    layout.entries.push_back(ParseEntry(name, value, data_start, file_bytes, path));
  }
  // Empty tensors come before the one that begins at the same offset.
  std::sort(layout.entries.begin(), layout.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  CheckTiling(layout, path);
  return layout;
}

}  // namespace trireme::checkpoint
