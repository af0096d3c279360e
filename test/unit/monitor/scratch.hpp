// A folder for one test, removed behind it, and the reading of small files.
#ifndef TRIREME_TEST_UNIT_MONITOR_SCRATCH_HPP_
#define TRIREME_TEST_UNIT_MONITOR_SCRATCH_HPP_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "temporary_folder.hpp"

namespace trireme::monitor {

class Scratch : public testing::Test {
 protected:
  std::string In(const std::string& name) const { return folder_ + "/" + name; }

  const test::TemporaryFolder home_;
  const std::string& folder_ = home_.Path();
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace trireme::monitor

#endif  // TRIREME_TEST_UNIT_MONITOR_SCRATCH_HPP_
