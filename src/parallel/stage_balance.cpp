// The best distribution of a model's blocks over the virtual stages, without trying all of them.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::parallel {

namespace {

class Balance {
 public:
  Balance(std::int64_t layers, int virtual_stages, double block, double embedding, double head)
      : layers_(layers), block_(block), extra_(static_cast<std::size_t>(virtual_stages), 0.0) {
    extra_.front() += embedding;
    extra_.back() += head;
  }

  // The dearest stage's cost is extra + n block for some stage and some n: the least such value
  // within which all blocks find room.
  double Least() const {
    std::vector<double> candidates;
    for (std::size_t stage : {std::size_t{0}, extra_.size() / 2, extra_.size() - 1}) {
      for (std::int64_t n = Fewest(stage); n <= layers_; ++n) {
        candidates.push_back(Cost(stage, n));
      }
    }
    std::sort(candidates.begin(), candidates.end());
    return *std::partition_point(candidates.begin(), candidates.end(),
                                 [&](double limit) { return !Fits(limit); });
  }

  // Fills the stages evenly within the limit; of equally full ones the cheaper first, and the last
  // one last.
  std::vector<std::int64_t> Fill(double limit) const {
    std::vector<std::int64_t> counts;
    std::int64_t left = layers_;
    for (std::size_t stage = 0; stage < extra_.size(); ++stage) {
      counts.push_back(Fewest(stage));
      left -= counts.back();
    }
    for (; left > 0; --left) {
      std::size_t best = extra_.size();
      for (std::size_t stage = 0; stage < extra_.size(); ++stage) {
        if (Cost(stage, counts[stage] + 1) > limit) continue;
        if (best == extra_.size() || counts[stage] < counts[best] ||
            (counts[stage] == counts[best] && extra_[stage] < extra_[best] &&
             stage + 1 < extra_.size())) {
          best = stage;
        }
      }
      ++counts[best];
    }
    return counts;
  }

 private:
  double Cost(std::size_t stage, std::int64_t blocks) const {
    return extra_[stage] + static_cast<double>(blocks) * block_;
  }
  std::int64_t Fewest(std::size_t stage) const { return stage + 1 < extra_.size() ? 1 : 0; }

  std::int64_t Room(std::size_t stage, double limit) const {  // most blocks; -1: not even none
    std::int64_t low = -1, high = layers_;
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      if (Cost(stage, middle) <= limit) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  bool Fits(double limit) const {
    std::int64_t room = 0;
    for (std::size_t stage = 0; stage < extra_.size(); ++stage) {
      const std::int64_t here = Room(stage, limit);
      if (here < Fewest(stage)) return false;
      room += here;
    }
    return room >= layers_;
  }

  std::int64_t layers_;
  double block_;
  std::vector<double> extra_;  // [virtual stages]: cost besides blocks
};

}  // namespace

std::vector<Part> BalanceStages(std::int64_t layers, int virtual_stages, double block_cost,
                                double embedding_cost, double head_cost) {
  if (layers + 1 < virtual_stages) {
    throw RunError("more virtual stages than blocks and head: a bug in Trireme");
  }
  const Balance balance(layers, virtual_stages, block_cost, embedding_cost, head_cost);
  std::vector<Part> parts;
  std::int64_t begin = 0;
  for (const std::int64_t count : balance.Fill(balance.Least())) {
    parts.push_back({begin, begin + count});
    begin += count;
  }
  return parts;
}

}  // namespace trireme::parallel
