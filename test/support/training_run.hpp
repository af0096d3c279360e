// A training run on any grid of ranks, with everything of the real one but the deck and the screen.
#ifndef TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_
#define TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "defects.hpp"
#include "temporary_folder.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/train/training_step.hpp"
#include "whole_tensors.hpp"

namespace trireme::test {

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
    checkpoint::Contents contents;
    contents.model = state_.ModelBlocks();
    contents.optimizer = state_.OptimizerBlocks();
    contents.run = {{"step", done_}};
    checkpoint::Write(group_, folder, done_, contents, false, 0);
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

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_
