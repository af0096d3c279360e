// Lists of ranks, as messages name them.
#ifndef TRIREME_COMM_RANK_LIST_HPP_
#define TRIREME_COMM_RANK_LIST_HPP_

#include <string>
#include <vector>

namespace trireme::comm {

// "rank 3 of 8", "ranks 3, 5-7 of 8", "ranks 0, 2, 4, ... and 48 more of 128". `ranks` ascends.
std::string ListRanks(const std::vector<int>& ranks, int size);
// The same without the size: "rank 3", "ranks 3, 5-7".
std::string ListRanks(const std::vector<int>& ranks);

}  // namespace trireme::comm

#endif  // TRIREME_COMM_RANK_LIST_HPP_
