// Lines of a file that were seen, so that those of a file cut and replaced are not told again.
#ifndef TRIREME_SRC_TOOLS_KNOWN_LINES_HPP_
#define TRIREME_SRC_TOOLS_KNOWN_LINES_HPP_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::tools {

// A file that begins anew holds some of the old lines, in their order, then new ones: a run that is
// resumed leaves out what came after its checkpoint. Eight bytes a line.
class KnownLines {
 public:
  void BeginAnew() { next_ = 0, again_ = !hashes_.empty(); }
  // True for a line that was not seen before the file began anew.
  bool IsNew(std::string_view line);

 private:
  std::vector<std::uint64_t> hashes_;
  std::size_t next_ = 0;  // of the old lines, not met again yet
  bool again_ = false;    // old lines may still come
};

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_KNOWN_LINES_HPP_
