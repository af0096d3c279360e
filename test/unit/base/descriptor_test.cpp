// Descriptors, and folders that are durable in those above them.
#include "trireme/base/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "folder_test.hpp"

namespace trireme {
namespace {

namespace fs = std::filesystem;

using Folders = test::FolderTest;

TEST_F(Folders, AreMadeWithinMadeFolders) {
  EXPECT_EQ(MakeFolderDurably(In("a/b/c/")), 0);
  EXPECT_TRUE(fs::is_directory(In("a/b/c")));
  EXPECT_EQ(MakeFolderDurably(In("a/b/c")), 0);
  test::WriteBytes(In("file"), "");
  EXPECT_EQ(MakeFolderDurably(In("file/d")), ENOTDIR);
  EXPECT_EQ(MakeFolderDurably(In("file")), ENOTDIR);
}

TEST_F(Folders, ThatDoNotExistCannotBeSynced) {
  EXPECT_EQ(SyncToDisk(folder_), 0);
  EXPECT_EQ(SyncToDisk(In("none")), ENOENT);
}

TEST_F(Folders, AreClosedOnce) {
  Descriptor folder(folder_, O_RDONLY);
  ASSERT_TRUE(folder.Valid());
  Descriptor moved(std::move(folder));
  EXPECT_FALSE(folder.Valid());  // NOLINT(bugprone-use-after-move): what a move leaves
  EXPECT_EQ(moved.Close(), 0);
  EXPECT_EQ(moved.Close(), 0);
  EXPECT_FALSE(Descriptor(In("none"), O_RDONLY).Valid());
}

}  // namespace
}  // namespace trireme
