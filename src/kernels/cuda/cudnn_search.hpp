// Search for what cuDNN can be given at once: the plan of a problem, or of pieces of it.
#ifndef TRIREME_SRC_KERNELS_CUDA_CUDNN_SEARCH_HPP_
#define TRIREME_SRC_KERNELS_CUDA_CUDNN_SEARCH_HPP_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

#include "cudnn_plan.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels::cuda {

// Elements (fp32), rounded up so that what follows begins on 256 bytes.
std::int64_t CudnnRoundUp(std::int64_t elements);

// Problem of a piece, and its plan; the pieces of a whole are alike.
struct CudnnChoice {
  CudnnProblem problem;
  const CudnnPlan* plan;
};

// Search for the largest piece of a problem that cuDNN serves with `room` bytes of workspace, or
// with as much as a plan may take: sequences with all their heads, else key/value heads of one
// sequence with their query heads; a divisor, so that one plan serves all pieces. The forward pass
// is one piece.
class CudnnSearch {
 public:
  // build: plans that are missing are built; else they count as refused.
  explicit CudnnSearch(const device::Stream& stream,
                       std::optional<std::int64_t> room = std::nullopt, bool build = true);

  std::optional<CudnnChoice> Choose(const CudnnProblem& whole);

  // Reason why no piece is served; "" if only the room is lacking.
  const std::string& Why() const { return why_; }
  // Bytes of the smallest workspace that would have sufficed; 0 if none would.
  std::int64_t Lacking() const { return lacking_; }

 private:
  std::optional<CudnnChoice> Largest(std::int64_t count,
                                     const std::function<CudnnProblem(std::int64_t)>& piece);
  std::int64_t LeastWorkspace(const CudnnProblem& problem) const;
  std::optional<CudnnChoice> Accept(const CudnnProblem& problem, std::int64_t most);

  const device::Stream& stream_;
  std::int64_t most_, room_, lacking_ = 0;
  bool build_;
  std::string why_;  // reason of the last refusal
};

// Bytes of workspace that are planned at the least: small plans of shorter sequences may want what
// that of the longest does not.
inline constexpr std::int64_t kCudnnLeastWorkspace = std::int64_t{1} << 20;

// Plan of a pass over whole sequences with the scratch from element `workspace` on; none, with a
// warning, if cuDNN does not serve it or rows of the operands are not on boundaries of 16 bytes.
// RunError if scratch was planned for the pass and is too small.
std::optional<CudnnChoice> ChooseCudnn(const device::Stream& stream, const CudnnProblem& problem,
                                       const Matrix& scratch, std::int64_t workspace,
                                       std::initializer_list<Matrix> operands);

// Prints one line per pass, for the first reason.
void WarnOfOwnAttention(const device::Stream& stream, bool backward, std::string why);

// Addresses of the first elements of a problem's operands; null if a pass has no such operand.
struct CudnnPlaces {
  void *query = nullptr, *key = nullptr, *value = nullptr, *out = nullptr;
  void *dout = nullptr, *dquery = nullptr, *dkey = nullptr, *dvalue = nullptr;
  float* statistics = nullptr;  // [sequences, heads, queries]
  void* workspace = nullptr;
};

// Queues all pieces of `whole`. RunError if cuDNN refuses.
void RunCudnn(const device::Stream& stream, const CudnnProblem& whole, const CudnnChoice& choice,
              const CudnnPlaces& places);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_CUDNN_SEARCH_HPP_
