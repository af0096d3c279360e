// Plans of cuDNN for attention (its graph API, through cudnn-frontend): one per shape, pass and
// strides, built when it is first asked for.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "attention.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels::cuda {

// Attention by cuDNN's fused kernels, in bf16 and without dropout. Built if cuDNN 9 and the headers
// of cudnn-frontend were found.

// False with the emulator's, unless it is told otherwise.
bool CudnnIsThere();
// Versions of the loaded library and of the headers of the build: "cuDNN 9.13.0 (frontend 1.18.0)".
std::string CudnnVersions();
// As WhyNoFixedOrder (kernels/libraries.hpp), of sequences of any length.
std::string WhyNoFixedOrderOfCudnn(const device::Stream& stream);

// The first call of a function below for a shape builds its plan, which takes up to seconds and
// allocates. Plans belong to the stream's libraries.

// Whether cuDNN serves a pass over such a shape.
bool CudnnHasPlan(const device::Stream& stream, const AttentionShape& shape, bool backward);
// Elements (fp32) of scratch for the forward pass over such a shape, and with `backward` for both;
// 0 if cuDNN serves neither. One line on stderr names a pass that it does not serve, with the
// reason.
std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   bool backward);

// kernels::AttentionForward and AttentionBackward, with bf16 operands on boundaries of 16 bytes.
// False, with nothing queued and a line on stderr, if cuDNN does not serve the shape or the
// strides. RunError if scratch was planned for the pass and is too small.
bool CudnnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const Matrix& qkv, const Matrix& out, const Matrix& lse,
                           const Matrix& scratch);
bool CudnnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                            const Matrix& qkv, const Matrix& out, const Matrix& dout,
                            const Matrix& lse, const Matrix& dqkv, const Matrix& scratch);

// Sequences of documents (cudnn_documents.cpp). Elements (fp32) of scratch for the forward pass
// over such a shape, and with `backward` for both, `own` elements of our own kernels included;
// `own` if cuDNN serves neither.
std::int64_t CudnnDocumentsScratch(const device::Stream& stream, const AttentionShape& shape,
                                   std::int64_t own, bool backward);
// Whether cuDNN serves a pass over such a shape.
bool CudnnHasDocumentsPlan(const device::Stream& stream, const AttentionShape& shape,
                           bool backward);
// A pass over the sequences that have no more documents than a plan has entries, causal. Returns
// which those are: [sequences] on the GPU, 1 or 0; our own kernels have to compute the others.
// Null, with nothing queued, if cuDNN does not serve the shape or the strides.
const std::int32_t* CudnnDocuments(const device::Stream& stream, const AttentionShape& shape,
                                   const DocumentOperands& operands, bool backward);

// Whether rows lie on boundaries of 16 bytes, as cuDNN reads them.
bool OnCudnnBoundaries(const Matrix& m);

// Blocks of ring attention (cudnn_part.cpp). Elements (fp32) of scratch for the forward pass over
// the blocks of PositionsOf, and with `backward` for both, behind `own` elements of our own
// kernels; `own` if cuDNN serves none. It serves blocks that are all of one size.
std::int64_t CudnnPartScratch(const device::Stream& stream, const AttentionShape& shape,
                              std::int64_t own, bool backward);

// kernels::AttentionPartForward and AttentionPartBackward. False, with nothing queued, if no plan
// was built for the block then. What the two leave in scratch is what our own kernels leave there,
// so that blocks may alternate.
bool CudnnPartForward(const device::Stream& stream, const AttentionShape& shape, const Part& tasks,
                      const Matrix& qkv, const KeyValueBlock& block, const Matrix& out,
                      const Matrix& lse, const Matrix& scratch);
// Operands of AttentionPartBackward.
struct PartGradients {
  Matrix qkv;
  KeyValueBlock block;
  Matrix out, dout, lse, dqkv, dblock, scratch;
};
bool CudnnPartBackward(const device::Stream& stream, const AttentionShape& shape, const Part& tasks,
                       const PartGradients& operands);

}  // namespace trireme::kernels::cuda

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

// Search for what cuDNN can be given at once: the plan of a problem, or of pieces of it.

inline constexpr std::int64_t kFloat = sizeof(float);  // bytes of an element of scratch
// Elements (fp32), rounded up so that what follows begins on 256 bytes.
std::int64_t CudnnRoundUp(std::int64_t elements);

// Strides of the operands of attention to whole sequences: elements from one row to the next.
struct CudnnStrides {
  std::int64_t qkv, out, dout = 0, dqkv = 0;
};
// A pass over whole sequences whose operands have these strides, and one whose operands are dense.
CudnnProblem CudnnWhole(const AttentionShape& shape, bool backward, const CudnnStrides& strides);
CudnnProblem CudnnWhole(const AttentionShape& shape, bool backward);

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

// For a pass whose scratch is being planned: finds its plan, and notes in `planned` that there is
// one. Returns the bytes of its workspace; none if cuDNN does not serve it, with a line on stderr
// in which `what` stands before the reason.
std::optional<std::int64_t> PlanCudnnPass(const device::Stream& stream, const CudnnProblem& problem,
                                          bool CudnnPlans::PassState::*planned,
                                          const std::string& what);

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
