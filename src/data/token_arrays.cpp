// Reading a token file's arrays, and detecting changes to the file.
#include "token_arrays.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "hdf5.hpp"

namespace trireme::data {

std::string Sha256(const std::vector<std::string_view>& texts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  bool good = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const std::string_view text : texts) {
    good = good && EVP_DigestUpdate(context.get(), text.data(), text.size()) == 1;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  good = good && EVP_DigestFinal_ex(context.get(), digest.data(), &length) == 1;
  if (!good) throw RunError("OpenSSL's libcrypto cannot compute SHA-256");
  std::string hex;
  for (unsigned i = 0; i < length; ++i) hex += fmt::format("{:02x}", digest.at(i));
  return hex;
}

namespace {

constexpr const char* kLeaveAlone = "A token file must stay as it is while a job reads it.";

constexpr std::int64_t kPartBytes = 4096;  // size of each part of the sample

// Hash of the beginning, the middle and the end of each array.
std::string SampleOf(const std::string& path, int file, const TokenLayout& layout) {
  std::string sample;
  std::array<std::byte, kPartBytes> room{};
  for (const auto& of_split : layout.arrays) {
    for (const StoredArray& stored : of_split) {
      const std::int64_t piece = std::min(kPartBytes, stored.Bytes());
      for (const std::int64_t at : {0, 1, 2}) {
        const std::int64_t from = stored.offset + (stored.Bytes() - piece) * at / 2;
        const std::int64_t got = ReadAt(file, room.data(), piece, from);
        if (got < piece && errno != 0) {
          throw InputError(
              fmt::format("{}: {}: cannot be read: {}", path, stored.Path(), ErrorText(errno)));
        }
        sample.append(reinterpret_cast<const char*>(room.data()), static_cast<std::size_t>(got));
      }
    }
  }
  return Sha256({sample});
}

// The first element that is at least `limit`.
template <typename T>
BadValue FirstFrom(const Elements& elements, std::uint64_t limit) {
  const std::span<const T> values = As<T>(elements);
  const auto at = std::ranges::find_if(values, [limit](T value) { return value >= limit; });
  if (at == values.end()) return {};
  return {elements.begin + (at - values.begin()), *at};
}

Descriptor Open(const std::string& path) {
  Descriptor file(path, O_RDONLY | O_CLOEXEC);
  if (!file.Valid()) {
    throw InputError(fmt::format("{}: cannot be opened: {}", path, ErrorText(errno)));
  }
  return file;
}

}  // namespace

BadValue FirstBad(const StoredArray& array, const Elements& elements) {
  if (array.width == 1) return FirstFrom<std::uint8_t>(elements, array.limit);
  if (array.width == 2) return FirstFrom<std::uint16_t>(elements, array.limit);
  if (array.width == 4) return FirstFrom<std::uint32_t>(elements, array.limit);
  std::uint64_t before = elements.before;
  std::int64_t offset = elements.begin;
  for (const std::uint64_t value : As<std::uint64_t>(elements)) {
    const bool good = offset == 0 ? value == 0 : value > before && value < array.limit;
    if (!good) return {offset, value};
    before = value;
    ++offset;
  }
  return {};
}

Error BadElement(const std::string& path, const StoredArray& array, const BadValue& bad) {
  if (array.array == Array::kTokens) {
    return InputError(
        fmt::format("{}: {}: token at offset {} has id {}, but the vocabulary has {} words", path,
                    array.Path(), bad.offset, bad.value, array.limit),
        "The file is damaged: write it again with job.task = tokenize.");
  }
  const std::string rule =
      array.array == Array::kMask
          ? "0 or 1 expected"
          : fmt::format("beginnings ascend from 0 and stay below the {} tokens", array.limit);
  return TokenFileError(path, array.Path(),
                        fmt::format("{} at offset {}: {}", bad.value, bad.offset, rule));
}

void TakeSample(const std::string& path, int file, TokenLayout& layout) {
  struct stat status = {};
  if (::fstat(file, &status) != 0) {
    throw InputError(fmt::format("{}: its size is unknown: {}", path, ErrorText(errno)));
  }
  layout.bytes = status.st_size;
  layout.sample = SampleOf(path, file, layout);
}

TokenArrays::TokenArrays(std::string path, const TokenLayout& layout)
    : path_(std::move(path)), file_(Open(path_)), state_(StateNow()) {
  constexpr const char* kCopyAgain =
      "All nodes must see one file, or copies of it: copy it anew, and leave it as it is.";
  if (state_.bytes != layout.bytes) {
    throw InputError(fmt::format("{}: it has {} bytes here, and had {} when rank 0 looked at it",
                                 path_, state_.bytes, layout.bytes),
                     kCopyAgain);
  }
  if (SampleOf(path_, file_.Get(), layout) == layout.sample) return;
  throw InputError(path_ + ": its contents here are not those that rank 0 has seen", kCopyAgain);
}

TokenArrays::TokenArrays(std::string path, Descriptor copy)
    : path_(std::move(path)), file_(std::move(copy)), state_(StateNow()) {}

void TokenArrays::Read(const StoredArray& array, std::int64_t begin, std::int64_t end,
                       void* to) const {
  const std::span<std::byte> room(static_cast<std::byte*>(to),
                                  static_cast<std::size_t>((end - begin) * array.width));
  const std::int64_t got =
      ReadAt(file_.Get(), to, std::ssize(room), array.offset + begin * array.width);
  if (got < std::ssize(room) && errno != 0) {
    throw RunError(fmt::format("{}: {}: cannot be read at offset {}: {}", path_, array.Path(),
                               begin, ErrorText(errno)));
  }
  if (got < std::ssize(room)) {
    throw RunError(
        fmt::format(
            "{}: {}: the file ends before offset {}: it has shrunk since this job opened it", path_,
            array.Path(), begin + got / array.width),
        kLeaveAlone);
  }
  if (!array.big_endian) return;
  for (auto at = room.begin(); at != room.end(); at += array.width) {
    std::reverse(at, at + array.width);
  }
}

Elements TokenArrays::ReadElements(const StoredArray& array, std::int64_t begin, std::int64_t end,
                                   void* to) const {
  Elements elements{to, begin, end};
  Read(array, begin, end, to);
  if (array.array == Array::kDocuments && begin > 0)
    Read(array, begin - 1, begin, &elements.before);
  return elements;
}

void TokenArrays::Prefetch(const StoredArray& array, std::int64_t begin, std::int64_t end) const {
  const std::int64_t count = std::min(end, array.count) - begin;
  if (count <= 0) return;
  ::posix_fadvise(file_.Get(), array.offset + begin * array.width, count * array.width,
                  POSIX_FADV_WILLNEED);
}

void TokenArrays::RequireGood(const StoredArray& array, const Elements& elements) const {
  const BadValue bad = FirstBad(array, elements);
  if (bad.offset == kNoElement) return;
  // A bad element may only mean that the file is being written to.
  RequireUnchanged();
  throw RunError(BadElement(path_, array, bad).what());
}

FileState TokenArrays::StateNow() const {
  struct stat status = {};
  if (::fstat(file_.Get(), &status) != 0) {
    throw RunError(fmt::format("{}: its size is unknown: {}", path_, ErrorText(errno)));
  }
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return {status.st_size, status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

void TokenArrays::RequireUnchanged() const {
  const FileState now = StateNow();
  if (now == state_) return;
  throw RunError(
      now.bytes == state_.bytes
          ? path_ + ": the file was written to since this job opened it"
          : fmt::format("{}: the file had {} bytes when this job opened it, and has {} now", path_,
                        state_.bytes, now.bytes),
      kLeaveAlone);
}

}  // namespace trireme::data
