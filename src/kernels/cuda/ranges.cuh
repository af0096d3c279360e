// Many pieces of flat storage in one launch: the table of ranges is an argument of the kernel,
// since a recorded launch may neither allocate nor copy from the host.
#ifndef TRIREME_SRC_KERNELS_CUDA_RANGES_CUH_
#define TRIREME_SRC_KERNELS_CUDA_RANGES_CUH_

#include <algorithm>
#include <cstdint>
#include <span>

#include "trireme/device/cuda/launch.cuh"

namespace trireme::kernels::cuda {

inline constexpr int kRangeThreads = 256;

// Range i has the blocks first_block[i] to first_block[i + 1]. Within the 4 KiB that arguments of a
// kernel may take on every card.
template <typename Range>
struct RangeTable {
  static constexpr int kMost = static_cast<int>((4096 - 64) / (sizeof(Range) + sizeof(unsigned)));
  Range ranges[kMost];
  unsigned first_block[kMost + 1];
  int count;

  // Range of a block.
  __device__ __forceinline__ int Find(unsigned block) const {
    int low = 0, high = count;  // first_block[low] <= block < first_block[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_block[middle] <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  unsigned Blocks() const { return first_block[count]; }
};

// launch(table, first) for tables that together hold make(range) of all ranges, in order; blocks_of
// says how many blocks one needs. `first`: the number of the table's first range.
template <typename Range, typename Source, typename Make, typename BlocksOf, typename LaunchTable>
void EachTable(std::span<const Source> ranges, Make make, BlocksOf blocks_of, LaunchTable launch) {
  using Table = RangeTable<Range>;
  for (std::size_t first = 0; first < ranges.size(); first += Table::kMost) {
    Table table{};
    table.count = static_cast<int>(std::min<std::size_t>(Table::kMost, ranges.size() - first));
    for (int i = 0; i < table.count; ++i) {
      const Source& range = ranges[first + static_cast<std::size_t>(i)];
      table.ranges[i] = make(range);
      table.first_block[i + 1] = table.first_block[i] + static_cast<unsigned>(blocks_of(range));
    }
    launch(table, first);
  }
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_RANGES_CUH_
