// cuBLASLt's algorithm of each product: found by timing when a product is first met, kept as text,
// taken over from other ranks and earlier runs. The library computes the same bits each time with
// the same algorithm, version and kind of card, and other bits with another algorithm.
#ifndef TRIREME_KERNELS_CUDA_ALGORITHMS_HPP_
#define TRIREME_KERNELS_CUDA_ALGORITHMS_HPP_

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/products_plan.hpp"

namespace trireme::kernels::cuda {

class Algorithms {
 public:
  explicit Algorithms(const device::GpuContext& gpu);

  // Queues the product. False, with nothing queued, if the library has no algorithm for it: for
  // some epilogues, types and alignments.
  bool Run(const device::Stream& stream, const Product& product);

  // As in kernels::Libraries.
  std::string Chosen() const;
  bool Adopt(const std::vector<std::string>& texts);
  void Seal() { sealed_ = true; }
  bool Sealed() const { return sealed_; }

 private:
  struct Choice {
    Plan plan;
    std::optional<cublasLtMatmulAlgo_t> algorithm;  // none: the library has none
  };
  using Kept = std::map<std::string, cublasLtMatmulAlgo_t>;  // by ProductKey::Text

  Choice Choose(const device::Stream& stream, const Product& product);
  const cublasLtMatmulAlgo_t* FindKept(const Plan& plan, const Kept& kept);
  std::string Library() const;
  bool Read(const std::string& text, Kept& kept) const;

  const device::GpuContext& gpu_;
  Handle handle_;
  std::map<ProductKey, Choice> choices_;
  Kept kept_;  // adopted, of products that may not have been met yet
  bool sealed_ = false;
  bool warned_ = false;
};

// The fastest of the algorithms, on the real operands: product.c is overwritten if the product
// overwrites it, unchanged if it accumulates (Plan::Run). Takes no memory. Waits for the work
// queued before.
const cublasLtMatmulAlgo_t& Fastest(const device::Stream& stream, cublasLtHandle_t handle,
                                    const Plan& plan, const Product& product,
                                    std::span<const cublasLtMatmulHeuristicResult_t> proposals);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_KERNELS_CUDA_ALGORITHMS_HPP_
