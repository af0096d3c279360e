// Transfers that a rank counted against those that were planned for it.
#ifndef TRIREME_TEST_SUPPORT_SAME_LEDGERS_HPP_
#define TRIREME_TEST_SUPPORT_SAME_LEDGERS_HPP_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "trireme/comm/ledger.hpp"

namespace trireme::test {

// Calls, payload and bytes moved of each group and transfer.
inline void ExpectSame(const comm::Ledger& got, const comm::Ledger& planned,
                       const std::string& what) {
  for (int group = 0; group < comm::kGroups; ++group) {
    for (int transfer = 0; transfer < comm::kTransfers; ++transfer) {
      const auto name = static_cast<comm::Group>(group);
      const auto kind = static_cast<comm::Transfer>(transfer);
      const comm::Traffic &mine = got.At(name, kind), &wanted = planned.At(name, kind);
      const std::string which =
          fmt::format("{}, {} {}", what, comm::NameOf(name), comm::NameOf(kind));
      EXPECT_EQ(mine.calls, wanted.calls) << which;
      EXPECT_EQ(mine.payload, wanted.payload) << which;
      EXPECT_EQ(mine.moved, wanted.moved) << which;
    }
  }
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_SAME_LEDGERS_HPP_
