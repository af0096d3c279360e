// Builds and checks the header of a safetensors file; then checksums.json and hashes.
#include "safetensors.hpp"

#include <fmt/ranges.h>
#include <xxhash.h>
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

#include "trireme/base/json.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are stored as they lie in memory, and safetensors is little-endian");

constexpr const char* kMetadata = "__metadata__";

// Element types that a file may have.
enum class Types {
  kOurs,  // those of checkpoints
  kAny    // all of the format
};

std::string ParseDtype(const deck::JsonObject& object, Types types) {
  const std::string text = object.Has("dtype") ? object.Text("dtype") : "";
  const bool ours = text == "F32" || text == "F64";
  if (ours || (types == Types::kAny && ElementBytes(text) > 0)) return text;
  throw InputError(fmt::format(
      "{}: {} expected, {} found", object.Where(),
      types == Types::kOurs ? "dtype \"F32\" or \"F64\"" : "a dtype of the safetensors format",
      text.empty() ? "nothing" : deck::Brief(text)));
}

// Bytes of a tensor. Throws if the product of all extents exceeds 63 bits, even if one of them is 0
// (then taken as 1): another program may meet the 0 only after its product has overflowed.
std::int64_t TensorBytes(const kernels::Shape& shape, std::int64_t element,
                         const std::string& where) {
  std::int64_t bytes = element;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
      throw InputError(fmt::format("{}: shape {} is too large", where, ShapeText(shape)));
    }
  }
  return empty ? 0 : bytes;
}

// data: the file's bytes after the header.
StoredTensor ParseTensor(const std::string& name, const nlohmann::json& value, Part data,
                         Types types, const std::string& path) {
  const std::string where = fmt::format("{}: tensor {}", path, deck::Shown(name));
  if (name.size() > kMaxNameBytes) {
    throw InputError(fmt::format("{}: a name of at most {} bytes expected, {} found", where,
                                 kMaxNameBytes, name.size()));
  }
  const deck::JsonObject object(value, where);
  StoredTensor entry{name, ParseDtype(object, types), object.Integers("shape", kMaxDimensions), 0,
                     0};
  entry.bytes = TensorBytes(entry.shape, ElementBytes(entry.dtype), where);
  const auto range = object.Integers("data_offsets", 2);
  if (range.size() != 2 || range[0] > range[1] || range[1] > data.Size()) {
    throw InputError(
        fmt::format("{}: data_offsets expected as [begin, end] within the file's {} bytes "
                    "of data, [{}] found",
                    where, data.Size(), fmt::join(range, ", ")));
  }
  if (range[1] - range[0] != entry.bytes) {
    throw InputError(fmt::format("{}: {} bytes expected for {} {}, {} found", where, entry.bytes,
                                 entry.dtype, ShapeText(entry.shape), range[1] - range[0]));
  }
  entry.offset = data.begin + range[0];
  return entry;
}

// Checks that every byte of the data belongs to exactly one tensor.
void CheckTiling(const std::vector<StoredTensor>& tensors, Part data, const std::string& path) {
  std::int64_t at = data.begin;
  for (const StoredTensor& entry : tensors) {
    if (entry.offset != at) {
      throw InputError(
          fmt::format("{}: tensor {}: offset {} expected, {} found ({})", path,
                      deck::Shown(entry.name), at, entry.offset,
                      entry.offset < at ? "it overlaps another tensor" : "a hole lies before it"));
    }
    at += entry.bytes;
  }
  if (at != data.end) {
    throw InputError(
        fmt::format("{}: the tensors end at offset {}, the file at {}", path, at, data.end));
  }
}

// The metadata, whose values must be strings.
std::map<std::string, std::string> ParseMetadata(const nlohmann::json& value,
                                                 const std::string& path) {
  if (value.is_null()) return {};  // some writers say that there is none
  const deck::JsonObject object(value, path + ": " + kMetadata);
  std::map<std::string, std::string> metadata;
  for (const auto& [name, text] : value.items()) metadata[name] = object.Text(name);
  return metadata;
}

// The tensors of a header by offset (empty ones first), and the metadata if `types` is kAny.
TensorFile ParseTensors(const std::string& header, std::int64_t file_bytes, Types types,
                        const std::string& path) {
  TensorFile file;
  file.bytes = file_bytes;
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  if (header_bytes < kLengthBytes || header_bytes > file_bytes) {
    throw InputError(fmt::format("{}: a header of {} to {} bytes expected, {} found", path,
                                 kLengthBytes, file_bytes, header_bytes));
  }
  const auto object = deck::ParseJson(std::string_view(header).substr(kLengthBytes),
                                      path + ": the header", kMaxHeaderBytes);
  if (!object.is_object()) throw InputError(fmt::format("{}: the header is no JSON object", path));
  const Part data{header_bytes, file_bytes};
  for (const auto& [name, value] : object.items()) {
    if (name != kMetadata) {
      file.tensors.push_back(ParseTensor(name, value, data, types, path));
    } else if (types == Types::kAny) {
      file.metadata = ParseMetadata(value, path);
    }
  }
  std::sort(file.tensors.begin(), file.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
            });
  CheckTiling(file.tensors, data, path);
  return file;
}

// Header length, JSON text, and blanks up to a multiple of `alignment`.
std::string WithLength(std::string text, std::int64_t alignment) {
  const auto step = static_cast<std::size_t>(alignment);
  const std::size_t start = kLengthBytes + text.size();
  text.append((step - start % step) % step, ' ');
  const std::uint64_t length = text.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, kLengthBytes);
  return header + text;
}

// As PlaceTensors, with the data beginning at a multiple of `alignment`.
std::string PlaceAligned(TensorFile& file, std::int64_t alignment) {
  nlohmann::ordered_json json;
  if (!file.metadata.empty()) json[kMetadata] = file.metadata;
  std::int64_t end = 0;
  for (StoredTensor& tensor : file.tensors) {
    tensor.bytes = TensorBytes(tensor.shape, ElementBytes(tensor.dtype), tensor.name);
    tensor.offset = end;
    end += tensor.bytes;
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.offset, end}}};
  }
  std::string header = WithLength(json.dump(), alignment);
  for (StoredTensor& tensor : file.tensors) tensor.offset += std::ssize(header);
  file.bytes = std::ssize(header) + end;
  return header;
}

// Segments and their hashes in checksums.json:

constexpr const char* kAlgorithm = "XXH3_64bits";

constexpr std::size_t kHashDigits = 16;

// Parses the segment that begins at `at`; `where` names the file in messages.
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
    throw InputError(fmt::format("{}: {} is not a hexadecimal hash of {} digits", where,
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

// "tensor X" or "the header": what lies at `offset`.
std::string Owner(std::int64_t offset, const std::vector<StoredTensor>& tensors) {
  for (const StoredTensor& entry : tensors) {
    if (offset >= entry.offset && offset < entry.offset + entry.bytes) {
      return "tensor " + deck::Shown(entry.name);
    }
  }
  return "the header";
}

}  // namespace

std::int64_t ElementBytes(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> bytes = {
      {"F64", 8}, {"I64", 8}, {"U64", 8},     {"F32", 4},     {"I32", 4},
      {"U32", 4}, {"F16", 2}, {"BF16", 2},    {"I16", 2},     {"U16", 2},
      {"I8", 1},  {"U8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"BOOL", 1}};
  const auto found = bytes.find(dtype);
  return found == bytes.end() ? 0 : found->second;
}

TensorFile ParseTensorFile(const std::string& header, std::int64_t file_bytes,
                           const std::string& path) {
  return ParseTensors(header, file_bytes, Types::kAny, path);
}

std::string PlaceTensors(TensorFile& file) {
  constexpr std::int64_t kTheirAlignment = 8;  // bytes, as in Python's safetensors
  return PlaceAligned(file, kTheirAlignment);
}

Dtype TypeOf(const StoredTensor& entry) {
  return entry.dtype == "F32" ? Dtype::kFloat32 : Dtype::kFloat64;
}

std::string ShapeText(const kernels::Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string ListProblems(const std::string& title, const std::vector<std::string>& problems) {
  constexpr std::size_t kShown = 8;
  std::string text = title;
  for (std::size_t i = 0; i < std::min(problems.size(), kShown); ++i) text += "\n  " + problems[i];
  if (problems.size() <= kShown) return text;
  return text + fmt::format("\n  and {} more differences", problems.size() - kShown);
}

Layout BuildLayout(const std::vector<kernels::StateBlock>& blocks) {
  // Python's loaders require "format"; all values must be strings, and the same for every run.
  TensorFile file{{{"format", "pt"}, {"trireme_checkpoint", "1"}}, {}, 0};
  for (const kernels::StateBlock& block : blocks) {
    const char* const dtype = block.dtype == Dtype::kFloat32 ? "F32" : "F64";
    file.tensors.push_back({block.name, dtype, block.shape, 0, 0});
  }
  std::string header = PlaceAligned(file, kDataAlignment);
  return {std::move(header), std::move(file.tensors), file.bytes};
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
  return {header, ParseTensors(header, file_bytes, Types::kOurs, path).tensors, file_bytes};
}

// checksums.json as text, and checking bytes against it.

std::uint64_t Hash(const void* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

std::string ChecksumsText(const Checksums& sums) {
  // Written without the JSON library, to have one line per segment.
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
                  const std::vector<StoredTensor>& tensors, ExitCode blame) {
  CheckHash(segment, Hash(data, segment.length), path, tensors, blame);
}

void CheckHash(const Segment& segment, std::uint64_t found, const std::string& path,
               const std::vector<StoredTensor>& tensors, ExitCode blame) {
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

// BlockHash: one pass over a block; in pieces if it must be copied from a device.

std::uint64_t BlockHash(const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                        const ReadBlock& read) {
  const std::int64_t size = BytesOf(block.dtype, 1);
  if (!read) {
    return Hash(static_cast<const char*>(block.data) + (first - block.begin) * size,
                (last - first) * size);
  }
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  if (state == nullptr) throw RunError("out of memory: the state of a hash");
  XXH3_64bits_reset(state.get());
  const std::int64_t most = kSegmentBytes / size;
  std::vector<char> piece(static_cast<std::size_t>(std::min(last - first, most) * size));
  for (std::int64_t at = first; at < last; at += most) {
    const std::int64_t end = std::min(last, at + most);
    read(block, at, end, piece.data());
    XXH3_64bits_update(state.get(), piece.data(), static_cast<std::size_t>((end - at) * size));
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace trireme::checkpoint
