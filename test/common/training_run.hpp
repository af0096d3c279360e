// A training run on any grid of ranks, with everything of the real one but the deck and the screen.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "defects.hpp"
#include "folders.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::test {

// Whole tensors from the blocks that ranks hold, once all copies of an element were found to be the
// same, bit for bit.

// The tensors of a model, whole, in the order of registration, widened.
using Tensors = std::vector<std::vector<double>>;

// The bytes of all blocks with their ranges, as one rank sends them to the others.
inline std::string PackBlocks(const std::vector<kernels::StateBlock>& blocks) {
  std::string bytes;
  const auto append = [&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
  };
  for (const kernels::StateBlock& block : blocks) {
    append(&block.begin, sizeof block.begin);
    append(&block.end, sizeof block.end);
    if (block.end == block.begin) continue;
    append(block.data, static_cast<std::size_t>(block.end - block.begin) * SizeOf(block.dtype));
  }
  return bytes;
}

// Puts one tensor together and compares its copies.
template <typename T>
class TensorCopies {
 public:
  TensorCopies(std::string name, std::int64_t size)
      : name_(std::move(name)),
        values_(static_cast<std::size_t>(size)),
        holders_(values_.size(), -1) {}

  // Takes rank `rank`'s copy of elements [begin, begin + count). Throws RunError for an element
  // that differs from another rank's.
  void Take(int rank, std::int64_t begin, std::int64_t count, const char* bytes) {
    for (std::int64_t i = 0; i < count; ++i) {
      T value{};
      std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
      const auto at = static_cast<std::size_t>(begin + i);
      if (holders_.at(at) < 0) {
        holders_[at] = rank;
        values_[at] = value;
      } else if (std::memcmp(&values_[at], &value, sizeof(T)) != 0) {
        throw RunError(fmt::format("{}: element {} is {} on rank {} and {} on rank {}", name_, at,
                                   values_[at], holders_[at], value, rank));
      }
    }
  }

  // Throws RunError for an element that no rank holds.
  std::vector<double> Whole() const {
    for (std::size_t at = 0; at < holders_.size(); ++at) {
      if (holders_[at] < 0) throw RunError(fmt::format("{}: no rank has element {}", name_, at));
    }
    return {values_.begin(), values_.end()};
  }

 private:
  std::string name_;
  std::vector<T> values_;
  std::vector<int> holders_;  // [elements]: the first rank with a copy, or -1
};

// Collective over `group`. Every tensor, whole, from the blocks of all ranks. Throws RunError, on
// all ranks the same, for an element whose copies differ, naming the tensor and the ranks, and for
// one that no rank holds.
inline Tensors WholeTensors(const comm::Communicator& group,
                            const std::vector<kernels::StateBlock>& blocks) {
  const std::vector<std::string> all = group.Gather(PackBlocks(blocks));
  std::vector<std::size_t> read(all.size(), 0);  // bytes so far, of each rank's
  Tensors tensors;
  for (const kernels::StateBlock& block : blocks) {
    DispatchDtype(block.dtype, [&](auto zero) {
      using T = decltype(zero);
      TensorCopies<T> copies(block.name, kernels::ElementCount(block.shape));
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::int64_t range[2];
        std::memcpy(range, all[rank].data() + read[rank], sizeof range);
        read[rank] += sizeof range;
        const std::int64_t count = range[1] - range[0];
        copies.Take(static_cast<int>(rank), range[0], count, all[rank].data() + read[rank]);
        read[rank] += static_cast<std::size_t>(count) * sizeof(T);
      }
      tensors.push_back(copies.Whole());
    });
  }
  return tensors;
}

// A training run on any grid of ranks, with everything of the real one but the deck and the screen.

// All ranks of the test program; mpi_main started MPI.
inline comm::Communicator World() { return comm::Communicator::Adopt(MPI_COMM_WORLD); }

struct RunSettings : train::TrainingOptions {
  std::optional<comm::GridShape> grid;  // none: data parallel over all ranks of the group
  comm::GridOptions options;
  device::Stream stream;
  Defect defect = Defect::kNone;
};

// Bytes of one purpose, by its name on the screen.
inline std::int64_t Term(const train::TrainingState& state, const std::string& name) {
  const device::MemoryTerms terms = state.Memory();
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    if (term.name == name) return terms.*term.bytes;
  }
  throw std::logic_error("no term " + name);
}

class TrainingRun {
 public:
  // `group` and the files of `tokens` must outlive it; the grid fills the group.
  TrainingRun(const comm::Communicator& group, const data::Corpus& tokens,
              const RunSettings& settings)
      : group_(group),
        grid_(group, ShapeOf(group, settings), settings.options),
        state_(
            Spoiled(settings.defect),
            train::PlanTraining(settings, tokens.First().Size(data::Split::kTrain), grid_.Shape()),
            settings.stream),
        step_(state_, tokens) {}
  // Of a model that translates.
  TrainingRun(const comm::Communicator& group, const data::PairFile& pairs,
              const RunSettings& settings)
      : group_(group),
        grid_(group, ShapeOf(group, settings), settings.options),
        state_(grid_,
               train::PlanTraining(settings, pairs.Pairs(data::Split::kTrain), grid_.Shape()),
               settings.stream),
        step_(state_, pairs) {}

  // Runs up to step `end`; returns the losses of the steps.
  std::vector<double> Train(std::int64_t end) {
    std::vector<double> losses;
    for (; done_ < end; ++done_) {
      last_ = step_.Run(done_);
      losses.push_back(last_.loss);
    }
    return losses;
  }

  void Save(const std::string& folder) {
    const train::StateOnHost model = state_.ModelBlocks(), moments = state_.OptimizerBlocks();
    checkpoint::Writer writer(group_, {model.Blocks(), moments.Blocks()}, {});
    writer.Begin({.folder = folder, .step = done_, .run = {{"step", done_}}});
    const std::string failure = writer.Finish().failure;
    if (!failure.empty()) throw AgreedError(ExitCode::kFailed, failure);
  }
  void Load(const std::string& path) {
    const std::string found = checkpoint::Find(group_, path);
    state_.Load(found);
    done_ = checkpoint::ReadRun(group_, found).at("step").get<std::int64_t>();
  }

  // Collective over the group: put together from what the ranks hold, of which all copies are
  // compared first (WholeTensors); the owned elements of gradients.
  Tensors Weights() const { return WholeTensors(group_, Net().Blocks()); }
  Tensors Gradients() const {
    return WholeTensors(group_,
                        Net().Parameters().GradientBlocks(grid_.Data().Rank(), grid_.Data().Size(),
                                                          grid_.Shard().Size()));
  }

  model::ParallelModel& Net() { return state_.Net(); }
  const model::ParallelModel& Net() const { return state_.Net(); }
  train::TrainingState& All() { return state_; }
  const comm::ProcessGrid& Grid() const { return grid_; }
  const train::StepResult& Last() const { return last_; }
  std::int64_t Steps() const { return done_; }  // so far
  train::TrainingStep& Step() { return step_; }
  std::size_t Buckets() { return state_.Net().Buckets().Count(); }

 private:
  // The settings' grid, or data parallelism alone.
  static comm::GridShape ShapeOf(const comm::Communicator& group, const RunSettings& settings) {
    return settings.grid.value_or(
        comm::GridShape{.pipeline = 1, .data = group.Size(), .context = 1, .tensor = 1});
  }
  const comm::ProcessGrid& Spoiled(Defect defect) {
    Spoil(grid_, defect);
    return grid_;
  }

  const comm::Communicator& group_;
  comm::ProcessGrid grid_;
  train::TrainingState state_;
  train::TrainingStep step_;
  train::StepResult last_;
  std::int64_t done_ = 0;
};

// Settings of training a model that translates, of odd sizes.

// Batches of up to `batch` pairs and `tokens` tokens of a text; layers stay as they are by default.
inline RunSettings PairSettings(Dtype dtype, std::int64_t micro_batch, std::int64_t batch,
                                std::int64_t tokens) {
  RunSettings settings;
  model::Options& o = settings.model.options;
  o.preset = "none";
  o.kind = model::Kind::kEncoderDecoder;
  o.dim = 12;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 3;
  o.ffn = 17;
  o.max_positions = 40;
  o.dropout = o.attention_dropout = o.ffn_dropout = 0.1;
  o.init_deviation = 0.2;
  settings.model.dtype = dtype;
  settings.model.seed = 11;
  settings.model.length = 40;
  settings.model.micro_batch = micro_batch;
  settings.model.label_smoothing = 0.05;
  settings.samples.batch = batch;
  settings.pairs = data::PairBatches::Options{.seed = settings.model.seed,
                                              .source_tokens = tokens,
                                              .target_tokens = tokens,
                                              .pairs = batch,
                                              .longest_source = settings.model.length,
                                              .longest_target = settings.model.length};
  settings.optimizer.clip_norm = 0.5;
  settings.schedule.steps = 20;
  settings.schedule.warmup_steps = 3;
  settings.schedule.peak = 1e-2;
  return settings;
}

}  // namespace trireme::test
