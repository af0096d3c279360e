// Memory shared by the ranks of a node: one copy, no room, nothing left behind.
#include "trireme/comm/shared_memory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {
namespace {

class SharedMemoryTest : public testing::Test {
 protected:
  // Files of this rank in /dev/shm.
  static int Left() {
    int files = 0;
    const std::string mine =
        "trireme." + std::to_string(::getuid()) + "." + std::to_string(::getpid());
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      files += entry.path().filename().string().starts_with(mine) ? 1 : 0;
    }
    return files;
  }
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
};

TEST_F(SharedMemoryTest, AllRanksSeeOneZeroedCopy) {
  constexpr std::int64_t kBytes = 3 << 20;
  SharedMemory memory(world_, kBytes);
  ASSERT_EQ(memory.Error(), 0);
  std::byte* const data = memory.Data();
  EXPECT_TRUE(std::all_of(data, data + kBytes, [](std::byte b) { return b == std::byte{0}; }));
  world_.Barrier();
  data[world_.Rank()] = std::byte{static_cast<unsigned char>(world_.Rank() + 1)};
  data[kBytes - 1 - world_.Rank()] = data[world_.Rank()];
  world_.Barrier();
  for (int rank = 0; rank < world_.Size(); ++rank) {
    EXPECT_EQ(data[rank], std::byte{static_cast<unsigned char>(rank + 1)});
    EXPECT_EQ(data[kBytes - 1 - rank], data[rank]);
  }
  EXPECT_EQ(Left(), 0);
}

TEST_F(SharedMemoryTest, NoRoomIsAnErrorOfAllRanks) {
  const SharedMemory memory(world_, std::int64_t{1} << 50);
  const int error = memory.Error();
  EXPECT_TRUE(error == ENOSPC || error == EFBIG || error == ENOMEM) << error;
  EXPECT_EQ(world_.Min(std::int64_t{error}), world_.Max(std::int64_t{error}));
  EXPECT_EQ(memory.Data(), nullptr);
  EXPECT_EQ(Left(), 0);
}

}  // namespace
}  // namespace trireme::comm
