// Attention within documents by cuDNN: each sequence has up to a fixed number of documents of any
// length, whose places and lengths cuDNN reads on the GPU. Scratch holds, after that of our own
// kernels, these lists (DocumentIndex), then the workspace of a plan.
#include <algorithm>
#include <optional>
#include <unordered_map>

#include "attention.hpp"
#include "backends.hpp"
#include "cudnn_plan.hpp"

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

// The problem with its sequences cut into documents.
CudnnProblem WithinDocuments(CudnnProblem whole, const AttentionShape& s) {
  whole.causal = true;
  whole.documents = EntriesOf(s);
  return whole;
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

enum Offsets { kOfQkv, kOfOut, kOfStatistics, kOfDout, kOfDqkv };

DocumentIndex IndexIn(const Places& places, const AttentionShape& s, const DocumentOperands& o) {
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
  index.strides[kOfStatistics] = s.heads;
  index.strides[kOfDout] = o.dout.stride, index.strides[kOfDqkv] = o.dqkv.stride;
  return index;
}

// Operands of piece `number`. Queries, keys and values are columns of one matrix.
std::unordered_map<std::int64_t, void*> OperandsOf(const AttentionShape& s,
                                                   const DocumentOperands& o,
                                                   const DocumentIndex& index,
                                                   const CudnnProblem& piece, std::int64_t number) {
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

bool CudnnHasDocumentsPlan(const device::Stream& stream, const AttentionShape& shape,
                           bool backward) {
  return CudnnSearch(stream)
      .Choose(WithinDocuments(CudnnWhole(shape, backward), shape))
      .has_value();
}

std::int64_t CudnnDocumentsScratch(const device::Stream& stream, const AttentionShape& shape,
                                   std::int64_t own, bool backward) {
  std::int64_t bytes = 0;
  for (const bool pass : {false, true}) {
    if (pass && !backward) continue;
    const auto workspace = PlanCudnnPass(stream, WithinDocuments(CudnnWhole(shape, pass), shape),
                                         &CudnnPlans::PassState::documents, "within documents ");
    if (workspace) bytes = std::max({bytes, *workspace, kCudnnLeastWorkspace});
  }
  if (bytes == 0) return own;
  return Places(stream, shape).workspace + CudnnRoundUp(CeilDivide(bytes, kFloat));
}

const std::int32_t* CudnnDocuments(const device::Stream& stream, const AttentionShape& shape,
                                   const DocumentOperands& o, bool backward) {
  const CudnnProblem whole = WithinDocuments(
      CudnnWhole(shape, backward, {o.qkv.stride, o.out.stride, o.dout.stride, o.dqkv.stride}),
      shape);
  const bool dense = o.lse.stride == shape.heads;
  const Places places(stream, shape);
  const auto choice = dense ? ChooseCudnn(stream, whole, o.scratch, places.workspace,
                                          {o.qkv, o.out, o.dout, o.dqkv})
                            : std::nullopt;
  if (!choice) return nullptr;
  const CudnnProblem& piece = choice->problem;
  const DocumentIndex index = IndexIn(places, shape, o);
  IndexDocuments(stream, shape, piece.documents, piece.sequences, index);
  for (std::int64_t i = 0; i < shape.sequences / piece.sequences; ++i) {
    CudnnPlansOf(stream).Execute(stream, *choice->plan, OperandsOf(shape, o, index, piece, i),
                                 o.scratch.Offset(places.workspace));
  }
  return index.served;
}

}  // namespace trireme::kernels::cuda
