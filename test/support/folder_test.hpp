// A temporary folder for each test, and small files read and written whole.
#ifndef TRIREME_TEST_SUPPORT_FOLDER_TEST_HPP_
#define TRIREME_TEST_SUPPORT_FOLDER_TEST_HPP_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "temporary_folder.hpp"

namespace trireme::test {

class FolderTest : public testing::Test {
 protected:
  std::string In(const std::string& name) const { return home_ / name; }

  const TemporaryFolder home_;
  const std::string& folder_ = home_.Path();
};

// Bytes of the file; empty if it cannot be read.
inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_FOLDER_TEST_HPP_
