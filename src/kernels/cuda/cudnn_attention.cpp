// Attention to whole sequences by cuDNN: converts matrices to a CudnnProblem. Scratch holds the
// log-sum-exp in cuDNN's order, [sequences, heads, length], then the workspace of a plan.
#include "cudnn_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "attention.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

namespace {

constexpr std::int64_t kAlignment = 16;  // bytes; for every row

std::int64_t StatisticsElements(const AttentionShape& shape) {
  return CudnnRoundUp(shape.sequences * shape.heads * shape.length);
}

std::int64_t ScratchOf(const AttentionShape& shape, std::int64_t workspace_bytes) {
  return StatisticsElements(shape) + CudnnRoundUp(CeilDivide(workspace_bytes, kFloat));
}

// A qkv holds queries, then keys, then values.
void* Keys(const AttentionShape& s, const Matrix& qkv) { return qkv.Offset(s.heads * s.head_dim); }
void* TheValues(const AttentionShape& s, const Matrix& qkv) {
  return qkv.Offset((s.heads + s.kv_heads) * s.head_dim);
}

}  // namespace

CudnnProblem CudnnWhole(const AttentionShape& s, bool backward, const CudnnStrides& strides) {
  const auto rows = [&](std::int64_t stride) { return CudnnRows{s.length, stride}; };
  CudnnProblem p = {.backward = backward,
                    .causal = s.causal,
                    .sequences = s.sequences,
                    .queries = s.length,
                    .keys = s.length,
                    .heads = s.heads,
                    .kv_heads = s.kv_heads,
                    .head_dim = s.head_dim,
                    .query = rows(strides.qkv),
                    .key = rows(strides.qkv),
                    .out = rows(strides.out),
                    .dout = {},
                    .dquery = {},
                    .dkey = {}};
  if (backward) p.dout = rows(strides.dout), p.dquery = p.dkey = rows(strides.dqkv);
  return p;
}

CudnnProblem CudnnWhole(const AttentionShape& s, bool backward) {
  const std::int64_t width = s.heads * s.head_dim;
  return CudnnWhole(s, backward, {s.Width(), width, width, s.Width()});
}

bool OnCudnnBoundaries(const Matrix& m) {
  const auto bytes = static_cast<std::int64_t>(SizeOf(m.dtype));
  return reinterpret_cast<std::uintptr_t>(m.data) % kAlignment == 0 &&
         m.stride * bytes % kAlignment == 0;
}

std::optional<CudnnChoice> ChooseCudnn(const device::Stream& stream, const CudnnProblem& problem,
                                       const Matrix& scratch, std::int64_t workspace,
                                       std::initializer_list<Matrix> operands) {
  if (!std::ranges::all_of(operands, OnCudnnBoundaries)) {
    WarnOfOwnAttention(
        stream, problem.backward,
        fmt::format("its operands do not lie on boundaries of {} bytes", kAlignment));
    return std::nullopt;
  }
  const std::int64_t room = (scratch.Size() - workspace) * kFloat;
  CudnnSearch search(stream, room);
  auto choice = search.Choose(problem);
  if (choice) return choice;
  const CudnnPlans::PassState& state = CudnnPlansOf(stream).StateOf(problem.backward);
  if (search.Lacking() == 0) {
    WarnOfOwnAttention(stream, problem.backward, search.Why());
  } else if (problem.documents > 0 ? state.documents : state.planned) {
    throw RunError(fmt::format("attention of {} sequences of {}: {} bytes of scratch for cuDNN's "
                               "workspace of {}",
                               problem.sequences, problem.queries, std::max<std::int64_t>(0, room),
                               search.Lacking()),
                   "This is a bug in Trireme.");
  }
  return std::nullopt;
}

std::optional<std::int64_t> PlanCudnnPass(const device::Stream& stream, const CudnnProblem& problem,
                                          bool CudnnPlans::PassState::*planned,
                                          const std::string& what) {
  CudnnSearch search(stream);
  const auto choice = search.Choose(problem);
  if (!choice) {
    WarnOfOwnAttention(stream, problem.backward, what + search.Why());
    return std::nullopt;
  }
  CudnnPlansOf(stream).StateOf(problem.backward).*planned = true;
  return choice->plan->workspace_bytes;
}

bool CudnnHasPlan(const device::Stream& stream, const AttentionShape& shape, bool backward) {
  return CudnnSearch(stream).Choose(CudnnWhole(shape, backward)).has_value();
}

std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   bool backward) {
  std::int64_t bytes = 0;
  for (const bool pass : {false, true}) {
    if (pass && !backward) continue;
    const auto workspace =
        PlanCudnnPass(stream, CudnnWhole(shape, pass), &CudnnPlans::PassState::planned, "");
    if (workspace) bytes = std::max({bytes, *workspace, kCudnnLeastWorkspace});
  }
  return bytes == 0 ? 0 : ScratchOf(shape, bytes);
}

bool CudnnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const Matrix& qkv, const Matrix& out, const Matrix& lse,
                           const Matrix& scratch) {
  const CudnnProblem problem = CudnnWhole(shape, false, {qkv.stride, out.stride});
  const auto choice = ChooseCudnn(stream, problem, scratch, StatisticsElements(shape), {qkv, out});
  if (!choice) return false;
  RunCudnn(stream, problem, *choice,
           {.query = qkv.data,
            .key = Keys(shape, qkv),
            .value = TheValues(shape, qkv),
            .out = out.data,
            .statistics = scratch.As<float>(),
            .workspace = scratch.Offset(StatisticsElements(shape))});
  UnpackLse(stream, WholeWindow(shape), scratch.As<float>(), lse);
  return true;
}

bool CudnnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                            const Matrix& qkv, const Matrix& out, const Matrix& dout,
                            const Matrix& lse, const Matrix& dqkv, const Matrix& scratch) {
  const CudnnProblem problem =
      CudnnWhole(shape, true, {qkv.stride, out.stride, dout.stride, dqkv.stride});
  const auto choice =
      ChooseCudnn(stream, problem, scratch, StatisticsElements(shape), {qkv, out, dout, dqkv});
  if (!choice) return false;
  PackLse(stream, WholeWindow(shape), lse, scratch.As<float>());
  RunCudnn(stream, problem, *choice,
           {.query = qkv.data,
            .key = Keys(shape, qkv),
            .value = TheValues(shape, qkv),
            .out = out.data,
            .dout = dout.data,
            .dquery = dqkv.data,
            .dkey = Keys(shape, dqkv),
            .dvalue = TheValues(shape, dqkv),
            .statistics = scratch.As<float>(),
            .workspace = scratch.Offset(StatisticsElements(shape))});
  return true;
}

}  // namespace trireme::kernels::cuda
