// Plans of cuDNN for attention (its graph API, through cudnn-frontend): one per shape, pass and
// strides, built when it is first asked for.
#ifndef TRIREME_SRC_KERNELS_CUDA_CUDNN_PLAN_HPP_
#define TRIREME_SRC_KERNELS_CUDA_CUDNN_PLAN_HPP_

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "trireme/device/gpu.hpp"

struct cudnnContext;
namespace cudnn_frontend::graph {
class Graph;  // declared only: the header takes the compiler half a minute
}

namespace trireme::kernels::cuda {

// Rows of an operand in memory: from one sequence to the next, and elements from one row to the
// next. 0 if a pass has no such operand.
struct CudnnRows {
  std::int64_t rows = 0, stride = 0;
  auto operator<=>(const CudnnRows&) const = default;
};

// Problem that a plan solves: all heads of some sequences, or some heads of one sequence; `queries`
// and `keys` of each sequence. Causal: as many keys as queries. With documents each sequence is cut
// into up to so many of them, which attend to themselves alone; the log-sum-exp is [rows, heads].
struct CudnnProblem {
  bool backward = false, causal = true;
  std::int64_t sequences = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, head_dim = 0;
  CudnnRows query, key, out, dout, dquery, dkey;  // values lie as keys do
  std::int64_t documents = 0;                     // entries of a sequence; 0: it is not cut
  bool deterministic = true;  // the same bits in every run; of the backward pass
  auto operator<=>(const CudnnProblem&) const = default;
};

// Numbers of a plan's operands.
enum CudnnOperand : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kDout,
  kDquery,
  kDkey,
  kDvalue,
  // With documents. kOffsets + an operand above: where its documents begin.
  kQueryLengths,
  kKeyLengths,
  kOffsets
};

struct CudnnPlan {
  std::shared_ptr<cudnn_frontend::graph::Graph> graph;  // null: cuDNN does not serve the problem
  std::int64_t workspace_bytes = 0;
  std::string why;  // reason why it does not, in cuDNN's words
};

// cuDNN on the GPU of the calling thread, owned by the stream's libraries.
class CudnnPlans final : public device::LibraryState {
 public:
  CudnnPlans();
  ~CudnnPlans() override;

  // Whether the backward pass keeps dP, [queries, keys] of each head and sequence (or entry of
  // one), in its workspace.
  static bool KeepsScores(const device::Stream& stream, const CudnnProblem& problem);
  // Plan of the problem. A new plan is built and its kernels are loaded here, not within a step:
  // that may wait for the GPU, which may be waiting for another rank.
  const CudnnPlan& Find(const device::Stream& stream, const CudnnProblem& problem);
  // Plan that Find has built; null: none.
  const CudnnPlan* Built(const CudnnProblem& problem) const;
  // Queued. RunError if cuDNN refuses.
  void Execute(const device::Stream& stream, const CudnnPlan& plan,
               std::unordered_map<std::int64_t, void*> operands, void* workspace);

  struct PassState {
    bool planned = false;    // scratch is planned for it
    bool documents = false;  // the same for sequences of documents
    bool parts = false;      // the same for parts of sequences
    bool warned = false;     // a line on stderr has said that it is not served
  };
  PassState& StateOf(bool backward) { return passes_[backward ? 1 : 0]; }

 private:
  void Use(const device::Stream& stream);
  CudnnPlan Build(const device::Stream& stream, const CudnnProblem& problem);

  cudnnContext* handle_ = nullptr;
  std::string why_not_;    // reason why there is no handle
  void* queue_ = nullptr;  // queue of the handle
  std::map<CudnnProblem, CudnnPlan> plans_;
  std::array<PassState, 2> passes_;  // forward, backward
};

// Plans of the stream's libraries, made at the first call. RunError if the stream has no libraries.
CudnnPlans& CudnnPlansOf(const device::Stream& stream);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_CUDNN_PLAN_HPP_
