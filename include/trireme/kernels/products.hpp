// How a GPU computes its matrix products: the library's handle, the algorithm of each product,
// chosen once by timing, and what fp8 products need to know of their operands' sizes.
#ifndef TRIREME_KERNELS_PRODUCTS_HPP_
#define TRIREME_KERNELS_PRODUCTS_HPP_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/device/stream.hpp"

namespace trireme::kernels {

class Products {
 public:
  virtual ~Products() = default;
  // Chosen algorithms as JSON text: card, library version, and a list of (product, algorithm).
  virtual std::string Chosen() const = 0;
  // Takes over those of `texts` (of several ranks: for each product the first text that has it).
  // False, and nothing is taken over, where one is of another card or library version, or was
  // chosen with another workspace. An algorithm that the library does not admit for its product is
  // passed over, with a warning on stderr: another is chosen, as where none is known.
  virtual bool Adopt(const std::vector<std::string>& texts) = 0;
  // From here on a product that is not known yet is not timed: it takes what the library proposes,
  // so that no two runs choose differently.
  virtual void Seal() = 0;
  virtual bool Sealed() const = 0;
  // fp8: memory for two operands of so many elements each, the largest that will be multiplied; to
  // be called before any step, since an allocation waits for the GPU, and the GPU may wait for a
  // receive of another rank's. A larger operand is a RunError. A later call may ask for more.
  virtual void Reserve(std::int64_t fp8_elements) = 0;
  // fp8: false where nothing is learned: operands are then scaled by the largest value each has at
  // this moment, and the scales of training stay as they are. True at first.
  virtual void SetTraining(bool training) = 0;
  // fp8, delayed scaling (Micikevicius et al. 2022): a tensor's scale follows from its largest
  // magnitudes in the last steps. Behind the products of a step: copies those of this step out, and
  // forgets them on the GPU. Queued.
  virtual void QueueLargest(const device::Stream& stream) = 0;
  // They, once the queue has come there: one number a tensor, 0 where none was seen. Ranks agree on
  // the largest of all in here, so that no layout changes a scale. Empty without fp8.
  virtual std::span<float> Largest() = 0;
  // The scales of the next step, from Largest() and the steps before. Queued; what earlier calls
  // queued must have been awaited.
  virtual void UpdateScales(const device::Stream& stream) = 0;
  // Whether there are scales to begin a step with: always without fp8.
  virtual bool Scaled() const = 0;
  // What the scales follow from, on the host, for checkpoints: empty without fp8. An empty one, and
  // one of another number of tensors, makes SetScales begin anew; it says whether that was so.
  virtual std::vector<float> Scales() const = 0;
  virtual bool SetScales(const device::Stream& stream, std::span<const float> scales) = 0;
};

// Names and versions of a GPU's libraries of products and attention, for --version: "cuBLASLt
// 13.1.0, without cuDNN"; "" where CUDA was not built.
std::string GpuMathLibraries();

// For a stream on a GPU with `sites` linear layers (linear.hpp); null on the CPU.
std::unique_ptr<Products> MakeProducts(const device::Stream& stream, int sites);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_PRODUCTS_HPP_
