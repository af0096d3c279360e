// Ledger: sums by group and kind of transfer, and the bytes that a good algorithm moves.
#include "trireme/comm/ledger.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>

namespace trireme::comm {
namespace {

TEST(Ledger, SumsByGroupAndKind) {
  Ledger ledger;
  ledger.Record(Group::kTensor, Transfer::kAllReduce, 4, 1000, 0.5, 0.25);
  ledger.Record(Group::kTensor, Transfer::kAllReduce, 4, 600, 1, 0);
  ledger.Record(Group::kTensor, Transfer::kAllGather, 4, 400, 2, 0);
  ledger.Record(Group::kData, Transfer::kAllReduce, 2, 8, 4, 8);
  const Traffic& traffic = ledger.At(Group::kTensor, Transfer::kAllReduce);
  EXPECT_EQ(traffic.calls, 2);
  EXPECT_EQ(traffic.payload, 1600);
  EXPECT_DOUBLE_EQ(traffic.moved, 2400);
  EXPECT_DOUBLE_EQ(traffic.seconds_waited, 1.5);
  EXPECT_DOUBLE_EQ(traffic.seconds_hidden, 0.25);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kTensor), 3.5);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kData), 4);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kPipeline), 0);
  ledger.AddWaited(Group::kTensor, 0.5);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kTensor), 4);
  EXPECT_DOUBLE_EQ(ledger.At(Group::kTensor, Transfer::kAllReduce).seconds_waited, 1.5);
  ledger.Clear();
  EXPECT_EQ(ledger.At(Group::kTensor, Transfer::kAllReduce).calls, 0);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kTensor), 0);
}

TEST(Ledger, BytesMovedFollowTheKind) {
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllReduce, 4, 1000), 1500);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kReduceScatter, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllGather, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllToAll, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kBroadcast, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kSend, 4, 1000), 1000);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kReceive, 4, 1000), 0);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllReduce, 1, 1000), 0);
}

TEST(Ledger, HasNames) {
  EXPECT_EQ(std::string(NameOf(Group::kKeyValue)), "key/value");
  EXPECT_EQ(std::string(NameOf(Group::kData)), "data");
  EXPECT_EQ(std::string(NameOf(Transfer::kReduceScatter)), "reduce-scatter");
  EXPECT_EQ(std::string(NameOf(Transfer::kReceive)), "receive");
  EXPECT_EQ(std::string(NameOf(Transfer::kAllToAll)), "all-to-all");
  std::set<std::string> groups, transfers;
  for (int i = 0; i < kGroups; ++i) groups.insert(NameOf(static_cast<Group>(i)));
  for (int i = 0; i < kTransfers; ++i) transfers.insert(NameOf(static_cast<Transfer>(i)));
  EXPECT_EQ(groups, (std::set<std::string>{"world", "data", "shard", "context", "tensor",
                                           "pipeline", "embedding", "key/value", "replica"}));
  EXPECT_EQ(transfers.size(), static_cast<std::size_t>(kTransfers));
  EXPECT_EQ(transfers.count("?"), 0u);
}

}  // namespace
}  // namespace trireme::comm
