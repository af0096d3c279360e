// AdamW and SGD over the registry's flat storage, global-norm clipping, and the learning-rate
// schedule.
#ifndef TRIREME_OPTIMIZER_OPTIMIZER_HPP_
#define TRIREME_OPTIMIZER_OPTIMIZER_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/optimizer/options.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::optimizer {

class Optimizer {
 public:
  // Moments of the owned elements, zero. `registry` must outlive the optimizer.
  Optimizer(const Options& options, tensor::Registry& registry, const device::Stream& stream);

  // Sum of squares of the owned gradients; of elements that several ranks of a replica hold only on
  // the one whose copy is the first.
  // On a GPU, of the last QueueSquares that the host has awaited.
  double GradientSquares() const;
  // On a GPU: queues the sums that GradientSquares adds up; nothing on the CPU.
  void QueueSquares();
  // The same, exactly.
  ExactSum ExactGradientSquares() const;
  // Name of the first parameter whose owned gradient has a value that is not finite; empty: none.
  std::string FirstNotFinite() const;
  // One update with the gradient of the mean loss, clipped to clip_norm; step counts from 1. With
  // `clear`, the gradients' storage is zero afterwards, as Registry::ZeroGradients leaves it
  // (early gradients excepted, which are cleared as they are taken): the elements owned in the pass
  // that updates them, all others by themselves.
  void Step(std::int64_t step, double learning_rate, double gradient_norm, std::int64_t count,
            bool clear = false);

  // Where values are roundings of masters: rounds the owned ones again, after a checkpoint was
  // read.
  void RoundMasters();

  // Moments for a checkpoint: "first_moment.<parameter>", "second_moment.<parameter>"; SGD has
  // none.
  std::vector<tensor::StateBlock> Blocks(int rank, int ranks, int sharers) const;
  std::int64_t Bytes() const;  // of the moments, and of small buffers on a GPU

 private:
  void FindRanges();
  Options options_;
  tensor::Registry* registry_;
  device::Stream stream_;
  device::Buffer first_, second_;              // local, [owned elements], the registry's SumType
  device::Buffer squares_there_;               // on a GPU: [counted_], fp64
  device::PinnedBuffer squares_;               // the same on the host
  device::PinnedBuffer scalars_;               // of the last step
  device::Buffer scalars_there_;               // the same on a GPU
  std::vector<kernels::UpdateRange> updated_;  // the owned elements, a range for each parameter
  std::vector<kernels::FlatRange> counted_;    // of these, the gradients of first copies
  std::vector<Part> unowned_;  // the gradients' storage without the ranges of updated_, elements
};

}  // namespace trireme::optimizer

#endif  // TRIREME_OPTIMIZER_OPTIMIZER_HPP_
