// Plain files by positioned reads, gzip by zlib (several members), zstd by its library (several
// frames).
#include "text_source.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <vector>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"

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
    std::size_t filled = 0;
    while (filled < to.size()) {
      const auto got = Retry(
          [&] { return ::pread(descriptor_.Get(), to.data() + filled, to.size() - filled, at_); });
      if (got < 0) {
        throw RunError(
            fmt::format("{}: cannot be read at byte {}: {}", file_.path, at_, ErrorText(errno)));
      }
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
      at_ += got;
    }
    const bool ended = filled < to.size();
    if (at_ > file_.bytes || (ended && at_ != file_.bytes)) {
      throw InputError(
          fmt::format("{}: had {} bytes and changed while it was read", file_.path, file_.bytes));
    }
    return filled;
  }
  std::int64_t BytesRead() const override { return at_ - begin_; }

 private:
  TextFile file_;
  Descriptor descriptor_;
  std::int64_t begin_, at_;
};

// Packed bytes from a plain source, and the complaint about damaged ones.
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
    constexpr int kGzipWindow = 15 + 16;  // largest window, gzip's header
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
      if (between_ && *stream_.next_in == 0) {  // fills up the end of a file
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
  bool between_ = false;  // a member has ended, and no other begun
};

class ZstdSource : public TextSource {
 public:
  explicit ZstdSource(const TextFile& file) : packed_(file), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw RunError("zstd cannot be started");
    // Files made with --long: the library refuses windows above 128 MiB else.
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
  bool flushed_ = true;     // the library keeps nothing back for which there was no room
};

}  // namespace

std::unique_ptr<TextSource> OpenText(const TextFile& file, std::int64_t begin) {
  if (file.packing == Packing::kGzip) return std::make_unique<GzipSource>(file);
  if (file.packing == Packing::kZstd) return std::make_unique<ZstdSource>(file);
  return std::make_unique<PlainSource>(file, begin);
}

}  // namespace trireme::data
