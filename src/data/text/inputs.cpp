// Globs by glob(3), formats by first bytes and file names; plain, gzip (also several members) and
// zstd (also several frames) files.
#include "inputs.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <map>
#include <string_view>

#include "token_file_draft.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::data {

namespace {

constexpr std::size_t kPackedBuffer = std::size_t{1} << 18;  // bytes

class PlainSource : public TextSource {
 public:
  PlainSource(const TextFile& file, std::int64_t begin)
      : file_(file), descriptor_(file.path, O_RDONLY), begin_(begin), at_(begin) {
    if (descriptor_.Valid()) return;
    throw InputError(fmt::format("{}: cannot be opened: {}", file.path, ErrorText(errno)));
  }

  std::size_t Read(std::span<char> to) override {
    const std::int64_t got = ReadAt(descriptor_.Get(), to.data(), std::ssize(to), at_);
    const int error = got < std::ssize(to) ? errno : 0;
    at_ += got;
    if (error != 0) {
      throw RunError(
          fmt::format("{}: cannot be read at byte {}: {}", file_.path, at_, ErrorText(error)));
    }
    const bool ended = got < std::ssize(to);
    if (at_ > file_.bytes || (ended && at_ != file_.bytes)) {
      throw InputError(
          fmt::format("{}: had {} bytes and changed while it was read", file_.path, file_.bytes));
    }
    return static_cast<std::size_t>(got);
  }
  std::int64_t BytesRead() const override { return at_ - begin_; }

 private:
  TextFile file_;
  Descriptor descriptor_;
  std::int64_t begin_, at_;
};

// Reads packed bytes, and makes the error for damaged ones.
class PackedBytes {
 public:
  explicit PackedBytes(const TextFile& file)
      : path_(file.path), source_(file, 0), buffer_(kPackedBuffer) {}

  std::span<const char> Next() { return {buffer_.data(), source_.Read(buffer_)}; }
  std::int64_t BytesRead() const { return source_.BytesRead(); }
  Error Damaged(const std::string& reason) const {
    return InputError(fmt::format("{}: is damaged before byte {} of the packed file: {}", path_,
                                  source_.BytesRead(), reason));
  }

 private:
  std::string path_;
  PlainSource source_;
  std::vector<char> buffer_;
};

class GzipSource : public TextSource {
 public:
  explicit GzipSource(const TextFile& file) : packed_(file) {
    constexpr int kGzipWindow = 15 + 16;  // largest window, with gzip's header
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) throw RunError("zlib cannot be started");
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  std::size_t Read(std::span<char> to) override {
    stream_.next_out = reinterpret_cast<Bytef*>(to.data());
    stream_.avail_out = static_cast<uInt>(to.size());
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0 && !Refill()) break;
      if (between_ && *stream_.next_in == 0) {  // padding at the end of a file
        ++stream_.next_in;
        --stream_.avail_in;
        continue;
      }
      if (between_) inflateReset(&stream_);
      between_ = false;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        between_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        throw packed_.Damaged(stream_.msg == nullptr ? "not gzip" : stream_.msg);
      }
    }
    return to.size() - stream_.avail_out;
  }
  std::int64_t BytesRead() const override { return packed_.BytesRead(); }

 private:
  bool Refill() {
    const std::span<const char> bytes = packed_.Next();
    if (bytes.empty() && !between_) throw packed_.Damaged("the end is missing");
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    return !bytes.empty();
  }

  PackedBytes packed_;
  z_stream stream_{};
  bool between_ = false;  // after the end of a member, before the next
};

class ZstdSource : public TextSource {
 public:
  explicit ZstdSource(const TextFile& file) : packed_(file), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw RunError("zstd cannot be started");
    // Accepts files made with --long; by default the library refuses windows above 128 MiB.
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 31);
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }
  ZstdSource(const ZstdSource&) = delete;
  ZstdSource& operator=(const ZstdSource&) = delete;

  std::size_t Read(std::span<char> to) override {
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    while (out.pos < out.size) {
      if (in_.pos == in_.size && flushed_) {
        const std::span<const char> bytes = packed_.Next();
        if (bytes.empty()) {
          if (wanted_ != 0) throw packed_.Damaged("the end is missing");
          break;
        }
        in_ = {bytes.data(), bytes.size(), 0};
      }
      wanted_ = ZSTD_decompressStream(stream_, &out, &in_);
      if (ZSTD_isError(wanted_) != 0) throw packed_.Damaged(ZSTD_getErrorName(wanted_));
      flushed_ = out.pos < out.size || wanted_ == 0;
    }
    return out.pos;
  }
  std::int64_t BytesRead() const override { return packed_.BytesRead(); }

 private:
  PackedBytes packed_;
  ZSTD_DStream* stream_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  std::size_t wanted_ = 0;  // 0: at the end of a frame
  bool flushed_ = true;     // the library holds no more output for which there was no room
};

std::vector<std::string> Parts(const std::string& list) {
  std::vector<std::string> parts(1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '\\' && i + 1 < list.size() && list[i + 1] == ',') {
      parts.back() += list[++i];
    } else if (list[i] == ',') {
      parts.emplace_back();
    } else {
      parts.back() += list[i];
    }
  }
  for (std::string& part : parts) part = std::string(deck::Trimmed(part));
  std::erase(parts, "");
  return parts;
}

std::vector<std::string> Expand(const std::string& pattern) {
  const bool is_glob = pattern.find_first_of("*?[") != std::string::npos;
  std::error_code error;
  if (std::filesystem::exists(pattern, error)) return {pattern};
  if (error && !is_glob) {
    throw InputError(fmt::format("{}: cannot be read: {}", pattern, error.message()));
  }
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths;
  if (result == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());
  if (!paths.empty()) return paths;
  if (pattern.find("**") != std::string::npos) {
    throw InputError(pattern + ": '**' does not stand for folders within folders",
                     "Name them one by one: folder/*.txt, folder/*/*.txt");
  }
  if (!is_glob) throw InputError(pattern + ": there is no such file", AdviceOnMissing(pattern));
  throw InputError(
      pattern + ": no file matches",
      "'*', '?' and '[...]' stand for other characters; '\\' before one takes it as it "
      "is. A comma within a name is written '\\,'.");
}

bool TakeEnding(std::string_view& name, std::string_view ending) {
  if (!name.ends_with(ending)) return false;
  name.remove_suffix(ending.size());
  return true;
}

constexpr const char* kMakeJsonLines =
    "Make JSON lines of it: python3 vis/parquet_to_jsonl.py FILES -o FOLDER";
constexpr const char* kUnpack = "Unpack it, or pack its text as .gz or .zst.";

// Throws InputError for files whose names show a format that is not read.
void RefuseNames(const std::string& path, std::string_view lower) {
  if (lower.ends_with(".parquet")) throw InputError(path + ": Parquet is not read", kMakeJsonLines);
  for (const char* ending : {".bz2", ".xz", ".lz4", ".zip", ".7z", ".z", ".tar"}) {
    if (!lower.ends_with(ending)) continue;
    throw InputError(fmt::format("{}: {} is not read", path, ending), kUnpack);
  }
}

// The text's first bytes, unpacked; empty if they cannot be read.
std::string Head(const TextFile& file) {
  constexpr std::size_t kBytes = 4096;
  std::string head(kBytes, '\0');
  try {
    head.resize(OpenText(file, 0)->Read(head));
  } catch (const Error&) {  // reported when the file is read
    head.clear();
  }
  return head;
}

struct Format {
  std::string_view begin;
  const char *name, *hint;
};
using namespace std::string_view_literals;
constexpr std::array kFormats = {
    Format{"BZh"sv, "bzip2", kUnpack},
    Format{"\xFD"
           "7zXZ"sv,
           "xz", kUnpack},
    Format{"\x04\x22\x4D\x18"sv, "lz4", kUnpack},
    Format{"\x1F\x9D"sv, "compress (.Z)", kUnpack},
    Format{"PK\x03\x04"sv, "zip", kUnpack},
    Format{"7z\xBC\xAF"sv, "7z", kUnpack},
    Format{"PAR1"sv, "Parquet", kMakeJsonLines},
    Format{"\x89HDF"sv, "HDF5", "A token file is named by data.file."},
    Format{"version https://git-lfs"sv, "a pointer of Git LFS",
           "'git lfs pull' in the folder that was cloned fetches the file itself."},
    Format{"%PDF-"sv, "PDF", "Make plain text of it."},
    Format{"\xFF\xFE"sv, "UTF-16", "Make UTF-8 of it: iconv -f UTF-16 -t UTF-8"},
    Format{"\xFE\xFF"sv, "UTF-16", "Make UTF-8 of it: iconv -f UTF-16 -t UTF-8"}};

// Whether this looks like UTF-16 without a byte order mark: nearly every second byte is NUL, few
// others are.
bool IsUtf16(std::string_view head) {
  constexpr std::size_t kLeast = 16;
  std::array<std::size_t, 2> zeros{};
  for (std::size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0' ? 1 : 0;
  const auto [few, many] = std::minmax(zeros[0], zeros[1]);
  return head.size() >= kLeast && many * 2 >= head.size() * 9 / 10 && few * 20 <= head.size();
}

void RefuseContents(const std::string& path, std::string_view head) {
  for (const Format& format : kFormats) {
    if (!head.starts_with(format.begin)) continue;
    throw InputError(fmt::format("{}: is {}, which is not read", path, format.name), format.hint);
  }
  constexpr std::size_t kTarMagic = 257;
  if (head.size() > kTarMagic && head.substr(kTarMagic).starts_with("ustar")) {
    throw InputError(path + ": is a tar archive, which is not read",
                     "Unpack it, and name its files: folder/*.txt");
  }
  if (IsUtf16(head)) {
    throw InputError(path + ": is UTF-16, which is not read: every second byte is NUL",
                     "Make UTF-8 of it: iconv -f UTF-16LE -t UTF-8");
  }
}

// Throws InputError for JSON that does not have one record per line.
void RefuseOtherJson(const std::string& path, std::string_view head) {
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  const std::size_t end = head.find_first_of("\r\n");
  const std::string_view first = deck::Trimmed(head.substr(0, end));
  if (first.starts_with('[')) {
    throw InputError(path + ": is one JSON array: one record per line is read",
                     "Make lines of it: jq -c '.[]' FILE > FILE.jsonl");
  }
  if (first == "{" && head.find_first_not_of(" \t\r\n", end) != std::string_view::npos) {
    throw InputError(path + ": has records over several lines: one record per line is read",
                     "Make lines of it: jq -c . FILE > FILE.jsonl");
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
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) {
    throw InputError(fmt::format("{}: its size is unknown: {}", path, ErrorText(errno)));
  }
  TextFile file{.path = path,
                .split = split,
                .bytes = facts.st_size,
                .device = facts.st_dev,
                .inode = facts.st_ino};
  std::string lower = path;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  std::string_view name = lower;
  const std::string packed = Head(file);
  RefuseContents(path, packed);
  if (packed.starts_with("\x1F\x8B") || TakeEnding(name, ".gz") || TakeEnding(name, ".tgz")) {
    file.packing = Packing::kGzip;
  } else if (packed.starts_with("\x28\xB5\x2F\xFD") || TakeEnding(name, ".zst")) {
    file.packing = Packing::kZstd;
  }
  if (file.packing != Packing::kNone) RefuseContents(path, Head(file));
  RefuseNames(path, name);
  for (const char* ending : {".gz", ".zst"}) TakeEnding(name, ending);
  file.json_lines =
      TakeEnding(name, ".jsonl") || TakeEnding(name, ".json") || TakeEnding(name, ".ndjson");
  if (file.json_lines) RefuseOtherJson(path, Head(file));
  return file;
}

}  // namespace

std::unique_ptr<TextSource> OpenText(const TextFile& file, std::int64_t begin) {
  if (file.packing == Packing::kGzip) return std::make_unique<GzipSource>(file);
  if (file.packing == Packing::kZstd) return std::make_unique<ZstdSource>(file);
  return std::make_unique<PlainSource>(file, begin);
}

std::vector<TextFile> FindTextFiles(const std::string& list, Split split) {
  std::vector<TextFile> files;
  for (const std::string& part : Parts(list)) {
    for (const std::string& path : Expand(part)) files.push_back(Describe(path, split));
  }
  if (files.empty()) throw InputError("no file is named");
  return files;
}

bool IsReplaced(const TextFile& file, const std::string& target) {
  std::error_code none;
  return std::filesystem::equivalent(file.path, target, none) ||
         std::filesystem::equivalent(file.path, DraftOf(target), none);
}

std::vector<std::string> NamedTwice(const std::vector<TextFile>& files) {
  std::vector<std::string> sentences;
  std::map<std::pair<std::uint64_t, std::uint64_t>, const TextFile*> seen;
  for (const TextFile& file : files) {
    const auto [first, added] = seen.emplace(std::pair(file.device, file.inode), &file);
    if (added) continue;
    const TextFile& other = *first->second;
    const std::string names = file.path == other.path ? file.path : other.path + ", " + file.path;
    sentences.push_back(
        file.split == other.split
            ? fmt::format("{}: the same text twice in the {} split", names, NameOf(file.split))
            : fmt::format("{}: the same text in the {} and the {} split", names,
                          NameOf(other.split), NameOf(file.split)));
  }
  return sentences;
}

}  // namespace trireme::data
