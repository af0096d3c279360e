// State of a GPU's math libraries, owned by the job: the algorithm of each matrix product (chosen
// once, by timing), cuDNN's plans, and the scales of fp8 operands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/device/gpu.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/kernel.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::kernels {

// The default functions suit a GPU that has no algorithms to choose and no fp8.
class Libraries : public device::LibraryState {
 public:
  // Sets how the host waits for an event while products are timed; empty (the default):
  // Event::Await. Who times products within a step sets a wait that notices failures, since the
  // queue may hold a transfer that never ends.
  using Wait = std::function<void(const device::Event&)>;
  void WaitBy(Wait wait) { wait_ = std::move(wait); }
  void Await(const device::Event& event) const { wait_ ? wait_(event) : event.Await(); }

  // Chosen algorithms as JSON text: card, library version, and a list of (product, algorithm).
  virtual std::string Chosen() const { return ""; }
  // Takes over the algorithms in `texts` (from several ranks; for each product the first text that
  // has it counts). Returns false and takes over nothing if a text is of another card or library
  // version, or was chosen with another workspace size. If the library does not support an
  // algorithm for its product, a warning goes to stderr and the product counts as unknown.
  virtual bool Adopt(const std::vector<std::string>& /*texts*/) { return true; }
  // Ends timing: unknown products then take the library's first proposal, so that runs agree.
  virtual void Seal() {}
  virtual bool Sealed() const { return true; }
  // fp8: reserves memory for two operands of `fp8_elements` each, the size of the largest operand;
  // a larger one later is a RunError. Must be called before any step: an allocation waits for the
  // GPU, and the GPU may be waiting for another rank. A later call may ask for more.
  virtual void Reserve(std::int64_t fp8_elements) = 0;
  // fp8: takes memory for the rounded weights of these layers (KeptWeightBytes). In training, the
  // first product of each step that uses such a weight rounds it, both forms in one pass; weights
  // of other layers are rounded in each product. Weights must not change between two calls of
  // SetTraining. A later call may add layers or ask for more.
  virtual void KeepWeights(std::span<const Linear> layers) = 0;
  // fp8: true (the default): scales follow from earlier steps; false: scales follow from each
  // operand's current maximum, and training's scales stay untouched. Must be called before the
  // products of each step and each evaluation: it also makes kept weights be rounded anew.
  virtual void SetTraining(bool /*training*/) {}
  // fp8, delayed scaling (Micikevicius et al. 2022): a tensor's scale follows from its largest
  // magnitudes in the last steps. Call this after the products of a step: it queues a copy of the
  // step's maxima to the host and clears them on the GPU.
  virtual void QueueLargest(const device::Stream& /*stream*/) {}
  // [tensors]: the maxima that QueueLargest copied, valid once the stream has passed that copy; 0:
  // no values seen. Ranks all-reduce them in place (maximum), so that the scales do not depend on
  // the layout. Empty without fp8.
  virtual std::span<float> Largest() { return {}; }
  // Queues the computation of the next step's scales from Largest() and the maxima of earlier
  // steps. Work queued by earlier calls must have completed.
  virtual void UpdateScales(const device::Stream& /*stream*/) {}
  // Whether the next step has scales to start from; always true without fp8.
  virtual bool Scaled() const { return true; }
  // History of the scales, on the host, for checkpoints; empty without fp8.
  virtual std::vector<float> Scales() const { return {}; }
  // Restores such a history. Returns false, and starts the scales anew, if `scales` is empty or has
  // another number of tensors.
  virtual bool SetScales(const device::Stream& /*stream*/, std::span<const float> /*scales*/) {
    return true;
  }

 private:
  Wait wait_;
};

// Libraries of the stream; null if it has none (on the CPU).
inline Libraries* LibrariesOf(const device::Stream& stream) {
  return static_cast<Libraries*>(stream.libraries);
}

// Libraries for a GPU's stream and a model with `sites` linear layers (Linear::site); CPU: null.
extern const Kernel<std::unique_ptr<Libraries>(int sites)> MakeLibraries;

// Bytes that Libraries::KeepWeights takes on a GPU for these layers; layers whose products cannot
// be fp8 take none.
std::int64_t KeptWeightBytes(std::span<const Linear> layers);

// Why this program never uses cuDNN for attention, whatever the shape; "" if it may.
std::string WhyNoCudnn();
// Why cuDNN's backward pass of attention, for sequences of this length on the stream's GPU, does
// not add in a fixed order; "" if it does, or if cuDNN is not used for them.
std::string WhyNoFixedOrder(const device::Stream& stream, std::int64_t length);

// Names and versions of the GPU libraries for products and attention, for --version: "cuBLASLt
// 13.1.0, without cuDNN"; "" in a build without CUDA.
std::string GpuMathLibraries();

}  // namespace trireme::kernels
