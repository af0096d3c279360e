// The optimizer: norm and clipping of the owned gradients, and their update by a rule.
#ifndef TRIREME_TRAIN_OPTIMIZER_HPP_
#define TRIREME_TRAIN_OPTIMIZER_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/train/optimizer_options.hpp"
#include "trireme/train/rule.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::train {

class Optimizer {
 public:
  // Allocates the rule's moments of the owned elements. `registry` must outlive the optimizer.
  Optimizer(const OptimizerOptions& options, kernels::Registry& registry, const device::Stream& stream);

  // On a GPU: queues the sums that GradientSquares adds up; nothing on the CPU.
  void QueueSquares();
  // Sum of squares of the owned gradients; elements that several ranks of a replica hold count on
  // the one whose copy is the first. On a GPU: of the last QueueSquares that the host has awaited.
  double GradientSquares() const;
  // The sum of GradientSquares, exactly.
  ExactSum ExactGradientSquares() const;
  // Name of the first parameter with an owned gradient that is not finite; empty: none.
  std::string FirstNotFinite() const;
  // Updates the values with the gradient of the mean loss, clipped to clip_norm. step: from 1.
  // gradient_norm: of the mean loss, over all ranks. count: targets in the mean. With `clear` all
  // gradients in storage are zero afterwards, as after Registry::ZeroGradients: owned elements in
  // the pass that updates them, the rest separately; early gradients are cleared when taken.
  void Step(std::int64_t step, double learning_rate, double gradient_norm, std::int64_t count,
            bool clear = false);

  // Rounds the owned masters into the values again, after a checkpoint was read; nothing if there
  // are no masters.
  void RoundMasters();

  // Moments for a checkpoint, named "<prefix><parameter>", moment by moment. rank of `ranks`: place
  // in the data group; sharers: consecutive ranks that share one copy.
  std::vector<kernels::StateBlock> Blocks(int rank, int ranks, int sharers) const;
  std::int64_t Bytes() const;  // of the moments, and of small buffers on a GPU

 private:
  void FindOwned();
  void FindUnowned();
  std::int64_t ScalarBytes() const;  // of the rule's sets of scalars
  OptimizerOptions options_;
  kernels::Registry* registry_;
  device::Stream stream_;
  std::vector<OwnedParameter> owned_;
  std::vector<kernels::FlatRange> counted_;  // of these, the gradients of first copies
  std::vector<Part> unowned_;                // rest of the gradients' storage, elements
  std::unique_ptr<Rule> rule_;
  device::Buffer squares_there_;  // on a GPU: [counted_], fp64
  device::PinnedBuffer squares_;  // the same on the host
  device::PinnedBuffer scalars_;  // of the last step
  device::Buffer scalars_there_;  // the same on a GPU
};

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_OPTIMIZER_HPP_
