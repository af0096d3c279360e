// A training run on any grid of ranks, with everything of the real one but the deck and the screen.
#ifndef TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_
#define TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "defects.hpp"
#include "temporary_folder.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::test {

// All ranks of the test program; mpi_main started MPI.
inline comm::Communicator World() { return comm::Communicator::Adopt(MPI_COMM_WORLD); }

struct RunSettings : training::TrainingSetup {
  std::optional<comm::GridShape> grid;  // none: data parallel over all ranks of the group
  comm::GridOptions options;
  Defect defect = Defect::kNone;
};

// The tensors of a model, whole, in the order of registration, widened.
using Tensors = std::vector<std::vector<double>>;

class TrainingRun {
 public:
  // `group` and `tokens` must outlive it; the grid fills the group.
  TrainingRun(const comm::Communicator& group, const data::TokenFile& tokens,
              const RunSettings& settings)
      : group_(group),
        grid_(group,
              settings.grid.value_or(
                  comm::GridShape{.pipeline = 1, .data = group.Size(), .context = 1, .tensor = 1}),
              settings.options),
        training_(Spoiled(settings.defect), tokens, settings) {}

  // Runs up to step `end`; returns the losses of the steps.
  std::vector<double> Train(std::int64_t end) {
    std::vector<double> losses;
    for (; done_ < end; ++done_) {
      last_ = training_.Run(done_);
      losses.push_back(last_.loss);
    }
    return losses;
  }

  void Save(const std::string& folder) {
    checkpoint::Contents contents;
    contents.model = training_.ModelBlocks();
    contents.optimizer = training_.OptimizerBlocks();
    contents.run = {{"step", done_}};
    checkpoint::Write(group_, folder, done_, contents, false, 0);
  }
  void Load(const std::string& path) {
    const std::string found = checkpoint::Find(group_, path);
    training_.Load(found);
    done_ = checkpoint::ReadRun(group_, found).at("step").get<std::int64_t>();
  }

  // Collective over the group: put together from the parts that the ranks own.
  Tensors Weights() const { return Whole(Net().Parameters().Values(), &tensor::Owned::value); }
  Tensors Gradients() const {
    return Whole(Net().Parameters().Gradients(), &tensor::Owned::gradient);
  }

  model::ParallelModel& Net() { return training_.Net(); }
  const model::ParallelModel& Net() const { return training_.Net(); }
  training::TrainingState& All() { return training_; }
  const comm::ProcessGrid& Grid() const { return grid_; }
  const training::StepResult& Last() const { return last_; }
  std::int64_t Steps() const { return done_; }  // so far
  std::size_t Buckets() { return training_.Buckets().Count(); }

 private:
  Tensors Whole(const void* storage, std::int64_t tensor::Owned::*place) const {
    Tensors tensors;
    const tensor::Registry& registry = Net().Parameters();
    for (std::size_t id = 0; id < registry.Parameters().size(); ++id) {
      const tensor::Parameter& parameter = registry.Parameters()[id];
      std::vector<double> whole(static_cast<std::size_t>(tensor::ElementCount(parameter.shape)));
      const tensor::Owned owned = registry.OwnedOf(static_cast<tensor::ParameterId>(id));
      // One copy of each element.
      if (parameter.copy == 0 && grid_.SameShard().Rank() == 0) {
        DispatchDtype(registry.Type(), [&](auto zero) {
          const auto* from = static_cast<const decltype(zero)*>(storage) + owned.*place;
          std::copy(from, from + owned.flat.Size(),
                    whole.begin() + parameter.begin + owned.flat.begin - parameter.offset);
        });
      }
      group_.Sum(whole);
      tensors.push_back(std::move(whole));
    }
    return tensors;
  }

  const comm::ProcessGrid& Spoiled(Defect defect) {
    Spoil(grid_, defect);
    return grid_;
  }

  const comm::Communicator& group_;
  comm::ProcessGrid grid_;
  training::TrainingState training_;
  training::StepResult last_;
  std::int64_t done_ = 0;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_
