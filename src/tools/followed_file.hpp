// A file of lines that another program appends to, cuts and replaces.
#ifndef TRIREME_SRC_TOOLS_FOLLOWED_FILE_HPP_
#define TRIREME_SRC_TOOLS_FOLLOWED_FILE_HPP_

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/descriptor.hpp"

namespace trireme::tools {

class FollowedFile {
 public:
  enum class State {
    kMissing,
    kUnreadable,  // Reason() says why
    kBehind,      // more can be read at once
    kCaughtUp,
  };
  struct Visit {
    // A whole line without its newline. One longer than kMaxLine is passed as empty.
    std::function<void(std::string_view line)> line;
    // The file begins anew: it was replaced, cut, or has other bytes where it was read last.
    std::function<void()> restart;
  };
  static constexpr std::int64_t kMaxLine = std::int64_t{1} << 20;    // bytes
  static constexpr std::int64_t kReadBytes = std::int64_t{4} << 20;  // of one call of Read

  explicit FollowedFile(std::string path) : path_(std::move(path)) {}

  // Looks at the file and reads on. The end of a last line without a newline waits for the rest.
  State Read(const Visit& visit);

  const std::string& Path() const { return path_; }
  const std::string& Reason() const { return reason_; }
  double Fraction() const;  // read so far, of the bytes that were there at the last look
  std::int64_t ModifiedAt() const { return modified_; }  // seconds since 1970; 0: never seen

 private:
  bool Open(const Visit& visit);
  bool Continues() const;
  void BeginAnew(const Visit& visit);
  void Take(std::string_view bytes, const Visit& visit);
  State Fail(int error);

  std::string path_, reason_;
  std::optional<Descriptor> file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::int64_t offset_ = 0;  // read so far
  std::int64_t size_ = 0, modified_ = 0;
  std::string last_bytes_;      // read before offset_, to know the file again
  std::string begun_;           // of a line whose newline is not there yet
  bool begun_is_long_ = false;  // and its bytes are dropped
  std::string buffer_;
};

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_FOLLOWED_FILE_HPP_
