// Attention by cuDNN: the part of the batch that a plan takes at once, and the places of operands
// and workspace. Scratch: the log-sum-exp in cuDNN's order, [sequences, heads, length], then the
// workspace of a plan.
#include "cudnn_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "attention.hpp"
#include "cudnn_plan.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

namespace {

using tensor::Matrix;

// cuDNN's deterministic backward pass keeps dP of what it works on, length x length for each head,
// on the GPUs of compute capability 8 and 9: it is given as many heads at once as fit into this.
constexpr std::int64_t kMostWorkspace = std::int64_t{512} << 20;  // bytes
// Small plans of shorter sequences may want what that of the longest does not.
constexpr std::int64_t kLeastWorkspace = std::int64_t{1} << 20;
constexpr std::int64_t kFloat = sizeof(float);
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

// Search for the largest piece of a problem that cuDNN serves with `room` bytes of workspace:
// sequences with all their heads, else key/value heads of one sequence with their query heads; a
// divisor, so that one plan serves all pieces. The forward pass is one piece.
class Search {
 public:
  Search(const device::Stream& stream, std::int64_t room) : stream_(stream), room_(room) {}

  std::optional<Choice> Choose(const CudnnProblem& whole) {
    if (!whole.backward) return Accept(whole);
    const auto of_sequences = [&](std::int64_t sequences) {
      CudnnProblem p = whole;
      p.sequences = sequences;
      return p;
    };
    const auto of_heads = [&](std::int64_t kv_heads) {
      CudnnProblem p = of_sequences(1);
      p.kv_heads = kv_heads, p.heads = kv_heads * (whole.heads / whole.kv_heads);
      return p;
    };
    auto choice = Largest(whole.sequences, of_sequences);
    return choice ? choice : Largest(whole.kv_heads, of_heads);
  }

  // Reason why no piece is served.
  std::string Why() const {
    if (!why_.empty()) return why_;
    return fmt::format("dP of the heads that share keys takes more than {} MiB",
                       kMostWorkspace >> 20);
  }
  // Bytes of the smallest workspace that would have sufficed; 0 if none would.
  std::int64_t Lacking() const { return lacking_; }

 private:
  template <typename Piece>
  std::optional<Choice> Largest(std::int64_t count, const Piece& piece) {
    for (std::int64_t pieces = 1; pieces <= count; ++pieces) {
      if (count % pieces != 0) continue;
      const CudnnProblem problem = piece(count / pieces);
      const std::int64_t length = RoundUp(problem.length);
      if (problem.sequences * problem.heads * length * length * kDpBytes > kMostWorkspace) continue;
      if (auto choice = Accept(problem)) return choice;
    }
    return std::nullopt;
  }
  std::optional<Choice> Accept(const CudnnProblem& problem) {
    const CudnnPlan& plan = CudnnPlansOf(stream_).Find(stream_, problem);
    const std::int64_t bytes = plan.workspace_bytes;
    if (plan.graph == nullptr) {
      why_ = plan.why;
    } else if (bytes > kMostWorkspace) {
      why_ = fmt::format("cuDNN wants {} MiB of workspace, of at most {}", bytes >> 20,
                         kMostWorkspace >> 20);
    } else if (bytes > room_) {
      lacking_ = lacking_ == 0 ? bytes : std::min(lacking_, bytes);
    } else {
      return Choice{problem, &plan};
    }
    return std::nullopt;
  }

  const device::Stream& stream_;
  std::int64_t room_, lacking_ = 0;
  std::string why_;  // reason of the last refusal
};

// Prints one line per pass, for the first reason.
void Warn(const device::Stream& stream, bool backward, std::string why) {
  CudnnPlans::PassState& state = CudnnPlansOf(stream).StateOf(backward);
  if (std::exchange(state.warned, true)) return;
  std::ranges::replace(why, '\n', ' ');
  fmt::print(stderr, "warning: attention {}: our own kernels, not cuDNN's, because {}\n",
             backward ? "backward" : "forward", why);
  std::fflush(stderr);
}

bool Aligned(const Matrix& m) {
  const auto bytes = static_cast<std::int64_t>(SizeOf(m.dtype));
  return reinterpret_cast<std::uintptr_t>(m.data) % kAlignment == 0 &&
         m.stride * bytes % kAlignment == 0;
}

std::int64_t ScratchOf(const AttentionShape& shape, std::int64_t workspace_bytes) {
  return StatisticsElements(shape) + RoundUp(CeilDivide(workspace_bytes, kFloat));
}

// Plan of a pass with this scratch; none, with a warning, if cuDNN does not serve it.
std::optional<Choice> ChooseWithin(const device::Stream& stream, const AttentionShape& shape,
                                   const CudnnProblem& problem, const Matrix& scratch,
                                   std::initializer_list<Matrix> operands) {
  if (!std::ranges::all_of(operands, Aligned)) {
    Warn(stream, problem.backward,
         fmt::format("its operands do not lie on boundaries of {} bytes", kAlignment));
    return std::nullopt;
  }
  const std::int64_t room = (scratch.Size() - StatisticsElements(shape)) * kFloat;
  Search search(stream, room);
  auto choice = search.Choose(problem);
  if (choice) return choice;
  if (search.Lacking() == 0) {
    Warn(stream, problem.backward, search.Why());
  } else if (CudnnPlansOf(stream).StateOf(problem.backward).planned) {
    throw RunError(fmt::format("attention of {} sequences of {}: {} bytes of scratch for cuDNN's "
                               "workspace of {}",
                               shape.sequences, shape.length, std::max<std::int64_t>(0, room),
                               search.Lacking()),
                   "This is a bug in Trireme.");
  }
  return std::nullopt;
}

// Calls run(first sequence, first key/value head) for all pieces of the batch.
template <typename Run>
void ForEachPiece(const AttentionShape& shape, const CudnnProblem& piece, const Run& run) {
  for (std::int64_t sequence = 0; sequence < shape.sequences; sequence += piece.sequences) {
    for (std::int64_t head = 0; head < shape.kv_heads; head += piece.kv_heads) run(sequence, head);
  }
}

// Places of a piece's operands.
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

bool CudnnHasPlan(const device::Stream& stream, const AttentionShape& shape, bool backward) {
  return Search(stream, kMostWorkspace).Choose(ProblemOf(shape, backward)).has_value();
}

std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   bool backward) {
  std::int64_t bytes = 0;
  for (const bool pass : {false, true}) {
    if (pass && !backward) continue;
    Search search(stream, kMostWorkspace);
    if (const auto choice = search.Choose(ProblemOf(shape, pass))) {
      bytes = std::max({bytes, choice->plan->workspace_bytes, kLeastWorkspace});
      CudnnPlansOf(stream).StateOf(pass).planned = true;
    } else {
      Warn(stream, pass, search.Why());
    }
  }
  return bytes == 0 ? 0 : ScratchOf(shape, bytes);
}

bool CudnnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const Matrix& qkv, const Matrix& out, const Matrix& lse,
                           const Matrix& scratch) {
  CudnnProblem problem = ProblemOf(shape, false);
  problem.qkv_stride = qkv.stride, problem.out_stride = out.stride;
  const auto choice = ChooseWithin(stream, shape, problem, scratch, {qkv, out});
  if (!choice) return false;
  const Piece all = {shape, 0, 0};
  CudnnPlansOf(stream).Execute(stream, *choice->plan,
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
  CudnnProblem problem = ProblemOf(shape, true);
  problem.qkv_stride = qkv.stride, problem.out_stride = out.stride;
  problem.dout_stride = dout.stride, problem.dqkv_stride = dqkv.stride;
  const auto choice = ChooseWithin(stream, shape, problem, scratch, {qkv, out, dout, dqkv});
  if (!choice) return false;
  PackStatistics(stream, shape, lse, scratch.As<float>());
  ForEachPiece(shape, choice->problem, [&](std::int64_t sequence, std::int64_t kv_head) {
    const Piece at = {shape, sequence, kv_head};
    CudnnPlansOf(stream).Execute(stream, *choice->plan,
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
