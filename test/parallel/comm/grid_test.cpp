// ProcessGrid: what fits, what does not, and what the user is told.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"

namespace trireme::comm {
namespace {

class GridTest : public testing::Test {
 protected:
  GridTest() { DeclareGrid(schema_); }
  input::Deck Deck(const std::string& text, const std::vector<std::string>& overrides = {}) const {
    return input::Deck::Parse(schema_, text, "a.in", overrides);
  }

  input::Schema schema_;
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
};

TEST_F(GridTest, ZeroTakesWhatIsLeft) {
  const ProcessGrid grid(world_, Deck(""));
  EXPECT_EQ(grid.Shape().data, world_.Size());
  EXPECT_EQ(grid.Shape().Ranks(), world_.Size());
  EXPECT_EQ(grid.Shape().tensor, 1);
  EXPECT_EQ(grid.Shape().pipeline, 1);
  EXPECT_EQ(grid.Shape().context, 1);
  EXPECT_EQ(grid.Coordinates().data, world_.Rank());
  EXPECT_EQ(grid.Coordinates().tensor, 0);
  EXPECT_EQ(grid.Data().Size(), world_.Size());
  EXPECT_EQ(grid.Data().Rank(), world_.Rank());
  EXPECT_EQ(&grid.World(), &world_);
}

TEST_F(GridTest, TheWorldsSizeFits) {
  const ProcessGrid grid(world_, Deck(fmt::format("[grid]\ndata = {}\n", world_.Size())));
  EXPECT_EQ(grid.Shape().data, world_.Size());
}

TEST_F(GridTest, AnotherSizeIsRefusedByAllRanks) {
  try {
    const ProcessGrid grid(world_, Deck("[grid]\ndata = 3\n"));
    FAIL() << "3 ranks were accepted";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_EQ(std::string(error.what()),
              fmt::format("a.in:2: grid.data = 3: the grid has 3 ranks, the job has {0}\n"
                          "  What fits: grid.data = {0}, or 0 (what is left); or start the job "
                          "with 3 ranks.",
                          world_.Size()));
  }
}

TEST_F(GridTest, SizesBeyondAnIntAreRefused) {
  EXPECT_THROW(ProcessGrid(world_, Deck("", {"grid.data=4294967297"})), AgreedError);
}

}  // namespace
}  // namespace trireme::comm
