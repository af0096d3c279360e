// Descriptors, and folders that are durable in those above them.
#include "trireme/base/descriptor.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class Folders : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(root_.data()), nullptr); }
  void TearDown() override { fs::remove_all(root_); }
  std::string root_ = (fs::temp_directory_path() / "trireme_XXXXXX").string();
};

TEST_F(Folders, AreMadeWithinMadeFolders) {
  EXPECT_EQ(MakeFolderDurably(root_ + "/a/b/c/"), 0);
  EXPECT_TRUE(fs::is_directory(root_ + "/a/b/c"));
  EXPECT_EQ(MakeFolderDurably(root_ + "/a/b/c"), 0);
  std::ofstream(root_ + "/file").flush();
  EXPECT_EQ(MakeFolderDurably(root_ + "/file/d"), ENOTDIR);
  EXPECT_EQ(MakeFolderDurably(root_ + "/file"), ENOTDIR);
}

TEST_F(Folders, ThatDoNotExistCannotBeSynced) {
  EXPECT_EQ(SyncToDisk(root_), 0);
  EXPECT_EQ(SyncToDisk(root_ + "/none"), ENOENT);
}

TEST_F(Folders, AreClosedOnce) {
  Descriptor folder(root_, O_RDONLY);
  ASSERT_TRUE(folder.Valid());
  Descriptor moved(std::move(folder));
  EXPECT_FALSE(folder.Valid());  // NOLINT(bugprone-use-after-move): what a move leaves
  EXPECT_EQ(moved.Close(), 0);
  EXPECT_EQ(moved.Close(), 0);
  EXPECT_FALSE(Descriptor(root_ + "/none", O_RDONLY).Valid());
}

}  // namespace
}  // namespace trireme
