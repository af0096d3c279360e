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
#include "trireme/base/error.hpp"

namespace trireme::data {

std::string Sha256(std::span<const std::string_view> texts) {
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
  for (const Split split : kSplits) {
    for (const Array array : kArrays) {
      const StoredArray& stored = layout.Of(split, array);
      const std::int64_t piece = std::min(kPartBytes, stored.Bytes());
      for (const std::int64_t at : {0, 1, 2}) {
        const std::int64_t from = stored.offset + (stored.Bytes() - piece) * at / 2;
        const std::int64_t got = ReadAt(file, room.data(), piece, from);
        if (got < piece && errno != 0) {
          throw InputError(fmt::format("{}: {}: cannot be read: {}", path,
                                       layout.PathOf(split, array), ErrorText(errno)));
        }
        sample.append(reinterpret_cast<const char*>(room.data()), static_cast<std::size_t>(got));
      }
    }
  }
  const std::array<std::string_view, 1> texts = {sample};
  return Sha256(texts);
}

Descriptor Open(const std::string& path) {
  Descriptor file(path, O_RDONLY | O_CLOEXEC);
  if (!file.Valid()) {
    throw InputError(fmt::format("{}: cannot be opened: {}", path, ErrorText(errno)));
  }
  return file;
}

}  // namespace

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

void TokenArrays::Read(const TokenLayout& layout, Split split, Array array, std::int64_t begin,
                       std::int64_t end, void* to) const {
  const StoredArray& stored = layout.Of(split, array);
  const std::span<std::byte> room(static_cast<std::byte*>(to),
                                  static_cast<std::size_t>((end - begin) * stored.width));
  const std::int64_t from = stored.offset + begin * stored.width;
  const std::int64_t got = ReadAt(file_.Get(), to, std::ssize(room), from);
  if (got < std::ssize(room) && errno != 0) {
    throw RunError(fmt::format("{}: {}: cannot be read at offset {}: {}", path_,
                               layout.PathOf(split, array), begin, ErrorText(errno)));
  }
  if (got < std::ssize(room)) {
    throw RunError(
        fmt::format(
            "{}: {}: the file ends before offset {}: it has shrunk since this job opened it", path_,
            layout.PathOf(split, array), begin + got / stored.width),
        kLeaveAlone);
  }
  if (!stored.big_endian) return;
  for (auto at = room.begin(); at != room.end(); at += stored.width) {
    std::reverse(at, at + stored.width);
  }
}

void TokenArrays::Prefetch(const TokenLayout& layout, Split split, Array array, std::int64_t begin,
                           std::int64_t end) const {
  const StoredArray& stored = layout.Of(split, array);
  end = std::min(end, stored.count);
  if (begin >= end) return;
  ::posix_fadvise(file_.Get(), stored.offset + begin * stored.width, (end - begin) * stored.width,
                  POSIX_FADV_WILLNEED);
}

void TokenArrays::RequireGood(const TokenLayout& layout, Split split, Array array,
                              const Elements& elements) const {
  const std::int64_t bad = FirstBad(layout, split, array, elements);
  if (bad == kNoElement) return;
  // A bad element may only mean that the file is being written to.
  RequireUnchanged();
  const std::uint64_t value = ValueAt(layout.Of(split, array), elements, bad);
  throw RunError(BadElement(path_, layout, split, array, {bad, value}).what());
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
