// Whole tensors from the blocks that ranks hold, once all copies of an element were found to be the
// same, bit for bit.
#ifndef TRIREME_TEST_SUPPORT_WHOLE_TENSORS_HPP_
#define TRIREME_TEST_SUPPORT_WHOLE_TENSORS_HPP_

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::test {

// The tensors of a model, whole, in the order of registration, widened.
using Tensors = std::vector<std::vector<double>>;

// The bytes of all blocks with their ranges, as one rank sends them to the others.
inline std::string PackBlocks(const std::vector<kernels::StateBlock>& blocks) {
  std::string bytes;
  const auto append = [&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
  };
  for (const kernels::StateBlock& block : blocks) {
    append(&block.begin, sizeof block.begin);
    append(&block.end, sizeof block.end);
    if (block.end == block.begin) continue;
    append(block.data, static_cast<std::size_t>(block.end - block.begin) * SizeOf(block.dtype));
  }
  return bytes;
}

// Puts one tensor together and compares its copies.
template <typename T>
class TensorCopies {
 public:
  TensorCopies(std::string name, std::int64_t size)
      : name_(std::move(name)),
        values_(static_cast<std::size_t>(size)),
        holders_(values_.size(), -1) {}

  // Takes rank `rank`'s copy of elements [begin, begin + count). Throws RunError for an element
  // that differs from another rank's.
  void Take(int rank, std::int64_t begin, std::int64_t count, const char* bytes) {
    for (std::int64_t i = 0; i < count; ++i) {
      T value{};
      std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
      const auto at = static_cast<std::size_t>(begin + i);
      if (holders_.at(at) < 0) {
        holders_[at] = rank;
        values_[at] = value;
      } else if (std::memcmp(&values_[at], &value, sizeof(T)) != 0) {
        throw RunError(fmt::format("{}: element {} is {} on rank {} and {} on rank {}", name_, at,
                                   values_[at], holders_[at], value, rank));
      }
    }
  }

  // Throws RunError for an element that no rank holds.
  std::vector<double> Whole() const {
    for (std::size_t at = 0; at < holders_.size(); ++at) {
      if (holders_[at] < 0) throw RunError(fmt::format("{}: no rank has element {}", name_, at));
    }
    return {values_.begin(), values_.end()};
  }

 private:
  std::string name_;
  std::vector<T> values_;
  std::vector<int> holders_;  // [elements]: the first rank with a copy, or -1
};

// Collective over `group`. Every tensor, whole, from the blocks of all ranks. Throws RunError, on
// all ranks the same, for an element whose copies differ, naming the tensor and the ranks, and for
// one that no rank holds.
inline Tensors WholeTensors(const comm::Communicator& group,
                            const std::vector<kernels::StateBlock>& blocks) {
  const std::vector<std::string> all = group.Gather(PackBlocks(blocks));
  std::vector<std::size_t> read(all.size(), 0);  // bytes so far, of each rank's
  Tensors tensors;
  for (const kernels::StateBlock& block : blocks) {
    DispatchDtype(block.dtype, [&](auto zero) {
      using T = decltype(zero);
      TensorCopies<T> copies(block.name, kernels::ElementCount(block.shape));
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::int64_t range[2];
        std::memcpy(range, all[rank].data() + read[rank], sizeof range);
        read[rank] += sizeof range;
        const std::int64_t count = range[1] - range[0];
        copies.Take(static_cast<int>(rank), range[0], count, all[rank].data() + read[rank]);
        read[rank] += static_cast<std::size_t>(count) * sizeof(T);
      }
      tensors.push_back(copies.Whole());
    });
  }
  return tensors;
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_WHOLE_TENSORS_HPP_
