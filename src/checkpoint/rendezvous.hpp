// Small items from any rank to any rank, for meetings of what two ranks know at a third one.
#ifndef TRIREME_SRC_CHECKPOINT_RENDEZVOUS_HPP_
#define TRIREME_SRC_CHECKPOINT_RENDEZVOUS_HPP_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

// Collective. Sends item i of `bytes` bytes to rank to[i]; returns those for this rank, in the
// order of their senders. Nothing grows with the number of ranks.
std::vector<std::byte> DeliverBytes(const comm::Communicator& world, const std::vector<int>& to,
                                    const void* items, std::int64_t bytes);

template <typename Item>
std::vector<Item> Deliver(const comm::Communicator& world, const std::vector<int>& to,
                          const std::vector<Item>& items) {
  static_assert(std::is_trivially_copyable_v<Item>);
  const std::vector<std::byte> got =
      DeliverBytes(world, to, items.data(), static_cast<std::int64_t>(sizeof(Item)));
  std::vector<Item> result(got.size() / sizeof(Item));
  auto* const out = reinterpret_cast<std::byte*>(result.data());
  for (std::size_t i = 0; i < got.size(); ++i) out[i] = got[i];
  return result;
}

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_RENDEZVOUS_HPP_
