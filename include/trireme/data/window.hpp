// Tokens of one window with what a batch needs of them, whether they come from memory or a stream.
#ifndef TRIREME_DATA_WINDOW_HPP_
#define TRIREME_DATA_WINDOW_HPP_

#include <cstdint>
#include <vector>

namespace trireme::data {

struct Window {
  std::vector<std::int32_t> ids;        // a range of a split's tokens
  std::vector<std::int64_t> documents;  // offsets in ids at which a document begins, ascending
  std::vector<std::uint8_t> counted;    // [ids]: 0: no target of the loss; empty: all count
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_WINDOW_HPP_
