// Sizes of the workspace's matrices.
#include "workspace.hpp"

#include <algorithm>

#include "slice_sums.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/cross_entropy.hpp"
#include "trireme/kernels/norm.hpp"

namespace trireme::model {

namespace {

// Elements of the attention's scratch. training: there are backward passes.
std::int64_t AttentionElements(const Pass& pass, const Options& options, bool training,
                               const kernels::AttentionShape& whole) {
  kernels::AttentionShape shape = whole;
  if (pass.stream.OnGpu()) {
    // A library's scratch memory is that of the very shape. On the CPU a slice of the heads needs
    // no more than all of them.
    shape.heads = std::max<std::int64_t>(1, options.heads / pass.tensor->Size());
    shape.kv_heads = std::max<std::int64_t>(1, options.kv_heads / pass.tensor->Size());
  }
  // Without a backward pass it is planned as with dropout: a library has no backward pass then.
  const bool dropout =
      !training || kernels::Dropout{.probability = options.attention_dropout}.Active();
  const std::int64_t whole_elements =
      pass.ring->BufferElements(pass.stream, shape, pass.Type(), dropout);
  if (!options.Translates()) return whole_elements;
  shape.causal = false;
  return std::max(
      whole_elements,
      kernels::AttentionPartScratch(pass.stream, shape, pass.source.length, pass.Type(), dropout));
}

// Stand for begins of documents and lengths of keys, which nothing reads while memory is measured.
constexpr std::int32_t kSomeBegins = 0, kSomeLengths = 0;

}  // namespace

Workspace AllocateWorkspace(const Pass& pass, const ModelPlan& plan, const HeadLayer* head,
                            device::Arena& arena) {
  const Options& o = plan.options;
  const parallel::TensorGroup& tensor = *pass.tensor;
  const kernels::AttentionShape shape{.sequences = pass.sequences,
                                      .length = pass.length,
                                      .heads = o.heads,
                                      .kv_heads = o.kv_heads,
                                      .head_dim = o.head_dim,
                                      .first_head = 0,
                                      .causal = true,
                                      .positions = pass.positions,
                                      .begins = plan.document_mask ? &kSomeBegins : nullptr,
                                      .key_lengths = o.Translates() ? &kSomeLengths : nullptr};
  Workspace workspace;
  workspace.attention =
      pass.AllocateSums(&arena, 1, AttentionElements(pass, o, plan.training, shape));
  const std::int64_t widest = std::max({2 * o.dim, 2 * o.ffn, shape.Width()});
  workspace.reduction = pass.AllocateSums(&arena, kernels::kReductionBlocks, widest);
  if (const int levels = SliceLevels(tensor.Slices()); levels > 0) {
    workspace.slices = pass.Allocate(&arena, levels * pass.Tokens(), o.dim);
  }
  if (tensor.Canonical()) {
    workspace.norm_parts = pass.Allocate(&arena, tensor.AllSlices(), 2 * o.dim);
  }
  if (head == nullptr) return workspace;
  workspace.tile = head->AllocateTile(pass, arena, plan.training);
  const std::int64_t rows = head->TileTokens(pass);
  workspace.losses = kernels::Allocate(arena, Dtype::kFloat64, 1, rows);
  workspace.statistics = kernels::Allocate(arena, Dtype::kFloat64, tensor.AllSlices(),
                                          kernels::kSoftmaxStatistics * rows);
  return workspace;
}

}  // namespace trireme::model
