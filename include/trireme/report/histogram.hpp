// Histograms of whole tensors, whose elements may be spread over any number of ranks.
#ifndef TRIREME_REPORT_HISTOGRAM_HPP_
#define TRIREME_REPORT_HISTOGRAM_HPP_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::report {

// Counts of values between fixed limits, TensorFlow's: they grow by a tenth from 1e-12 to 1e20,
// on both sides of zero. Counts and exact sums have no order, so that parts may be added in any.
class Histogram {
 public:
  Histogram();

  // Adds one value. One that is not a number is left out of everything.
  void Add(double value);

  const std::vector<double>& Counts() const { return counts_; }  // [Limits()]
  // Right ends of the buckets, ascending: a value below a limit and not below the one before.
  static const std::vector<double>& Limits();
  double Min() const { return min_; }  // infinity if empty
  double Max() const { return max_; }  // -infinity if empty
  double Count() const;
  double Sum() const { return sum_.Value(); }          // rounded once
  double Squares() const { return squares_.Value(); }  // rounded once

  // As numbers that add up over ranks, and two whose maxima are to be taken.
  static std::size_t Addable();
  void Pack(std::span<double> addable, std::span<double, 2> maxima) const;
  static Histogram Unpack(std::span<const double> addable, std::span<const double, 2> maxima);

 private:
  std::vector<double> counts_;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
  ExactSum sum_, squares_;
};

struct NamedHistogram {
  std::string name;  // "weights/blocks.3.attention.query.weight"
  Histogram histogram;
};

// Copies elements [first, last) of a block to `to`, in the block's type; none: they lie at its
// data.
using ReadBlock = std::function<void(const kernels::StateBlock& block, std::int64_t first,
                                     std::int64_t last, void* to)>;

// Collective over `world` (host memory), whose ranks all name the same tensors in the same order.
// Histograms of the whole tensors, each element counted once and divided by `divisor`; on rank 0,
// empty on the others. Changes nothing. prefix: of the names.
std::vector<NamedHistogram> HistogramsOf(const comm::Collectives& world,
                                         std::span<const kernels::StateBlock> blocks,
                                         const ReadBlock& read, const std::string& prefix,
                                         double divisor = 1);

}  // namespace trireme::report

#endif  // TRIREME_REPORT_HISTOGRAM_HPP_
