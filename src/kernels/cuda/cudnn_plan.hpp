// Plans of cuDNN for attention (its graph API, through cudnn-frontend): one per shape, pass and
// strides, built when first needed.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "attention.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::kernels::cuda {

// Attention by cuDNN's fused kernels, in bf16 and without dropout. Built if cuDNN 9 and the headers
// of cudnn-frontend were found.

// Whether a cuDNN is loaded; false with the emulator's library, unless that is set up otherwise.
bool CudnnIsThere();
// Versions of the loaded library and of the build's headers: "cuDNN 9.13.0 (frontend 1.18.0)".
std::string CudnnVersions();
// As WhyNoFixedOrder (kernels/libraries.hpp), if cuDNN is used, for sequences of any length.
std::string WhyNoFixedOrderOfCudnn(const device::Stream& stream);

// The first call of a function below for a shape builds its plan, which may take seconds and
// allocates memory. Plans belong to the stream's libraries.

// Whether cuDNN can compute this pass for such a shape.
bool CudnnHasPlan(const device::Stream& stream, const AttentionShape& shape, bool backward);
// Elements (fp32) of scratch for the forward pass with such a shape or, with `backward`, for both;
// includes the `own` elements of our own kernels. Returns `own` if cuDNN can compute neither pass.
// For a pass that it cannot compute, one line with the reason goes to stderr.
std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   std::int64_t own, bool backward);

// A pass over whole sequences, for bf16 operands. Returns false, queues nothing and prints a line
// to stderr if cuDNN cannot compute the shape or strides. RunError if scratch was planned for the
// pass but is too small.
bool CudnnAttention(const AttentionPass& pass);
// Queues a causal pass over the sequences whose documents fit into a plan's entries. Returns
// [sequences] on the GPU: 1 for these sequences, 0 for those that our own kernels must compute.
// Returns null, and queues nothing, if cuDNN cannot compute the shape or strides.
const std::int32_t* CudnnDocuments(const AttentionPass& pass);

// Blocks of ring attention (cudnn_part.cpp), all of one size. Elements (fp32) of scratch for the
// forward pass over the blocks of PositionsOf or, with `backward`, for both; includes the `own`
// elements of our own kernels. Returns `own` if cuDNN can compute no block.
std::int64_t CudnnPartScratch(const device::Stream& stream, const AttentionShape& shape,
                              std::int64_t own, bool backward);
// A pass over a block. Returns false, and queues nothing, if CudnnPartScratch built no plan for the
// block. It leaves the same in scratch as our own kernels do, so that both can alternate between
// blocks.
bool CudnnPart(const AttentionPass& pass);

}  // namespace trireme::kernels::cuda

struct cudnnContext;
namespace cudnn_frontend::graph {
class Graph;  // only declared: the header costs half a minute of compile time
}

namespace trireme::kernels::cuda {

// Where an operand's rows are: rows from one sequence to the next, elements from one row to the
// next. 0 if a pass does not have the operand.
struct CudnnRows {
  std::int64_t rows = 0, stride = 0;
  auto operator<=>(const CudnnRows&) const = default;
};

// What a plan computes: all heads of some sequences, or some heads of one sequence, with `queries`
// and `keys` per sequence (equal if causal). With documents, each sequence is cut into at most that
// many, which attend only to themselves; the log-sum-exp is then [rows, heads].
struct CudnnProblem {
  bool backward = false, causal = true;
  std::int64_t sequences = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double divisor = 0;                             // of the scores
  CudnnRows query, key, out, dout, dquery, dkey;  // `key` is also for values
  std::int64_t documents = 0;                     // entries per sequence; 0: sequences are not cut
  bool deterministic = true;                      // backward pass: the same bits in every run
  auto operator<=>(const CudnnProblem&) const = default;
};

// Numbers by which a plan knows its operands.
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
  // Only with documents. kOffsets + an operand above: where that operand's documents begin.
  kQueryLengths,
  kKeyLengths,
  kOffsets
};

struct CudnnPlan {
  std::shared_ptr<cudnn_frontend::graph::Graph> graph;  // null: cuDNN cannot compute the problem
  std::int64_t workspace_bytes = 0;
  std::string why;  // the reason if it cannot, in cuDNN's words
};

// cuDNN on the calling thread's GPU, owned by the stream's libraries.
class CudnnPlans final : public device::LibraryState {
 public:
  CudnnPlans();
  ~CudnnPlans() override;

  // Whether the backward pass keeps dP ([queries, keys] for each head and sequence or document
  // entry) in its workspace.
  static bool KeepsScores(const device::Stream& stream, const CudnnProblem& problem);
  // The plan of a problem. Builds it and loads its kernels if it is new. Must not happen within a
  // step: it may wait for the GPU, which may be waiting for another rank.
  const CudnnPlan& Find(const device::Stream& stream, const CudnnProblem& problem);
  // The plan if Find has built it, else null.
  const CudnnPlan* Built(const CudnnProblem& problem) const;
  // Queues the plan. RunError if cuDNN refuses.
  void Execute(const device::Stream& stream, const CudnnPlan& plan,
               std::unordered_map<std::int64_t, void*> operands, void* workspace);

  struct PassState {
    bool planned = false;    // scratch is planned for whole sequences
    bool documents = false;  // scratch is planned for sequences of documents
    bool parts = false;      // scratch is planned for parts of sequences
    bool warned = false;     // stderr already has a line saying that our own kernels are used
  };
  PassState& StateOf(bool backward) { return passes_[backward ? 1 : 0]; }

 private:
  void Use(const device::Stream& stream);
  CudnnPlan Build(const device::Stream& stream, const CudnnProblem& problem);

  cudnnContext* handle_ = nullptr;
  std::string why_not_;    // why there is no handle
  void* queue_ = nullptr;  // queue that the handle uses
  std::map<CudnnProblem, CudnnPlan> plans_;
  std::array<PassState, 2> passes_;  // forward, backward
};

// Plans of the stream's libraries, created by the first call. RunError if it has no libraries.
CudnnPlans& CudnnPlansOf(const device::Stream& stream);

// How much cuDNN can be given at once: the plan of a problem, or of pieces of it.

inline constexpr std::int64_t kFloat = sizeof(float);  // bytes per element of scratch
// Rounds up a number of elements (fp32), so that what follows is aligned to 256 bytes.
std::int64_t CudnnRoundUp(std::int64_t elements);

// The problem of one piece and its plan. All pieces of a whole are equal.
struct CudnnChoice {
  CudnnProblem problem;
  const CudnnPlan* plan;
};

// Finds the largest piece of a problem that cuDNN can compute with `room` bytes of workspace
// (nullopt: as much as any plan may take): some sequences with all heads, or else some key/value
// heads of one sequence with their query heads. Piece sizes divide the whole, so that one plan
// serves all pieces. The forward pass is always one piece.
class CudnnSearch {
 public:
  // build: whether missing plans are built; if not, they count as refused.
  explicit CudnnSearch(const device::Stream& stream,
                       std::optional<std::int64_t> room = std::nullopt, bool build = true);

  std::optional<CudnnChoice> Choose(const CudnnProblem& whole);

  // Why cuDNN can compute no piece; "" if only `room` was too small.
  const std::string& Why() const { return why_; }
  // Bytes of the smallest workspace that would have been enough; 0 if none would.
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

// For a pass whose scratch is being planned: finds its plan and sets the flag `planned`. Returns
// the bytes of its workspace; nullopt if cuDNN cannot compute it, with a line on stderr that gives
// the reason after `what`.
std::optional<std::int64_t> PlanCudnnPass(const device::Stream& stream, const CudnnProblem& problem,
                                          bool CudnnPlans::PassState::*planned,
                                          const std::string& what);

// Prints a warning, once per pass, with the first reason.
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
