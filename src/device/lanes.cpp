// Lanes: greedy colouring of intervals, which needs no more lanes than slices overlap at a time.
#include <algorithm>

#include "trireme/device/trace_file.hpp"

namespace trireme::device {

std::vector<int> Lanes(const std::vector<Slice>& slices) {
  std::vector<int> lanes;
  lanes.reserve(slices.size());
  std::vector<double> ends;
  for (const Slice& slice : slices) {
    const auto free =
        std::find_if(ends.begin(), ends.end(), [&](double end) { return end <= slice.begin; });
    lanes.push_back(static_cast<int>(free - ends.begin()));
    if (free == ends.end()) {
      ends.push_back(slice.end);
    } else {
      *free = slice.end;
    }
  }
  return lanes;
}

}  // namespace trireme::device
