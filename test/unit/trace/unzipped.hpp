// Contents of a file that gzip has compressed.
#ifndef TRIREME_TEST_UNIT_TRACE_UNZIPPED_HPP_
#define TRIREME_TEST_UNIT_TRACE_UNZIPPED_HPP_

#include <zlib.h>

#include <array>
#include <string>

namespace trireme::test {

inline std::string Unzipped(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text;
  std::array<char, 4096> buffer{};
  for (int got = 0; (got = gzread(file, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  gzclose(file);
  return text;
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_UNIT_TRACE_UNZIPPED_HPP_
