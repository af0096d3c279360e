// Places of Trireme's own files, for a program in a prefix and in a build folder.
#include "trireme/base/program.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "folder_test.hpp"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Installation = test::FolderTest;

TEST_F(Installation, SharedFilesAreFoundFromTheProgramsPlace) {
  EXPECT_EQ(SharedFolder(""), "");
  EXPECT_EQ(SharedFolder(In("prefix/bin/trireme")), "");
  fs::create_directories(In("prefix/share/trireme/input"));
  fs::create_directories(In("prefix/bin"));
  EXPECT_EQ(SharedFolder(In("prefix/bin/trireme")), In("prefix/share/trireme"));
  fs::create_directories(In("tree/input"));
  fs::create_directories(In("tree/build"));
  EXPECT_EQ(SharedFolder(In("tree/build/trireme")), In("tree/"));
}

TEST_F(Installation, ThisProgramsFileIsThere) { EXPECT_TRUE(fs::is_regular_file(ProgramFile())); }

}  // namespace
}  // namespace trireme
