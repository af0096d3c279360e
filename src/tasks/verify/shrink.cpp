// Verification's small deck: seconds of work, with the divisibilities of the large one.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "trireme/base/positions.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/tasks/verify.hpp"

namespace trireme::tasks {

namespace {

constexpr std::int64_t kMostHeads = 16;
constexpr std::int64_t kHeadDim = 4;    // the next even number and the next odd one stay apart
constexpr std::int64_t kFewLayers = 3;  // without pipeline stages: blocks take turns in buffers
constexpr int kPrefetch = 1;
constexpr std::int64_t kLength = 10;  // tokens
constexpr std::int64_t kRowsATensorRank = 2;
constexpr std::int64_t kPositionsABlock = 2;  // of context ranks, which have two
constexpr std::int64_t kFfn = 12;
constexpr std::int64_t kVocabulary = 48, kMostVocabulary = 512;
constexpr std::int64_t kStepsOfSchedule = 6;  // twice what runs: the rate stays above zero

// With these every gradient is far above rounding noise, but for those whose true value is zero
// (of key biases, for one). Adam would magnify that noise to the size of an update, where its
// epsilon were smaller than the noise.
constexpr double kDeviation = 0.2;
constexpr double kLearningRate = 1e-2;
constexpr double kClipNorm = 1e-2;  // below any norm that occurs here
constexpr double kLeastEpsilon = 1e-6;
constexpr double kLeastBeta2 =
    0.9;  // else one small gradient makes an update of many times the rate

// The smallest number from `least` up that leaves the same remainder; `value` itself if smaller.
std::int64_t Reduce(std::int64_t value, std::int64_t least, std::int64_t modulus) {
  return value <= least ? value : least + (value - least) % modulus;
}

// Into how many parts heads, features and vocabulary are cut: slices of canonical arithmetic, which
// tensor ranks divide, or these.
std::int64_t Slices(const train::TrainingOptions& setup, const comm::GridShape& grid) {
  return std::max(setup.model.canonical.slices, grid.tensor);
}

// As they are, or as few as tell the same about the slices: whether one has one key/value head,
// several, not as many as another, or shares one; one query head for each, or several.
void ShrinkHeads(model::Options& o, std::int64_t slices) {
  if (o.heads > kMostHeads) {
    const std::int64_t grouped = o.heads / o.kv_heads;
    if (o.kv_heads >= slices) {
      const bool even = o.kv_heads % slices == 0;
      o.kv_heads = even ? slices * std::min<std::int64_t>(o.kv_heads / slices, 2)
                        : Reduce(o.kv_heads, slices, slices);
      o.heads = o.kv_heads * std::min<std::int64_t>(grouped, 2);
    } else {
      o.heads = slices * std::min<std::int64_t>(o.heads / slices, 2);
    }
  }
  o.head_dim = Reduce(o.head_dim, kHeadDim, 2);
}

void ShrinkWidths(model::Options& o, std::int64_t slices) {
  const std::int64_t beside = o.dim - o.heads * o.head_dim;
  ShrinkHeads(o, slices);
  // A stream that is not as wide as all heads together stays so.
  const std::int64_t heads = o.heads * o.head_dim;
  o.dim = beside == 0 ? heads : std::min(o.dim, heads + 1 + (o.dim - heads + 1) % 2);
  o.ffn = Reduce(o.ffn, std::max(kFfn, 2 * slices), slices);
}

// A vocabulary whose head costs as many blocks as the deck's, so that stages are cut alike.
std::int64_t ShrunkVocabulary(const model::Options& deck, std::int64_t length,
                              const model::Options& small, std::int64_t small_length,
                              std::int64_t slices) {
  const model::PartCosts from = model::CostsPerToken(deck, length);
  const model::PartCosts to = model::CostsPerToken(small, small_length);
  const double a_token = to.head / static_cast<double>(small.vocabulary);
  const double alike =
      std::min(from.head / from.block * to.block / a_token, static_cast<double>(kMostVocabulary));
  const std::int64_t least = std::max(kVocabulary, 4 * slices);
  return Reduce(deck.vocabulary, std::max(static_cast<std::int64_t>(alike), least), slices);
}

// A model's blocks on the stages of a pipeline.
class StagedBlocks {
 public:
  StagedBlocks(const model::Options& o, std::int64_t length, int virtual_stages)
      : encoders_(o.encoder_layers), blocks_(o.Blocks()) {
    const model::PartCosts costs = model::CostsPerToken(o, length);
    parts_ =
        parallel::BalanceStages(blocks_, virtual_stages, costs.block, costs.embedding, costs.head);
  }
  bool LastStageHasSome() const { return parts_.back().Size() > 0; }
  // Whether the encoder ends within a stage.
  bool StacksMeet() const {
    return std::ranges::any_of(
        parts_, [&](const Part& p) { return p.begin < encoders_ && encoders_ < p.end; });
  }
  double EncoderShare() const {
    return static_cast<double>(encoders_) / static_cast<double>(blocks_);
  }

 private:
  std::int64_t encoders_, blocks_;
  std::vector<Part> parts_;
};

// The small model with so many blocks. Of a model that translates, stacks whose shares are about
// the deck's, and that meet within a stage if the deck's do.
model::Options WithBlocks(model::Options small, std::int64_t blocks, const StagedBlocks& deck,
                          std::int64_t length, int virtual_stages) {
  if (!small.Translates()) {
    small.layers = blocks;
    return small;
  }
  model::Options best;
  double least = 3;  // more than any
  for (std::int64_t encoders = 1; encoders < blocks; ++encoders) {
    small.encoder_layers = encoders;
    small.layers = blocks - encoders;
    const StagedBlocks staged(small, length, virtual_stages);
    const double other = std::abs(staged.EncoderShare() - deck.EncoderShare()) +
                         (staged.StacksMeet() == deck.StacksMeet() ? 0 : 1);
    if (other >= least) continue;
    least = other;
    best = small;
  }
  return best;
}

// As many blocks as fill all stages, one of them twice, with the deck's remainder, and the last
// stage with blocks if the deck's has some.
void ShrinkLayers(const model::Options& deck, std::int64_t length, model::Options& small,
                  std::int64_t small_length, int virtual_stages) {
  if (virtual_stages == 1) {
    small.layers = std::min(deck.layers, kFewLayers);
    small.encoder_layers = std::min(deck.encoder_layers, kFewLayers);
    return;
  }
  const std::int64_t blocks = deck.Blocks();
  const StagedBlocks wanted(deck, length, virtual_stages);
  const std::int64_t least = std::min<std::int64_t>(blocks, virtual_stages + 1);
  const std::int64_t first = Reduce(blocks, least, virtual_stages);
  constexpr int kTries = 3;
  const model::Options widths = small;
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t more = first + i * virtual_stages;
    if (more > blocks) break;
    const model::Options trial = WithBlocks(widths, more, wanted, small_length, virtual_stages);
    const bool alike = StagedBlocks(trial, small_length, virtual_stages).LastStageHasSome() ==
                       wanted.LastStageHasSome();
    if (alike || i == 0) small = trial;
    if (alike) return;
  }
}

// Micro-batches of one window if the deck's are, else of two or three, so that the tensor ranks
// share their rows as evenly or unevenly.
std::int64_t ShrunkMicroBatch(std::int64_t micro_batch, std::int64_t length,
                              std::int64_t small_length, std::int64_t tensor) {
  if (micro_batch == 1) return 1;
  const bool three = (3 * small_length - micro_batch * length) % tensor == 0 &&
                     (2 * small_length - micro_batch * length) % tensor != 0;
  return three ? std::min<std::int64_t>(3, micro_batch) : 2;
}

// Micro-batches a step, so that all stages are busy for a while and the remainder is the deck's.
std::int64_t ShrunkCount(std::int64_t count, std::int64_t stages) {
  if (count <= 2 * stages) return count;
  return count % stages == 0 ? 2 * stages : stages + count % stages;
}

// As long as every context rank has two blocks, if the deck's is; with the remainders of rows on
// slices, and of positions on blocks.
std::int64_t ShrunkLength(std::int64_t length, std::int64_t slices, std::int64_t context) {
  const std::int64_t blocks = context == 1 ? 1 : 2 * context;
  const std::int64_t least =
      std::max({kLength, kRowsATensorRank * slices, kPositionsABlock * blocks});
  return Reduce(length, least, blocks * slices);
}

// The same places for leaves: as many groups, short or empty ones at the end as in the deck, a
// short leaf where it has one; micro-batches of one leaf or of several, as many as ShrunkCount's
// remainder.
void ShrinkCanonicalBatch(const train::TrainingOptions& deck, const comm::GridShape& grid,
                          train::TrainingOptions& small) {
  const parallel::Canonical& canonical = deck.model.canonical;
  const std::int64_t groups = canonical.data_groups, stages = grid.pipeline;
  const std::int64_t leaves = CeilDivide(deck.batch, canonical.leaf);
  const std::int64_t each = train::LeavesOfGroup(deck.batch, canonical);  // of a group
  const std::int64_t missing = groups * each - leaves;                       // fewer than groups
  const std::int64_t together =
      std::min(CeilDivide(deck.model.micro_batch, canonical.leaf), leaves);
  const auto count = [&](std::int64_t of_group, std::int64_t of_micro_batch) {
    const std::int64_t share = std::min(groups / grid.data * of_group, groups * of_group - missing);
    return CeilDivide(share, of_micro_batch);
  };
  const std::int64_t wanted = count(each, together);
  const auto alike = [&](std::int64_t of_group, std::int64_t of_micro_batch) {
    const std::int64_t got = count(of_group, of_micro_batch);
    return got % stages == wanted % stages && (got > 1) == (wanted > 1) &&
           got >= std::min(wanted, stages);
  };
  std::int64_t of_group = each, of_micro_batch = together;
  const auto choose = [&] {
    for (std::int64_t a = std::min<std::int64_t>(each, 2); a <= each; ++a) {
      for (std::int64_t b = std::min<std::int64_t>(together, 2);
           b <= std::min(together, a * groups); ++b) {
        if (!alike(a, b)) continue;
        of_group = a;
        of_micro_batch = b;
        return;
      }
    }
  };
  choose();
  const std::int64_t leaf = std::min<std::int64_t>(canonical.leaf, 2);
  const std::int64_t missing_windows = leaf > 1 && deck.batch % canonical.leaf != 0 ? 1 : 0;
  small.model.canonical.leaf = leaf;
  small.model.micro_batch = of_micro_batch * leaf;
  small.batch = (groups * of_group - missing) * leaf - missing_windows;
}

void ShrinkBatch(const train::TrainingOptions& deck, const comm::GridShape& grid,
                 train::TrainingOptions& small) {
  if (deck.model.canonical.On()) return ShrinkCanonicalBatch(deck, grid, small);
  const std::int64_t share = CeilDivide(deck.batch, grid.data);
  const std::int64_t micro = std::min(deck.model.micro_batch, share);
  const auto here = [&](std::int64_t length) {  // positions of a context rank
    return PositionsOf(length, 0, grid.context).Count();
  };
  const std::int64_t size =
      ShrunkMicroBatch(micro, here(deck.model.length), here(small.model.length), grid.tensor);
  const std::int64_t count = ShrunkCount(CeilDivide(share, micro), grid.pipeline);
  const std::int64_t missing = size > 1 && share % micro != 0 ? 1 : 0;  // a short micro-batch
  const std::int64_t small_share = count * size - missing;
  const std::int64_t rest = deck.batch % grid.data;
  small.model.micro_batch = size;
  small.batch = rest == 0 ? grid.data * small_share : grid.data * (small_share - 1) + rest;
}

std::int64_t ShrunkStride(std::int64_t stride, std::int64_t length, std::int64_t small_length) {
  constexpr std::int64_t kGap = 3;  // tokens that no window has
  if (stride == 0 || stride == length) return small_length;
  if (stride > length) return small_length + std::min(stride - length, kGap);
  return std::clamp<std::int64_t>(stride * small_length / length, 1,
                                  std::max<std::int64_t>(small_length - 1, 1));
}

// Batches are limited by pairs alone: two steps an epoch.
void ShrinkPairs(std::int64_t slices, train::TrainingOptions& small) {
  model::Options& o = small.model.options;
  o.source_types = o.shared_vocabulary
                       ? o.vocabulary
                       : Reduce(o.source_types, std::max(kVocabulary, 4 * slices), slices);
  small.pairs = data::PairBatches::Options{.seed = small.model.seed,
                                           .source_tokens = 0,
                                           .target_tokens = 0,
                                           .pairs = small.batch,
                                           .longest_source = small.model.length,
                                           .longest_target = small.model.length};
}

}  // namespace

train::TrainingOptions Shrink(const train::TrainingOptions& deck,
                                 const comm::GridShape& grid) {
  train::TrainingOptions small = deck;
  small.sources.clear();  // made-up tokens alone
  model::Options& o = small.model.options;
  const std::int64_t length = deck.model.length;
  const std::int64_t slices = Slices(deck, grid);
  const int virtual_stages = grid.pipeline * deck.model.pipeline.chunks;
  small.model.length = ShrunkLength(length, slices, grid.context);
  if (!deck.pairs) small.stride = ShrunkStride(deck.stride, length, small.model.length);
  // A table with rows that no window reaches, if the deck's has some.
  o.max_positions = std::min(o.max_positions, small.model.length + 1);
  ShrinkWidths(o, slices);
  o.vocabulary = ShrunkVocabulary(deck.model.options, length, o, small.model.length, slices);
  ShrinkLayers(deck.model.options, length, o, small.model.length, virtual_stages);
  o.init_deviation = kDeviation;
  ShrinkBatch(deck, grid, small);
  if (deck.pairs) ShrinkPairs(slices, small);

  small.optimizer.learning_rate = small.schedule.peak = kLearningRate;
  small.optimizer.epsilon = std::max(deck.optimizer.epsilon, kLeastEpsilon);
  small.optimizer.beta2 = std::max(deck.optimizer.beta2, kLeastBeta2);
  if (deck.optimizer.clip_norm > 0) small.optimizer.clip_norm = kClipNorm;
  small.schedule.steps = kStepsOfSchedule;
  small.schedule.stop_at = 0;
  small.schedule.walltime_minutes = 0;
  small.schedule.warmup_steps = std::min<std::int64_t>(deck.schedule.warmup_steps, 2);
  // Several buckets even here.
  constexpr std::int64_t kBuckets = 4, kLeastBytes = 512;
  const std::int64_t bytes = model::ParameterCount(o) * static_cast<std::int64_t>(sizeof(double));
  small.model.bucket_bytes =
      std::max(bytes / (kBuckets * grid.tensor * grid.pipeline), kLeastBytes);
  small.model.prefetch = std::min(deck.model.prefetch, kPrefetch);
  return small;
}

}  // namespace trireme::tasks
