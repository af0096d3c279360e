// Finds a cut-off HDF5 file by its superblock ("HDF5 File Format Specification", II.A): HDF5 itself
// would only say that it cannot open the file.
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "cut_file.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
constexpr std::size_t kLongestSuperblock = 96;  // bytes, of versions 0 to 3 with 8-byte offsets

std::uint64_t LittleEndian(const std::array<char, kLongestSuperblock>& bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Offset of the end-of-file address in a superblock; 0 for a version not known here.
std::size_t EndAddressAt(int version) {
  constexpr std::array<std::size_t, 4> kPlaces = {40, 44, 28, 28};
  return version >= 0 && version < 4 ? kPlaces.at(static_cast<std::size_t>(version)) : 0;
}

}  // namespace

std::int64_t CheckWhole(const std::string& path) {
  if (path.empty()) {
    throw InputError("data.file is empty: it must name a token file",
                     "job.task = tokenize writes one.");
  }
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw InputError(path + ": this token file does not exist",
                     "job.task = tokenize writes it; data.file names it.");
  }
  if (!std::filesystem::status_known(status)) {
    throw InputError(fmt::format("{}: cannot be opened: {}", path, error.message()));
  }
  if (!std::filesystem::is_regular_file(status)) throw InputError(path + ": this is not a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw InputError(
        fmt::format("{}: cannot be opened: {}", path, std::generic_category().message(errno)));
  }
  std::array<char, kLongestSuperblock> bytes{};
  file.read(bytes.data(), bytes.size());
  const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(path, error));
  if (error) throw InputError(fmt::format("{}: its size is unknown: {}", path, error.message()));
  if (size == 0) throw InputError(path + ": this token file is empty (0 bytes)");
  if (std::string_view(bytes.data(), kSignature.size()) != kSignature) {
    throw InputError(path + ": this is not an HDF5 file",
                     "data.file names a file that job.task = tokenize has written.");
  }
  const std::size_t at = EndAddressAt(bytes[8]);
  const int offset_bytes = bytes[bytes[8] < 2 ? 13 : 9];
  // A superblock of another version or address size is left for HDF5 to judge.
  const bool readable = at != 0 && offset_bytes == 8;
  const std::uint64_t end = readable ? LittleEndian(bytes, at) : 0;
  if (size < end || size < kSignature.size() + 1 + at) {
    const std::string dataset = end > size ? FirstCutDataset(path, size, end) : "";
    throw InputError(
        fmt::format("{}: the file is cut off at offset {}: {} of {} bytes are missing, "
                    "{}",
                    path, size, end > size ? end - size : 0, end,
                    dataset.empty() ? "what describes its datasets among them"
                                    : "the first of them in " + dataset),
        "Copy it again, or write it again with job.task = tokenize.");
  }
  return static_cast<std::int64_t>(readable ? end : size);
}

}  // namespace trireme::data
