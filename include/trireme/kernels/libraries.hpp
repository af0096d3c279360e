// State of a GPU's math libraries, owned by the job: the algorithm of each matrix product, chosen
// once by timing, cuDNN's plans, and the scales of fp8 operands.
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

// Unless they are overridden, functions are those of a GPU without algorithms to choose and fp8.
class Libraries : public device::LibraryState {
 public:
  // How the host waits for an event while products are timed; unless it is set, Event::Await. The
  // queue may hold a transfer that cannot end any more: whoever times them within a step sets a
  // wait that notices. Empty: as at first.
  using Wait = std::function<void(const device::Event&)>;
  void WaitBy(Wait wait) { wait_ = std::move(wait); }
  void Await(const device::Event& event) const { wait_ ? wait_(event) : event.Await(); }

  // Chosen algorithms as JSON text: card, library version, and a list of (product, algorithm).
  virtual std::string Chosen() const { return ""; }
  // Takes over the algorithms of `texts` (of several ranks: for each product the first text that
  // has it). False, with nothing taken over, if a text is of another card or library version, or
  // was chosen with another workspace. An algorithm that the library does not admit for its product
  // is passed over with a warning on stderr, and the product is treated as unknown.
  virtual bool Adopt(const std::vector<std::string>& /*texts*/) { return true; }
  // Ends timing: an unknown product takes the library's first proposal from now on, so that no two
  // runs choose differently.
  virtual void Seal() {}
  virtual bool Sealed() const { return true; }
  // fp8: reserves memory for two operands of `fp8_elements` each, the largest to be multiplied; a
  // larger operand is a RunError. Call it before any step: an allocation waits for the GPU, and the
  // GPU may wait for a receive from another rank. A later call may ask for more.
  virtual void Reserve(std::int64_t fp8_elements) = 0;
  // fp8: takes memory for the rounded weights of these layers (KeptWeightBytes). In training each
  // of them is rounded once per step, both forms in one pass, by its first product; the weights of
  // other layers are rounded by each of their products. Weights must keep their values from one
  // SetTraining to the next. A later call may add layers or ask for more.
  virtual void KeepWeights(std::span<const Linear> layers) = 0;
  // fp8: with `training` (the default) scales follow from earlier steps; without it, from each
  // operand's current maximum, and the scales of training are kept. Called before the products of
  // each step and of each evaluation: kept weights are rounded anew after it.
  virtual void SetTraining(bool /*training*/) {}
  // fp8, delayed scaling (Micikevicius et al. 2022): a tensor's scale follows from its largest
  // magnitudes in the last steps. Called after the products of a step: copies the maxima of the
  // step to the host and clears them on the GPU. Queued.
  virtual void QueueLargest(const device::Stream& /*stream*/) {}
  // Maxima copied by QueueLargest, [tensors], valid once the stream has passed it; 0 if unseen.
  // Ranks reduce them in place to the maximum of all, so that no layout changes a scale. Empty
  // without fp8.
  virtual std::span<float> Largest() { return {}; }
  // Sets the scales of the next step from Largest() and the steps before. Queued; the work queued
  // by earlier calls must have been awaited.
  virtual void UpdateScales(const device::Stream& /*stream*/) {}
  // Whether a step has scales to begin with; always true without fp8.
  virtual bool Scaled() const { return true; }
  // History of the scales, on the host, for checkpoints; empty without fp8.
  virtual std::vector<float> Scales() const { return {}; }
  // Restores a history. False, with scales begun anew, if it is empty or of another number of
  // tensors.
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

// Libraries for a GPU's stream with `sites` linear layers (linear.hpp); null on the CPU.
extern const Kernel<std::unique_ptr<Libraries>(int sites)> MakeLibraries;

// Bytes that Libraries::KeepWeights takes on a GPU for these layers: none for a layer whose
// products cannot be fp8.
std::int64_t KeptWeightBytes(std::span<const Linear> layers);

// Why cuDNN computes no attention in this program, whatever the shape; "" if it may.
std::string WhyNoCudnn();
// Why the backward pass of the attention that cuDNN computes of sequences of this length has sums
// in no fixed order on the stream's GPU; "" if their order is fixed, or cuDNN is not used for them.
std::string WhyNoFixedOrder(const device::Stream& stream, std::int64_t length);

// Names and versions of a GPU's libraries of products and attention, for --version: "cuBLASLt
// 13.1.0, without cuDNN"; "" without CUDA.
std::string GpuMathLibraries();

}  // namespace trireme::kernels
