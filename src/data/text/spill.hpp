// A file without a name that keeps what memory should not: gone when its process is.
#ifndef TRIREME_SRC_DATA_TEXT_SPILL_HPP_
#define TRIREME_SRC_DATA_TEXT_SPILL_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/descriptor.hpp"

namespace trireme::data {

// Appended to, then read. All throw RunError with the folder.
class Spill {
 public:
  explicit Spill(const std::string& folder);

  void Append(const void* bytes, std::size_t count);
  std::int64_t Size() const { return size_; }
  // Bytes [begin, begin + count), all of them appended before.
  void Read(std::int64_t begin, void* to, std::size_t count);
  // Changes such bytes.
  void Overwrite(std::int64_t begin, const void* bytes, std::size_t count);
  // Gives back the space of bytes [begin, end), which are not read again, if the file system can.
  // Bytes not yet written to the disk never are on tmpfs and newer ext4.
  void Release(std::int64_t begin, std::int64_t end);

 private:
  void Flush();
  void Put(std::int64_t begin, const void* bytes, std::size_t count);
  void Get(std::int64_t begin, char* to, std::size_t count);

  std::string folder_;
  Descriptor file_;
  std::vector<char> buffer_;  // the last bytes, not in the file yet
  std::vector<char> ahead_;   // bytes of the file from ahead_begin_ on, for small reads in order
  std::int64_t ahead_begin_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_SPILL_HPP_
