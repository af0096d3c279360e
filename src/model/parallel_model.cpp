// ParallelModel: construction, steps and evaluations over the ranks of a replica.
#include "trireme/model/parallel_model.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::model {

namespace {

device::Stream StreamOf(const ModelPlan& plan, device::Stream stream) {
  stream.canonical = plan.canonical.On();
  return stream;
}

// Canonical: with the exchange buffer of sums over the tensor ranks, the largest part for each.
parallel::TensorGroup MakeTensorGroup(const comm::ProcessGrid& grid, const ModelPlan& plan,
                                      const StagePlan& local, const device::Stream& stream) {
  const comm::Collectives transfers = grid.Over(comm::Group::kTensor);
  if (!plan.canonical.On()) return {transfers, grid.SequenceParallel()};
  const std::int64_t ranks = grid.Shape().tensor;
  const std::int64_t most = CeilDivide(local.tokens, ranks) * ranks * plan.options.dim;
  return {transfers, grid.SequenceParallel(), plan.canonical.slices,
          parallel::TreeCollectives(transfers, stream, plan.dtype, most)};
}

// Tells the products whether the model learns from what is computed next.
void SetTraining(const device::Stream& stream, bool training) {
  if (kernels::Libraries* const libraries = kernels::LibrariesOf(stream)) {
    libraries->SetTraining(training);
  }
}

}  // namespace

ParallelModel::ParallelModel(const comm::ProcessGrid& grid, const ModelPlan& plan,
                             const device::Stream& stream, const std::function<void()>& between)
    : grid_(grid),
      plan_(plan),
      local_plan_(PlanStage(plan, grid.Shape(), grid.Options(), grid.World().Rank())),
      stream_(StreamOf(plan, stream)),
      done_(stream_),
      drain_(stream_, [&grid] { grid.GiveUp(); }) {
  Parallelise();
  DrawWeights(between);
}

// Every parallelism of the model in one place: the ranks that take part in each, and what they do
// together. What this rank has of each (stage, positions, rows, shard) stands in local_plan_.
void ParallelModel::Parallelise() {
  using comm::Group;
  const comm::Collectives tensor = grid_.Over(Group::kTensor), data = grid_.Over(Group::kData),
                          shard = grid_.Over(Group::kShard);
  const bool sharded = local_plan_.shard.sharding != comm::Sharding::kNone;
  const bool canonical = plan_.canonical.On();
  // Context: each rank has a part of every sequence; keys and values go round in a ring.
  context_ = parallel::RingAttention(grid_.Over(Group::kContext), plan_.length);
  // Tensor ranks that hold the same key/value head, where there are more ranks than heads.
  key_value_ = grid_.KeyValueGroup(plan_.options.kv_heads);
  key_value_channel_ = grid_.ChannelOver(key_value_, Group::kKeyValue);
  const comm::Collectives key_value(key_value_, Group::kKeyValue, grid_.Traffic(),
                                    key_value_channel_.get());
  grid_.World().Together([&] {
    // Tensor: each rank has a slice of every matrix; the outputs of attention and feed-forward
    // network are summed, and with sequence parallelism cut by rows.
    tensor_ = MakeTensorGroup(grid_, plan_, local_plan_, stream_);
    // Pipeline: each rank has a stage, whose output goes to the next and its gradient back.
    pipeline_ = std::make_unique<parallel::Pipeline>(
        grid_.Over(Group::kPipeline), local_plan_.pipeline, plan_.dtype,
        local_plan_.residual_rows * plan_.leaves, plan_.options.dim, stream_);
    // This rank's part: the layers of its stage, the slices of its tensor rank.
    layers_ = std::make_unique<StageLayers>(plan_, local_plan_, tensor_, stream_);
    kernels::Registry& parameters = layers_->Parameters();
    // Gradients of which several ranks of a replica have terms are summed: those of norms and
    // biases over the tensor group, of shared heads, of a tied table over the first and the last
    // stage. Parameters that several ranks hold whole then get the gradient of one of them, bit by
    // bit.
    std::map<kernels::GradientSum, comm::Collectives> sums;
    if (plan_.training) {
      sums = {{kernels::GradientSum::kTensor, tensor},
              {kernels::GradientSum::kKeyValue, key_value},
              {kernels::GradientSum::kTied, grid_.Over(Group::kEmbedding)}};
      copied_ = std::make_unique<parallel::CopiedGradients>(
          parameters, parallel::CopyGroups{tensor, key_value, data, shard}, sharded, canonical,
          stream_);
    }
    shared_ = std::make_unique<parallel::SharedGradients>(parameters, sums, sharded, stream_);
    // Shard (ZeRO): each rank owns a part of every unit's moments, gradients or values; what
    // others own is gathered where it is used, and gradients are scattered.
    units_ = std::make_unique<parallel::ShardedUnits>(shard, parameters, stream_, local_plan_.shard,
                                                      shared_.get());
    // Data: each rank has other windows; gradients are summed in buckets during the backward pass.
    if (plan_.training) {
      buckets_ = std::make_unique<parallel::GradientBuckets>(data, shard, parameters, stream_,
                                                             local_plan_.shard, shared_.get());
    }
    local_ = std::make_unique<Model>(plan_, local_plan_, *layers_,
                                     Collaborators{stream_, tensor_, context_, *units_,
                                                   [this] { Progress(); }, &grid_.Traffic()});
  });
}

// Between kernels: chances for transfers under way.
void ParallelModel::Progress() {
  pipeline_->Progress();
  units_->Progress();
}
// Before drain_ waits for what is queued.
ParallelModel::~ParallelModel() { units_->LeaveUpdated(); }

// All ranks take as many pauses as the one with the most to draw.
void ParallelModel::DrawWeights(const std::function<void()>& between) {
  kernels::Registry& parameters = Parameters();
  if (!between) return parameters.Initialise(plan_.seed);
  const std::int64_t pauses = grid_.World().Max(parameters.InitialPieces());
  std::int64_t taken = 0;
  parameters.Initialise(plan_.seed, [&] {
    ++taken;
    between();
  });
  for (; taken < pauses; ++taken) between();
}

void ParallelModel::BeginStep() {
  // Sharded gradients are cleared by ShardedUnits.
  if (!units_->GradientsSharded()) layers_->Parameters().ZeroGradients();
  units_->BeginStep();
}

// Waits for what was queued on a GPU; ends if a rank is lost.
void ParallelModel::AwaitQueue() {
  if (!stream_.OnGpu()) return;
  done_.Record(stream_.gpu->queue);
  grid_.Await(done_);
}

ExactSum ParallelModel::FinishLoss() {
  AwaitQueue();
  return grid_.LastStage() && tensor_.Rank() == 0 ? local_->SummedLoss() : ExactSum();
}

int ParallelModel::MicroBatches(std::span<const data::Entry> batches) const {
  return static_cast<int>(std::ssize(batches)) / plan_.leaves;
}

// Announces the units that the program gathers, in order.
void ParallelModel::Announce(const parallel::Program& program) {
  if (units_->ValuesSharded()) units_->BeginTasks(layers_->UsesOf(program));
}

void ParallelModel::StartTrain(StagedBatches::Taken taken, const GradientsReady& ready) {
  if (taken.Batches().empty()) return;  // all ranks of the replica see this
  const int count = MicroBatches(taken.Batches());
  SetTraining(stream_, true);
  local_->Begin(std::move(taken), ready, nullptr);
  Announce(pipeline_->TrainingProgram(count));
  pipeline_->Train(count, *local_);
  local_->FinishLeaves();
}

void ParallelModel::Evaluate(std::span<const data::Entry> batches) {
  const int count = MicroBatches(batches);
  SetTraining(stream_, false);
  Announce(pipeline_->EvaluationProgram(count));
  pipeline_->ReceiveLate(stream_.OnGpu());
  pipeline_->Evaluate(count, *local_);
}

ExactSum ParallelModel::Loss(std::span<const data::Entry> batches, double* losses) {
  if (batches.empty()) return {};
  QueueLoss(batches, losses);
  return FinishLoss();
}

void ParallelModel::QueueLoss(std::span<const data::Entry> batches, double* losses) {
  local_->Begin(Batches().Take(batches), {}, losses);
  Evaluate(batches);
}

// The part on this context rank of a batch of one whole sequence, padded to the ring's length.
data::Entry ParallelModel::LocalPart(const data::Entry& batch) const {
  data::Entry local = batch;
  local.positions = context_.Own();
  local.length = local.positions.Count();
  local.inputs.clear();
  local.begins.clear();
  local.targets.assign(static_cast<std::size_t>(local.length), data::kMasked);
  for (std::int64_t p = 0; p < local.length; ++p) {
    const std::int64_t at = local.positions.At(p);
    const auto place = static_cast<std::size_t>(std::min(at, batch.length - 1));
    local.inputs.push_back(at < batch.length ? batch.inputs[place] : 0);
    if (!batch.begins.empty()) local.begins.push_back(batch.begins[place]);
  }
  return local;
}

// The context rank that holds a position, and the place in its part.
std::pair<int, std::int64_t> ParallelModel::Find(std::int64_t position) const {
  for (int rank = 0; rank < context_.Size(); ++rank) {
    const Positions held = PositionsOf(plan_.length, rank, context_.Size());
    for (std::int64_t p = 0; p < held.Count(); ++p) {
      if (held.At(p) == position) return {rank, p};
    }
  }
  throw RunError(fmt::format("no rank holds position {}", position));
}

std::vector<double> ParallelModel::Logits(const data::Entry& batch, std::int64_t position) {
  int owner = 0;
  std::vector<data::Entry> entries(static_cast<std::size_t>(plan_.leaves));
  entries.front() = batch;
  if (context_.Active()) {
    entries.front() = LocalPart(batch);
    std::tie(owner, position) = Find(position);
    if (grid_.Coordinates().context != owner) position = 0;  // any; the result is not used
  }
  local_->BeginLogits(Batches().Take(entries), position);
  Evaluate(entries);
  const std::int64_t vocabulary = plan_.options.vocabulary;
  std::vector<double> logits(static_cast<std::size_t>(vocabulary));
  if (grid_.LastStage()) {
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < tensor_.Size(); ++rank) {
      counts.push_back(PartOf(vocabulary, rank, tensor_.Size()).Size());
    }
    std::ranges::copy(local_->LogitsSlice(), logits.data() + local_->VocabularySlice().begin);
    tensor_.Transfers().OnHost().AllGatherInPlace(Dtype::kFloat64, logits.data(), counts);
  }
  grid_.Over(comm::Group::kPipeline)
      .OnHost()
      .Broadcast(Dtype::kFloat64, logits.data(), vocabulary, grid_.Shape().pipeline - 1);
  grid_.Over(comm::Group::kContext)
      .OnHost()
      .Broadcast(Dtype::kFloat64, logits.data(), vocabulary, owner);
  // Rows without a token are no choice.
  if (plan_.options.types > 0) logits.resize(static_cast<std::size_t>(plan_.options.types));
  return logits;
}

// All rows stand at the last position of a window, in documents that begin so that theirs is the
// right one: tables of positions need no other way to it.
data::Entry ParallelModel::ContinuedEntry(std::span<const std::int32_t> tokens,
                                          std::span<const std::int32_t> positions) const {
  const std::int64_t last = plan_.length - 1;
  data::Entry entry;
  entry.sequences = std::ssize(tokens);
  entry.length = 1;
  entry.inputs.assign(tokens.begin(), tokens.end());
  entry.targets.assign(tokens.size(), data::kMasked);
  entry.ordinals.assign(tokens.size(), 0);
  for (const std::int32_t position : positions) {
    entry.begins.push_back(static_cast<std::int32_t>(last - position));
  }
  entry.positions = {{last, last + 1}, {last + 1, last + 1}};
  return entry;
}

const std::vector<double>& ParallelModel::CachedLogits(std::span<const data::Entry> batches,
                                                       std::span<const CachedPlaces> places) {
  local_->BeginCached(Batches().Take(batches), places);
  Evaluate(batches);
  AwaitQueue();
  std::vector<double>& logits = cached_logits_;
  logits.clear();
  if (!grid_.LastStage()) return logits;
  const std::int64_t vocabulary = plan_.options.vocabulary;
  const std::vector<double>& slice = local_->CachedLogits();
  if (tensor_.Size() == 1) return slice;
  const Part own = local_->VocabularySlice();
  std::int64_t rows = 0;
  for (const CachedPlaces& place : places) rows += std::ssize(place.asked);
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < tensor_.Size(); ++rank) {
    counts.push_back(PartOf(vocabulary, rank, tensor_.Size()).Size());
  }
  logits.resize(static_cast<std::size_t>(rows * vocabulary));
  for (std::int64_t row = 0; row < rows; ++row) {
    double* const to = logits.data() + row * vocabulary;
    std::copy_n(slice.data() + row * own.Size(), own.Size(), to + own.begin);
    tensor_.Transfers().OnHost().AllGatherInPlace(Dtype::kFloat64, to, counts);
  }
  return logits;
}

void ParallelModel::SumSharedGradients() {
  local_->AddSecondGradient();
  shared_->Sum();
  if (copied_) copied_->Share();
}

std::vector<kernels::StateBlock> ParallelModel::Blocks() const {
  units_->FinishUpdated();
  return layers_->Parameters().ValueBlocks(grid_.Data().Rank(), grid_.Data().Size(),
                                           grid_.Shard().Size());
}

std::vector<kernels::Linear> ParallelModel::SteadyLayers() const {
  std::vector<kernels::Linear> layers;
  if (units_->ValuesSharded()) return layers;
  std::vector<ThinWeight> weights;
  for (const StageLayers::Chunk& chunk : layers_->Chunks()) {
    for (const Block& block : chunk.blocks) block.AddThinWeights(weights);
  }
  for (const ThinWeight& weight : weights) {
    layers.push_back({weight.site, weight.form, Parameters().Value(weight.id, weight.count)});
  }
  return layers;
}

ModelMemory ParallelModel::Memory() const {
  ModelMemory memory = local_->Memory();
  memory.gathered_parameters = units_->GatherBytes();
  memory.gradients_under_way = units_->GradientBytes();
  memory.exchange += pipeline_->Bytes() + shared_->Bytes() + tensor_.Bytes();
  if (plan_.training) memory.exchange += copied_->Bytes() + buckets_->Bytes();
  return memory;
}

// StageLayers: registers the parameters, and says which units the tasks use.

using parallel::TaskKind;

StageLayers::StageLayers(const ModelPlan& plan, const StagePlan& local,
                         const parallel::TensorGroup& tensor, const device::Stream& stream)
    : tied_(plan.options.tie_embeddings) {
  kernels::ParameterList list = ListParameters(plan, local, tensor, stream);
  kernels::Ownership owns = parallel::PlanOwnership(list, plan.dtype, local.shard);
  registry_ =
      kernels::Registry(std::move(list), plan.dtype, std::move(owns), plan.training, stream);
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

// Model: the two streams of a model that translates. The encoder's blocks act on the source texts,
// the decoder's on the target texts and read the encoder's output. Between stages the streams
// travel together, source rows first: what the stage before has of each, and backward its gradient,
// so that gradients of the encoder's output add up on the way.

Pass Model::MakeSourcePass(const Pass& pass) const {
  Pass source = pass;
  source.length = pass.source.length;
  source.positions = PositionsOf(source.length, 0, 1);
  source.tokens.inputs = pass.tokens.sources;
  source.tokens.key_lengths = pass.tokens.source_lengths;
  source.tokens.targets = nullptr;
  source.causal = false;
  source.source = {};
  source.cached = {};
  return source;
}

// Forward, before the first block: where the encoder's output goes, and the target stream, which
// waits while the encoder's blocks run or goes on to the next stage.
void Model::EnterStreams(TaskEntry& entry, const StageLayers::Chunk& layers, const Arenas& arenas,
                         MakeResidual residual) const {
  ChunkActivations::Live& live = *entry.live;
  const std::size_t count = layers.blocks.size(), encoders = layers.encoders;
  const bool dry = entry.pass.Dry(), passes = encoders == count;
  if (!layers.first) {
    live.residuals[0] = encoders > 0 ? entry.SourceOf(entry.in) : entry.TargetOf(entry.in);
  }
  if (encoders == 0) {
    live.memory = entry.SourceOf(entry.in);
    if (!layers.last && !dry) {
      kernels::Copy(entry.pass.stream, live.memory, entry.SourceOf(entry.out));
    }
    return;
  }
  Matrix target = entry.TargetOf(entry.in);
  if (layers.first) {
    target = passes ? entry.TargetOf(entry.out) : residual(entry, encoders);
    Embed(layers_.Embedding(), entry.pass, target);
  } else if (passes && !dry) {
    kernels::Copy(entry.pass.stream, target, entry.TargetOf(entry.out));
  }
  if (!passes) live.residuals[encoders] = target;
  if (!layers.ends_encoder) return;
  live.memory = passes ? entry.SourceOf(entry.out) : ResidualOf(entry.source, arenas.weight);
  live.encoded =
      layers_.EncoderNorm() == nullptr ? live.memory : ResidualOf(entry.source, arenas.input);
}

// Output of a block, forward.
Matrix Model::OutputOf(const TaskEntry& entry, const StageLayers::Chunk& layers, std::size_t block,
                       MakeResidual residual) const {
  if (block + 1 == layers.encoders) {
    return layers.ends_encoder ? entry.live->encoded : entry.SourceOf(entry.out);
  }
  const bool leaves_here = block + 1 == layers.blocks.size() && !layers.last;
  return leaves_here ? entry.TargetOf(entry.out) : residual(entry, block + 1);
}

// Forward, after the encoder's last block: its output, for this chunk's decoder and for later ones.
void Model::LeaveEncoder(const TaskEntry& entry, const StageLayers::Chunk& layers,
                         const Arenas& arenas) const {
  ChunkActivations::Live& live = *entry.live;
  if (const NormLayer* const norm = layers_.EncoderNorm()) {
    Pass pass = entry.source;
    pass.lives.input = arenas.input;
    norm->Allocate(pass, live.encoder_norm);
    if (!pass.Dry()) norm->Forward(pass, live.encoded, live.encoder_norm, live.memory);
  }
  if (entry.pass.Dry() || layers.last || layers.encoders == layers.blocks.size()) return;
  kernels::Copy(entry.pass.stream, live.memory, entry.SourceOf(entry.out));
}

void Model::EnterEvaluation(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  const bool encodes = entry.source.sequences > 0;
  for (Matrix& each : entry.source_buffers) {
    each = encodes ? ResidualOf(entry.source, entry.source.lives.scratch) : Matrix{};
  }
  entry.source_residual = layers.first ? entry.source_buffers[0] : entry.SourceOf(entry.in);
  entry.residual = layers.first ? entry.buffers[0] : entry.TargetOf(entry.in);
  entry.memory = entry.source_residual;
  if (!layers.first) return;
  if (encodes) EmbedFirst(entry, entry.source_residual);
  Embed(layers_.Embedding(), entry.pass, entry.residual);
}

// The streams go on to the next stage.
void Model::LeaveEvaluation(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  if (entry.pass.Dry()) return;
  if (entry.source.sequences > 0) {
    kernels::Copy(entry.pass.stream, entry.source_residual, entry.SourceOf(entry.out));
  }
  if (layers.encoders == layers.blocks.size()) {
    kernels::Copy(entry.pass.stream, entry.residual, entry.TargetOf(entry.out));
  }
}

// Backward, before the last block: the gradient of the encoder's output so far. If this chunk has
// blocks of the encoder alone, it is that of the source stream.
void Model::EnterStreamsBackward(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  Pass& source = entry.source;
  device::Arena* const scratch = source.lives.scratch;
  source.weights_too = entry.pass.weights_too;
  source.lives = entry.pass.lives;
  for (Matrix& buffer : entry.source_buffers) buffer = ResidualOf(source, scratch);
  const Matrix from = entry.SourceOf(entry.in);
  if (!layers.last) entry.residual = entry.TargetOf(entry.in);
  if (layers.last && layers.blocks.empty()) entry.residual = entry.TargetOf(entry.out);
  if (layers.encoders == layers.blocks.size() && !layers.last) {
    entry.memory = from;
    return;
  }
  entry.memory = layers.encoders == 0 && !layers.first ? entry.SourceOf(entry.out)
                                                       : ResidualOf(source, scratch);
  if (source.Dry()) return;
  if (layers.last) {
    kernels::Clear(source.stream, entry.memory);
  } else {
    kernels::Copy(source.stream, from, entry.memory);
  }
}

// Backward, before the last of the encoder's blocks of a chunk: the gradient of what it wrote. The
// gradient of the target stream that has not yet left goes on to the stage before.
void Model::EnterEncoderBackward(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  const bool passes = layers.encoders == layers.blocks.size(), dry = entry.pass.Dry();
  if (passes && !layers.first && !dry) {
    kernels::Copy(entry.pass.stream, entry.residual, entry.TargetOf(entry.out));
  }
  entry.source_residual = entry.memory;
  const NormLayer* const norm = layers_.EncoderNorm();
  if (norm == nullptr || !layers.ends_encoder) return;
  entry.source_residual = entry.source_buffers[0];
  if (dry) return;
  norm->Backward(entry.source, entry.live->encoder_norm,
                 {.dy = entry.memory, .dx = entry.source_residual});
}

// Gradient of a block's input, to be written by its backward pass. The last of each stream's blocks
// may read buffer 0.
Matrix Model::InputGradientOf(const TaskEntry& entry, const StageLayers::Chunk& layers,
                              std::size_t block) const {
  if (block < layers.encoders) {
    if (block == 0 && !layers.first) return entry.SourceOf(entry.out);
    return entry.source_buffers[(layers.encoders - block) % 2];
  }
  if (block == layers.encoders && !layers.first) return entry.TargetOf(entry.out);
  const std::size_t before = layers.blocks.size() - 1 - block + (layers.last ? 1 : 0);
  return entry.buffers[before % 2];
}

}  // namespace trireme::model
