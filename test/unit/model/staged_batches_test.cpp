// The order of StagedBatches' stages, which hold for every device: a wrong one is an error at once.
// Copies to a GPU are the matter of test/unit/driver_cuda.
#include "trireme/model/staged_batches.hpp"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using model::StagedBatches;
using Batches = std::vector<data::Entry>;

// A ticket cannot be copied, made up, or used at another stage.
static_assert(!std::is_copy_constructible_v<StagedBatches::Staged>);
static_assert(!std::is_copy_constructible_v<StagedBatches::Taken>);
static_assert(!std::is_default_constructible_v<StagedBatches::Staged>);
static_assert(!std::is_default_constructible_v<StagedBatches::Taken>);
static_assert(!std::is_convertible_v<StagedBatches::Staged, StagedBatches::Taken>);
static_assert(!std::is_constructible_v<StagedBatches::Taken, StagedBatches::Staged>);
static_assert(
    !std::is_constructible_v<StagedBatches::Taken, std::span<const data::Entry>, std::uint64_t>);

Batches TwoEntries() {
  Batches batches(2);
  for (data::Entry& batch : batches) {
    batch.sequences = 1;
    batch.length = 3;
    batch.inputs = {1, 2, 3};
    batch.targets = {2, 3, 4};
    batch.ordinals = {7};
  }
  return batches;
}

class Staged : public testing::Test {
 protected:
  const Batches first_ = TwoEntries(), second_ = TwoEntries();
  StagedBatches staged_{{}, {.entries = 2, .sequences = 1, .length = 3}};
};

TEST_F(Staged, OnTheCpuTokensStayWhereTheyAre) {
  EXPECT_EQ(staged_.Bytes(), 0);
  const auto opened = staged_.Open(staged_.Take(staged_.Stage(first_)));
  EXPECT_EQ(opened.data(), first_.data());
  EXPECT_EQ(staged_.At(1).inputs, first_[1].inputs.data());
  EXPECT_EQ(staged_.At(1).targets, first_[1].targets.data());
  EXPECT_EQ(staged_.At(0).ordinals, first_[0].ordinals.data());
}

// An evaluation between two steps.
TEST_F(Staged, OthersMayComeInBetween) {
  StagedBatches::Staged ahead = staged_.Stage(first_);
  EXPECT_EQ(staged_.Open(staged_.Take(staged_.Stage(second_))).data(), second_.data());
  EXPECT_EQ(staged_.Open(staged_.Take(std::move(ahead))).data(), first_.data());
  EXPECT_EQ(staged_.At(0).inputs, first_[0].inputs.data());
}

TEST_F(Staged, ATicketIsUsedOnce) {
  StagedBatches::Staged ticket = staged_.Stage(first_);
  StagedBatches::Taken taken = staged_.Take(std::move(ticket));
  EXPECT_TRUE(ticket.Batches().empty());  // NOLINT(bugprone-use-after-move): that is the test
  EXPECT_THROW((void)staged_.Take(std::move(ticket)), Error);
  staged_.Open(std::move(taken));
  EXPECT_THROW(staged_.Open(std::move(taken)), Error);
}

// The computation would read the other batches.
TEST_F(Staged, OnlyTheBatchesInPlaceAreOpened) {
  StagedBatches::Taken early = staged_.Take(staged_.Stage(first_));
  StagedBatches::Taken late = staged_.Take(staged_.Stage(second_));
  EXPECT_THROW(staged_.Open(std::move(early)), Error);
  EXPECT_EQ(staged_.Open(std::move(late)).data(), second_.data());
}

TEST_F(Staged, NoMoreThanPlanned) {
  Batches three = TwoEntries();
  three.push_back(three.front());
  EXPECT_THROW((void)staged_.Stage(three), Error);
}

}  // namespace
}  // namespace trireme::test
