// Sizes of pieces by the memory that their plans take; the places of their operands.
#include "cudnn_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "trireme/base/partition.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::kernels::cuda {

namespace {

// cuDNN's deterministic backward pass keeps dP of what it works on, queries x keys for each head,
// on the GPUs of compute capability 8 and 9: it is given as many heads at once as fit into this.
constexpr std::int64_t kUsualWorkspace = std::int64_t{512} << 20;  // bytes
// Heads that share keys are not taken apart, nor those of a sequence of documents: they may take
// this part of the card's memory.
constexpr std::int64_t kLargestPart = 16;
constexpr std::int64_t kUnit = 64;     // elements: workspaces begin on 256 bytes
constexpr std::int64_t kBf16Size = 2;  // bytes

}  // namespace

std::int64_t CudnnRoundUp(std::int64_t elements) { return CeilDivide(elements, kUnit) * kUnit; }

CudnnSearch::CudnnSearch(const device::Stream& stream, std::optional<std::int64_t> room, bool build)
    : stream_(stream),
      most_(std::max(kUsualWorkspace, stream.gpu->memory_bytes / kLargestPart)),
      room_(room.value_or(most_)),
      build_(build) {}

std::optional<CudnnChoice> CudnnSearch::Choose(const CudnnProblem& asked) {
  CudnnProblem whole = asked;
  if (!whole.backward) return Accept(whole, most_);
  whole.deterministic = stream_.gpu->deterministic;
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
  if (whole.documents > 0) return choice ? choice : Accept(of_sequences(1), most_);
  if (!choice) choice = Largest(whole.kv_heads, of_heads);
  return choice ? choice : Accept(of_heads(1), most_);
}

std::optional<CudnnChoice> CudnnSearch::Largest(
    std::int64_t count, const std::function<CudnnProblem(std::int64_t)>& piece) {
  for (std::int64_t pieces = 1; pieces <= count; ++pieces) {
    if (count % pieces != 0) continue;
    const CudnnProblem problem = piece(count / pieces);
    if (LeastWorkspace(problem) > kUsualWorkspace) continue;  // saves a plan, which takes seconds
    if (auto choice = Accept(problem, kUsualWorkspace)) return choice;
  }
  return std::nullopt;
}

std::int64_t CudnnSearch::LeastWorkspace(const CudnnProblem& problem) const {
  if (!CudnnPlans::KeepsScores(stream_, problem)) return 0;
  return problem.sequences * std::max<std::int64_t>(1, problem.documents) * problem.heads *
         CudnnRoundUp(problem.queries) * CudnnRoundUp(problem.keys) * kBf16Size;
}

std::optional<CudnnChoice> CudnnSearch::Accept(const CudnnProblem& problem, std::int64_t most) {
  CudnnPlans& plans = CudnnPlansOf(stream_);
  const CudnnPlan* const plan = build_ ? &plans.Find(stream_, problem) : plans.Built(problem);
  if (plan == nullptr) {
    why_ = "no plan was built for it";
  } else if (plan->graph == nullptr) {
    why_ = plan->why;
  } else if (plan->workspace_bytes > most) {
    why_ = fmt::format("cuDNN wants {} MiB of workspace, of at most {}",
                       plan->workspace_bytes >> 20, most >> 20);
  } else if (plan->workspace_bytes > room_) {
    lacking_ = lacking_ == 0 ? plan->workspace_bytes : std::min(lacking_, plan->workspace_bytes);
  } else {
    return CudnnChoice{problem, plan};
  }
  return std::nullopt;
}

void WarnOfOwnAttention(const device::Stream& stream, bool backward, std::string why) {
  CudnnPlans::PassState& state = CudnnPlansOf(stream).StateOf(backward);
  if (std::exchange(state.warned, true)) return;
  std::ranges::replace(why, '\n', ' ');
  fmt::print(stderr, "warning: attention {}: our own kernels, not cuDNN's, because {}\n",
             backward ? "backward" : "forward", why);
  std::fflush(stderr);
}

void RunCudnn(const device::Stream& stream, const CudnnProblem& whole, const CudnnChoice& choice,
              const CudnnPlaces& places) {
  const CudnnProblem& piece = choice.problem;
  const std::int64_t shared = whole.heads / whole.kv_heads;
  for (std::int64_t sequence = 0; sequence < whole.sequences; sequence += piece.sequences) {
    for (std::int64_t kv_head = 0; kv_head < whole.kv_heads; kv_head += piece.kv_heads) {
      const auto at = [&](void* first, const CudnnRows& rows, std::int64_t head) -> void* {
        if (first == nullptr) return nullptr;
        const std::int64_t elements = sequence * rows.rows * rows.stride + head * whole.head_dim;
        return static_cast<char*>(first) + elements * kBf16Size;
      };
      const std::int64_t head = kv_head * shared;
      std::unordered_map<std::int64_t, void*> operands = {
          {kQuery, at(places.query, whole.query, head)},
          {kKey, at(places.key, whole.key, kv_head)},
          {kValue, at(places.value, whole.key, kv_head)},
          {kOut, at(places.out, whole.out, head)},
          {kStatistics, places.statistics + (sequence * whole.heads + head) * whole.queries}};
      if (whole.backward) {
        operands[kDout] = at(places.dout, whole.dout, head);
        operands[kDquery] = at(places.dquery, whole.dquery, head);
        operands[kDkey] = at(places.dkey, whole.dkey, kv_head);
        operands[kDvalue] = at(places.dvalue, whole.dkey, kv_head);
      }
      CudnnPlansOf(stream).Execute(stream, *choice.plan, std::move(operands), places.workspace);
    }
  }
}

}  // namespace trireme::kernels::cuda
