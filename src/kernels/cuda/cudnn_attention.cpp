// Attention to whole sequences by cuDNN: converts matrices to a CudnnProblem. Scratch holds the
// log-sum-exp in cuDNN's order, [sequences, heads, length], then the workspace of a plan. Within
// documents, each sequence has up to a fixed number of documents of any length, whose places and
// lengths cuDNN reads on the GPU. Scratch then holds, after that of our own kernels, these lists
// (DocumentIndex), then the workspace.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "attention.hpp"
#include "cudnn_plan.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

namespace {

// Elements (fp32) that a 64-bit number takes.
constexpr std::int64_t kWide = sizeof(std::int64_t) / kFloat;

// Entries per sequence: enough for documents of 128 tokens on average. More would cost time, as
// each entry costs a grid of blocks, used or not.
std::int64_t EntriesOf(const AttentionShape& s) {
  constexpr std::int64_t kTokens = 128, kLeast = 4;
  return std::clamp(CeilDivide(s.length, kTokens), kLeast, kMostDocuments);
}

// Strides of the operands: elements from one row to the next.
struct Strides {
  std::int64_t qkv, out, dout, dqkv;
};

// The problem of a pass; with begins, its sequences are cut into documents.
CudnnProblem ProblemOf(const AttentionShape& s, bool backward, const Strides& strides) {
  const auto rows = [&](std::int64_t stride) { return CudnnRows{s.length, stride}; };
  CudnnProblem p = {.backward = backward,
                    .causal = s.causal || s.begins != nullptr,
                    .sequences = s.sequences,
                    .queries = s.length,
                    .keys = s.length,
                    .heads = s.heads,
                    .kv_heads = s.kv_heads,
                    .head_dim = s.head_dim,
                    .divisor = s.Divisor(),
                    .query = rows(strides.qkv),
                    .key = rows(strides.qkv),
                    .out = rows(strides.out),
                    .dout = {},
                    .dquery = {},
                    .dkey = {}};
  if (backward) p.dout = rows(strides.dout), p.dquery = p.dkey = rows(strides.dqkv);
  if (s.begins != nullptr) p.documents = EntriesOf(s);
  return p;
}

// The same with dense operands.
CudnnProblem ProblemOf(const AttentionShape& s, bool backward) {
  const std::int64_t width = s.heads * s.head_dim;
  return ProblemOf(s, backward, {s.Width(), width, width, s.Width()});
}

std::int64_t StatisticsElements(const AttentionShape& shape) {
  return CudnnRoundUp(shape.sequences * shape.heads * shape.length);
}

// Places in scratch, in elements.
struct Places {
  explicit Places(const device::Stream& stream, const AttentionShape& s)
      : offsets(CudnnRoundUp(gpu::AttentionScratch(stream, s, Dtype::kBfloat16, false))),
        offsets_each(CudnnRoundUp(kWide * s.sequences * (EntriesOf(s) + 1))),
        lengths(offsets + DocumentIndex::kOffsets * offsets_each),
        served(lengths + CudnnRoundUp(s.sequences * EntriesOf(s))),
        workspace(served + CudnnRoundUp(s.sequences)) {}
  std::int64_t offsets, offsets_each, lengths, served, workspace;
};

// Plan of a pass whose workspace begins at element `workspace` of scratch. nullopt, with a warning,
// if cuDNN cannot compute it or rows of the operands are not aligned to 16 bytes. RunError if
// scratch was planned for the pass but is too small.
std::optional<CudnnChoice> Choose(const AttentionPass& pass, const CudnnProblem& problem,
                                  std::int64_t workspace) {
  const device::Stream& stream = pass.stream;
  for (const Matrix& m : {pass.qkv, pass.out, pass.dout, pass.dqkv}) {
    if (gpu::RowsAligned(m)) continue;
    WarnOfOwnAttention(stream, problem.backward,
                       "its operands do not lie on boundaries of 16 bytes");
    return std::nullopt;
  }
  const std::int64_t room = (pass.scratch.Size() - workspace) * kFloat;
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

// A qkv holds queries, then keys, then values.
void* Keys(const AttentionShape& s, const Matrix& qkv) { return qkv.Offset(s.heads * s.head_dim); }
void* TheValues(const AttentionShape& s, const Matrix& qkv) {
  return qkv.Offset((s.heads + s.kv_heads) * s.head_dim);
}

enum Offsets { kOfQkv, kOfOut, kOfStatistics, kOfDout, kOfDqkv };

DocumentIndex IndexIn(const Places& places, const AttentionPass& o) {
  const Matrix& scratch = o.scratch;
  DocumentIndex index = {static_cast<std::int32_t*>(scratch.Offset(places.lengths)),
                         static_cast<std::int32_t*>(scratch.Offset(places.served)),
                         {},
                         {}};
  for (int i = 0; i < DocumentIndex::kOffsets; ++i) {
    index.offsets[i] =
        static_cast<std::int64_t*>(scratch.Offset(places.offsets + i * places.offsets_each));
  }
  index.strides[kOfQkv] = o.qkv.stride, index.strides[kOfOut] = o.out.stride;
  index.strides[kOfStatistics] = o.shape.heads;
  index.strides[kOfDout] = o.dout.stride, index.strides[kOfDqkv] = o.dqkv.stride;
  return index;
}

// Operands of piece `number`. Queries, keys and values are columns of one matrix.
std::unordered_map<std::int64_t, void*> OperandsOf(const AttentionPass& o,
                                                   const DocumentIndex& index,
                                                   const CudnnProblem& piece, std::int64_t number) {
  const AttentionShape& s = o.shape;
  const std::int64_t sequence = number * piece.sequences, row = sequence * s.length;
  const std::int64_t key = s.heads * s.head_dim, value = key + s.kv_heads * s.head_dim;
  std::unordered_map<std::int64_t, void*> places;
  const auto add = [&](CudnnOperand operand, const Matrix& m, std::int64_t column, Offsets at) {
    places[operand] = m.Offset(row * m.stride + column);
    places[kOffsets + operand] =
        index.offsets[at] + number * (piece.sequences * piece.documents + 1);
  };
  add(kQuery, o.qkv, 0, kOfQkv), add(kKey, o.qkv, key, kOfQkv), add(kValue, o.qkv, value, kOfQkv);
  add(kOut, o.out, 0, kOfOut), add(kStatistics, o.lse, 0, kOfStatistics);
  if (piece.backward) {
    add(kDout, o.dout, 0, kOfDout), add(kDquery, o.dqkv, 0, kOfDqkv);
    add(kDkey, o.dqkv, key, kOfDqkv), add(kDvalue, o.dqkv, value, kOfDqkv);
  }
  places[kQueryLengths] = places[kKeyLengths] = index.lengths + sequence * piece.documents;
  return places;
}

}  // namespace

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
  return CudnnSearch(stream).Choose(ProblemOf(shape, backward)).has_value();
}

std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   std::int64_t own, bool backward) {
  // Plans for shorter sequences may need a little workspace when that of the longest needs none.
  constexpr std::int64_t kLeastWorkspace = std::int64_t{1} << 20;  // bytes
  using State = CudnnPlans::PassState;
  const bool documents = shape.begins != nullptr;
  std::int64_t bytes = 0;
  for (const bool pass : {false, true}) {
    if (pass && !backward) continue;
    const auto workspace = PlanCudnnPass(stream, ProblemOf(shape, pass),
                                         documents ? &State::documents : &State::planned,
                                         documents ? "within documents " : "");
    if (workspace) bytes = std::max({bytes, *workspace, kLeastWorkspace});
  }
  if (bytes == 0) return own;
  const std::int64_t before =
      documents ? Places(stream, shape).workspace : StatisticsElements(shape);
  return std::max(own, before + CudnnRoundUp(CeilDivide(bytes, kFloat)));
}

bool CudnnAttention(const AttentionPass& o) {
  const AttentionShape& s = o.shape;
  const CudnnProblem problem =
      ProblemOf(s, o.backward, {o.qkv.stride, o.out.stride, o.dout.stride, o.dqkv.stride});
  const auto choice = Choose(o, problem, StatisticsElements(s));
  if (!choice) return false;
  auto* const statistics = o.scratch.As<float>();
  if (o.backward) PackLse(o.stream, WholeWindow(s), o.lse, statistics);
  RunCudnn(o.stream, problem, *choice,
           {.query = o.qkv.data,
            .key = Keys(s, o.qkv),
            .value = TheValues(s, o.qkv),
            .out = o.out.data,
            .dout = o.dout.data,
            .dquery = o.dqkv.data,
            .dkey = Keys(s, o.dqkv),
            .dvalue = TheValues(s, o.dqkv),
            .statistics = statistics,
            .workspace = o.scratch.Offset(StatisticsElements(s))});
  if (!o.backward) UnpackLse(o.stream, WholeWindow(s), statistics, o.lse);
  return true;
}

const std::int32_t* CudnnDocuments(const AttentionPass& o) {
  const AttentionShape& s = o.shape;
  if (o.lse.stride != s.heads) return nullptr;  // it must be dense
  const Places places(o.stream, s);
  const auto choice = Choose(
      o, ProblemOf(s, o.backward, {o.qkv.stride, o.out.stride, o.dout.stride, o.dqkv.stride}),
      places.workspace);
  if (!choice) return nullptr;
  const CudnnProblem& piece = choice->problem;
  const DocumentIndex index = IndexIn(places, o);
  IndexDocuments(o.stream, s, piece.documents, piece.sequences, index);
  for (std::int64_t i = 0; i < s.sequences / piece.sequences; ++i) {
    CudnnPlansOf(o.stream).Execute(o.stream, *choice->plan, OperandsOf(o, index, piece, i),
                                   o.scratch.Offset(places.workspace));
  }
  return index.served;
}

}  // namespace trireme::kernels::cuda
