// Transfers beyond one call's limit are refused before they are tried.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {
namespace {

std::string Complaint(comm::Sharding sharding, std::int64_t rows) {
  kernels::ParameterList list;
  list.BeginUnit("small");
  kernels::Parameter parameter{.name = "a", .shape = {8, 8}, .initialiser = {}};
  list.Add(parameter);
  list.BeginUnit("large");
  parameter.name = "b";
  parameter.shape = {rows, 1 << 14};
  list.Add(parameter);
  const ShardSetup setup{.sharding = sharding, .rank = 1, .ranks = 2};
  try {
    const kernels::Ownership owns = PlanOwnership(list, Dtype::kFloat32, setup);
    CheckTransfers(list, owns);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return {};
}

TEST(Ownership, APieceBeyondOneTransferIsRefused) {
  constexpr std::int64_t kFits = (1 << 17) - 1;
  for (const auto sharding :
       {comm::Sharding::kOptimizer, comm::Sharding::kGradients, comm::Sharding::kParameters}) {
    EXPECT_EQ(Complaint(sharding, kFits), "");
    EXPECT_THAT(Complaint(sharding, kFits + 1),
                testing::HasSubstr("grid.sharding: large has 2147483648 elements on a rank"));
  }
  EXPECT_EQ(Complaint(comm::Sharding::kNone, kFits + 1), "");
}

}  // namespace
}  // namespace trireme::parallel
