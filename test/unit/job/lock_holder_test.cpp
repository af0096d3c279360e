// Proofs that the holder of a run folder is gone, for descriptions of hosts that are not this one.
#include "lock_holder.hpp"

#include <gtest/gtest.h>

namespace trireme::app {
namespace {

constexpr const char* kFirst = "11111111-1111-1111-1111-111111111111";
constexpr const char* kSecond = "22222222-2222-2222-2222-222222222222";

Holder On(const std::string& host, const std::string& machine, const std::string& boot) {
  Holder holder = ThisProcess({});
  holder.host = host;
  holder.machine = machine;
  holder.boot = boot;
  return holder;
}

TEST(LockHolder, ARestartedHostIsProvenByTheIdOfItsMachine) {
  EXPECT_EQ(FateOf(On("node", "a", kFirst), On("node", "a", kSecond)).gone,
            "the host was started again since");
  EXPECT_EQ(FateOf(On("node", "a", kFirst), On("node", "b", kSecond)).gone, "");
}

// Containers of two machines may have one host name and no /etc/machine-id.
TEST(LockHolder, TwoMachinesWithoutAnIdAreNotOne) {
  const Fate fate = FateOf(On("node", "", kFirst), On("node", "", kSecond));
  EXPECT_FALSE(fate.runs);
  EXPECT_EQ(fate.gone, "");
}

TEST(LockHolder, AProcessOfThisBootIsSeenWithoutAnId) {
  Holder holder = On("node", "", kFirst);
  const Holder self = On("node", "", kFirst);
  EXPECT_TRUE(FateOf(holder, self).runs);
  holder.started -= 1;
  EXPECT_EQ(FateOf(holder, self).gone, "its process has ended");
}

}  // namespace
}  // namespace trireme::app
