// Attention by cuDNN: which part of the batch a plan takes at once, and where operands and
// workspace lie. Scratch: the log-sum-exp as cuDNN has it, [sequences, heads, length], then the
// workspace of a plan.
#include "cudnn_attention.hpp"

#include <algorithm>
#include <optional>

#include "attention.hpp"
#include "cudnn_plan.hpp"

namespace trireme::kernels::cuda {

namespace {

using tensor::Matrix;

// cuDNN's deterministic backward pass keeps dP of what it works on, length x length for each head,
// on the GPUs of compute capability 8 and 9: it is given as many heads at once as fit into this.
constexpr std::int64_t kMostWorkspace = std::int64_t{512} << 20;  // bytes
constexpr std::int64_t kUnit = 64;       // elements: workspaces begin on 256 bytes
constexpr std::int64_t kDpBytes = 2;     // of an element of dP
constexpr std::int64_t kAlignment = 16;  // bytes, of every row

struct Choice {
  CudnnProblem problem;
  const CudnnPlan* plan;
};

std::int64_t RoundUp(std::int64_t count) { return CeilDivide(count, kUnit) * kUnit; }
std::int64_t StatisticsElements(const AttentionShape& shape) {
  return RoundUp(shape.sequences * shape.heads * shape.length);
}

CudnnProblem ProblemOf(const AttentionShape& shape, bool backward) {
  const std::int64_t width = shape.heads * shape.head_dim;
  CudnnProblem p = {backward,       shape.causal,   shape.sequences, shape.length, shape.heads,
                    shape.kv_heads, shape.head_dim, shape.Width(),   width};
  if (backward) p.dout_stride = width, p.dqkv_stride = shape.Width();
  return p;
}

std::optional<Choice> Accept(const CudnnProblem& problem) {
  const CudnnPlan& plan = CudnnPlans::OfThisThread().Find(problem);
  if (plan.graph == nullptr || plan.workspace_bytes > kMostWorkspace) return std::nullopt;
  return Choice{problem, &plan};
}

// The largest piece of `whole` that cuDNN serves: sequences with all their heads, else key/value
// heads of one sequence with their query heads; a divisor, so that one plan serves all pieces.
std::optional<Choice> Choose(const CudnnProblem& whole) {
  if (!whole.backward) return Accept(whole);
  const std::int64_t group = whole.heads / whole.kv_heads;
  const auto fits = [&](std::int64_t heads) {
    return heads * RoundUp(whole.length) * RoundUp(whole.length) * kDpBytes <= kMostWorkspace;
  };
  const auto largest = [&](std::int64_t count, std::int64_t heads,
                           const auto& piece) -> std::optional<Choice> {
    for (std::int64_t pieces = 1; pieces <= count; ++pieces) {
      if (count % pieces != 0 || !fits(count / pieces * heads)) continue;
      if (auto choice = Accept(piece(count / pieces))) return choice;
    }
    return std::nullopt;
  };
  auto choice = largest(whole.sequences, whole.heads, [&](std::int64_t sequences) {
    CudnnProblem p = whole;
    p.sequences = sequences;
    return p;
  });
  if (choice) return choice;
  return largest(whole.kv_heads, group, [&](std::int64_t kv_heads) {
    CudnnProblem p = whole;
    p.sequences = 1, p.kv_heads = kv_heads, p.heads = kv_heads * group;
    return p;
  });
}

bool Aligned(const Matrix& m) {
  const auto bytes = static_cast<std::int64_t>(SizeOf(m.dtype));
  return reinterpret_cast<std::uintptr_t>(m.data) % kAlignment == 0 &&
         m.stride * bytes % kAlignment == 0;
}

std::int64_t ScratchOf(const AttentionShape& shape, std::int64_t workspace_bytes) {
  return StatisticsElements(shape) + RoundUp(CeilDivide(workspace_bytes, sizeof(float)));
}

// Calls run(first sequence, first key/value head) for all pieces of the batch.
template <typename Run>
void ForEachPiece(const AttentionShape& shape, const CudnnProblem& piece, const Run& run) {
  for (std::int64_t sequence = 0; sequence < shape.sequences; sequence += piece.sequences) {
    for (std::int64_t head = 0; head < shape.kv_heads; head += piece.kv_heads) run(sequence, head);
  }
}

// Where a piece's operands begin.
struct Piece {
  const AttentionShape& shape;
  std::int64_t sequence, kv_head;

  std::int64_t Head() const { return kv_head * (shape.heads / shape.kv_heads); }
  void* Query(const Matrix& m) const { return At(m, Head()); }
  void* Key(const Matrix& m) const { return At(m, shape.heads + kv_head); }
  void* Value(const Matrix& m) const { return At(m, shape.heads + shape.kv_heads + kv_head); }
  void* Statistics(const Matrix& scratch) const {
    return scratch.Offset((sequence * shape.heads + Head()) * shape.length);
  }

 private:
  void* At(const Matrix& m, std::int64_t head) const {
    return m.Offset(sequence * shape.length * m.stride + head * shape.head_dim);
  }
};

}  // namespace

std::int64_t CudnnAttentionScratch(const device::Stream&, const AttentionShape& shape) {
  std::int64_t bytes = -1;
  for (const bool backward : {false, true}) {
    const auto choice = Choose(ProblemOf(shape, backward));
    if (choice) bytes = std::max(bytes, choice->plan->workspace_bytes);
  }
  return bytes < 0 ? 0 : ScratchOf(shape, bytes);
}

bool CudnnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const Matrix& qkv, const Matrix& out, const Matrix& lse,
                           const Matrix& scratch) {
  if (!Aligned(qkv) || !Aligned(out)) return false;
  CudnnProblem problem = ProblemOf(shape, false);
  problem.qkv_stride = qkv.stride, problem.out_stride = out.stride;
  const auto choice = Choose(problem);
  if (!choice || ScratchOf(shape, choice->plan->workspace_bytes) > scratch.Size()) return false;
  const Piece all = {shape, 0, 0};
  CudnnPlans::OfThisThread().Execute(stream, *choice->plan,
                                     {{kQuery, all.Query(qkv)},
                                      {kKey, all.Key(qkv)},
                                      {kValue, all.Value(qkv)},
                                      {kOut, all.Query(out)},
                                      {kStatistics, scratch.data}},
                                     scratch.Offset(StatisticsElements(shape)));
  UnpackStatistics(stream, shape, scratch.As<float>(), lse);
  return true;
}

bool CudnnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                            const Matrix& qkv, const Matrix& out, const Matrix& dout,
                            const Matrix& lse, const Matrix& dqkv, const Matrix& scratch) {
  if (!Aligned(qkv) || !Aligned(out) || !Aligned(dout) || !Aligned(dqkv)) return false;
  CudnnProblem problem = ProblemOf(shape, true);
  problem.qkv_stride = qkv.stride, problem.out_stride = out.stride;
  problem.dout_stride = dout.stride, problem.dqkv_stride = dqkv.stride;
  const auto choice = Choose(problem);
  if (!choice || ScratchOf(shape, choice->plan->workspace_bytes) > scratch.Size()) return false;
  PackStatistics(stream, shape, lse, scratch.As<float>());
  ForEachPiece(shape, choice->problem, [&](std::int64_t sequence, std::int64_t kv_head) {
    const Piece at = {shape, sequence, kv_head};
    CudnnPlans::OfThisThread().Execute(stream, *choice->plan,
                                       {{kQuery, at.Query(qkv)},
                                        {kKey, at.Key(qkv)},
                                        {kValue, at.Value(qkv)},
                                        {kOut, at.Query(out)},
                                        {kDout, at.Query(dout)},
                                        {kStatistics, at.Statistics(scratch)},
                                        {kDquery, at.Query(dqkv)},
                                        {kDkey, at.Key(dqkv)},
                                        {kDvalue, at.Value(dqkv)}},
                                       scratch.Offset(StatisticsElements(shape)));
  });
  return true;
}

}  // namespace trireme::kernels::cuda
