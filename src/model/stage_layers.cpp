// StageLayers: registers the parameters, and says which units the tasks use.
#include "trireme/model/stage_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trireme::model {

using parallel::TaskKind;

StageLayers::StageLayers(const ModelPlan& plan, const StagePlan& local,
                         const parallel::TensorGroup& tensor, const device::Stream& stream)
    : tied_(plan.options.tie_embeddings) {
  kernels::ParameterList list = ListParameters(plan, local, tensor, stream);
  kernels::Ownership owns = parallel::PlanOwnership(list, plan.dtype, local.shard);
  registry_ = kernels::Registry(std::move(list), plan.dtype, std::move(owns), plan.training, stream);
}

kernels::ParameterList StageLayers::ListParameters(const ModelPlan& plan, const StagePlan& local,
                                                  const parallel::TensorGroup& tensor,
                                                  const device::Stream& stream) {
  const bool first = local.First(), last = local.Last();
  kernels::ParameterList list;
  ParameterPlace place{plan.options, list, tensor, true, stream};
  embedding_.emplace(place, first, last, local.stages == 1);
  token_unit_ = list.UnitOf(embedding_->Weight());
  if (embedding_->Positions() != kernels::kNoParameter) {
    position_unit_ = list.UnitOf(embedding_->Positions());
  }
  if (plan.options.Translates()) {
    source_embedding_.emplace(place, first, *embedding_);
    if (source_embedding_->Weight() != embedding_->Weight()) {
      source_unit_ = list.UnitOf(source_embedding_->Weight());
    }
    if (source_embedding_->Positions() != kernels::kNoParameter) {
      source_position_unit_ = list.UnitOf(source_embedding_->Positions());
    }
  }
  AddBlocks(plan, local, place);
  tail_unit_ = list.BeginUnit("head");
  place.held = last;
  if (plan.options.norm_position == NormPosition::kPre) norm_.emplace(place, "norm");
  head_.emplace(place, embedding_->Weight());
  // If one rank uses a tied table twice, the two gradients meet where those of two stages would.
  if (local.shard.canonical && tied_ && first && last && plan.training) {
    list.AddSecondGradient(embedding_->Weight());
  }
  return list;
}

void StageLayers::AddBlocks(const ModelPlan& plan, const StagePlan& local, ParameterPlace place) {
  chunks_.resize(local.chunks.size());
  const std::int64_t encoders = plan.options.encoder_layers;
  for (std::int64_t layer = 0; layer < plan.options.Blocks(); ++layer) {
    const auto here =
        std::find_if(local.chunks.begin(), local.chunks.end(),
                     [layer](const Part& part) { return part.begin <= layer && layer < part.end; });
    place.held = here != local.chunks.end();
    const int unit = place.parameters.BeginUnit(fmt::format("blocks.{}", layer), true);
    Block block(place, static_cast<std::uint32_t>(layer), encoders > 0 && layer >= encoders);
    const bool ends = layer + 1 == encoders;
    if (ends && plan.options.norm_position == NormPosition::kPre) {
      encoder_norm_.emplace(place, "encoder.norm", true);
    }
    if (!place.held) continue;
    Chunk& chunk = chunks_[static_cast<std::size_t>(here - local.chunks.begin())];
    chunk.units.push_back(unit);
    chunk.blocks.push_back(std::move(block));
    if (layer < encoders) ++chunk.encoders;
    chunk.ends_encoder = chunk.ends_encoder || ends;
  }
  chunks_.front().first = local.First();
  chunks_.back().last = local.Last();
}

bool StageLayers::Has(int unit) const {
  return unit >= 0 && registry_.Units()[static_cast<std::size_t>(unit)].range.Size() > 0;
}

std::array<int, 4> StageLayers::FirstUnits() const {
  return {token_unit_, position_unit_, source_unit_, source_position_unit_};
}

std::array<int, 2> StageLayers::LastUnits() const { return {tail_unit_, tied_ ? token_unit_ : -1}; }

void StageLayers::AppendUses(const parallel::Task& task) {
  if (task.kind == TaskKind::kBackwardWeight) return;
  const Chunk& chunk = chunks_[static_cast<std::size_t>(task.chunk)];
  const auto append = [&](std::span<const int> units) {
    for (const int unit : units) {
      if (Has(unit)) uses_.push_back(unit);
    }
  };
  const bool forward = task.kind == TaskKind::kForward || task.kind == TaskKind::kEvaluate;
  if (forward && chunk.first) append(FirstUnits());
  if (!forward && chunk.last) append(LastUnits());
  const auto before = static_cast<std::ptrdiff_t>(uses_.size());
  append(chunk.units);
  if (!forward) std::reverse(uses_.begin() + before, uses_.end());
  if (task.kind == TaskKind::kEvaluate && chunk.last) append(LastUnits());
}

const std::vector<int>& StageLayers::UsesOf(const parallel::Program& program) {
  uses_.clear();
  for (const parallel::Operation& operation : program.operations) {
    if (operation.action != parallel::Action::kCompute) continue;
    AppendUses(program.tasks[static_cast<std::size_t>(operation.task)].task);
  }
  return uses_;
}

}  // namespace trireme::model
