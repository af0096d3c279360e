// Lists of all ranks of a group, on every rank.
#ifndef TRIREME_COMM_GATHER_ALL_HPP_
#define TRIREME_COMM_GATHER_ALL_HPP_

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

// Collective. The items of all ranks, in the order of the ranks.
template <typename T>
std::vector<T> GatherAll(const Communicator& group, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T));
  std::vector<int> counts;
  const std::string gathered = group.Gather(bytes, counts);
  std::vector<T> all(gathered.size() / sizeof(T));
  if (!all.empty()) std::memcpy(static_cast<void*>(all.data()), gathered.data(), gathered.size());
  return all;
}

}  // namespace trireme::comm

#endif  // TRIREME_COMM_GATHER_ALL_HPP_
