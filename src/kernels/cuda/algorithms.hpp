// cuBLASLt's algorithm of each product: found by timing when a product is first met, kept as text,
// taken over from other ranks and earlier runs. The library computes the same bits each time with
// the same algorithm, version and kind of card, and other bits with another algorithm.
#ifndef TRIREME_SRC_KERNELS_CUDA_ALGORITHMS_HPP_
#define TRIREME_SRC_KERNELS_CUDA_ALGORITHMS_HPP_

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/products_plan.hpp"
#include "trireme/base/function_ref.hpp"

namespace trireme::kernels::cuda {

class Algorithms {
 public:
  explicit Algorithms(const device::GpuContext& gpu);

  // Queues the product. False, with nothing queued, if the library has no algorithm for it (for
  // some epilogues, types and alignments), or if `apart` was clearly faster when the algorithm was
  // chosen: it queues the same result by a product without the epilogue and a pass of its own.
  bool Run(const device::Stream& stream, const Product& product,
           const FunctionRef<void()>* apart = nullptr);

  // As in kernels::Libraries.
  std::string Chosen() const;
  bool Adopt(const std::vector<std::string>& texts);
  void Seal() { sealed_ = true; }
  bool Sealed() const { return sealed_; }

 private:
  using Algorithm = std::optional<cublasLtMatmulAlgo_t>;  // none: apart is faster
  struct Choice {
    Plan plan;
    Algorithm algorithm;
    bool known = true;  // false: the library has no algorithm
  };
  using Kept = std::map<std::string, Algorithm>;  // by ProductKey::Text

  Choice Choose(const device::Stream& stream, const Product& product,
                const FunctionRef<void()>* apart);
  const Algorithm* FindKept(const Plan& plan, const Kept& kept);
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
// Whether `apart` queues clearly less work for the GPU than the product with this algorithm.
bool FasterApart(const device::Stream& stream, cublasLtHandle_t handle, const Plan& plan,
                 const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                 FunctionRef<void()> apart);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ALGORITHMS_HPP_
