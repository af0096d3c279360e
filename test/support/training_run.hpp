// A training run on any group of ranks, with everything of the real one but the deck and the
// screen.
#ifndef TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_
#define TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "temporary_folder.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/driver/training_step.hpp"

namespace trireme::test {

// All ranks of the test program; mpi_main started MPI.
inline comm::Communicator World() { return comm::Communicator::Adopt(MPI_COMM_WORLD); }

struct RunSettings {
  model::ModelSetup setup;
  std::int64_t batch = 1;  // windows a step, over all ranks; stride = length
  optimizer::Options optimizer;
  optimizer::Schedule schedule;
  std::int64_t bucket_bytes = 4 << 20;
};

// Model, optimizer and step on the group `data`, all of which must outlive it.
class TrainingRun {
 public:
  TrainingRun(const comm::Communicator& data, const data::TokenFile& tokens,
              const RunSettings& settings)
      : data_(data),
        sampler_({tokens.Size(data::Split::kTrain), settings.setup.length, settings.setup.length,
                  settings.batch, settings.setup.seed, true}),
        model_(settings.setup),
        optimizer_(settings.optimizer, model_.Parameters(), settings.setup.stream),
        schedule_(settings.schedule),
        buckets_(data, model_.Parameters(), settings.setup.stream, settings.bucket_bytes),
        step_(data, tokens, sampler_, settings.setup.length, settings.setup.micro_batch, model_,
              optimizer_, schedule_, buckets_) {}

  // Runs up to step `end`; returns the losses of the steps.
  std::vector<double> Train(std::int64_t end) {
    std::vector<double> losses;
    for (; done_ < end; ++done_) losses.push_back(step_.Run(done_, {}).loss);
    return losses;
  }

  void Save(const std::string& folder) {
    checkpoint::Contents contents;
    contents.model = Blocks();
    contents.optimizer = optimizer_.Blocks(data_.Rank(), data_.Size());
    contents.run = {{"step", done_}};
    checkpoint::Write(data_, folder, done_, contents, false, 0);
  }
  void Load(const std::string& path) {
    const std::string found = checkpoint::Find(data_, path);
    checkpoint::ReadTensors(data_, found, "model", Blocks());
    checkpoint::ReadTensors(data_, found, "optimizer",
                            optimizer_.Blocks(data_.Rank(), data_.Size()));
    done_ = checkpoint::ReadRun(data_, found).at("step").get<std::int64_t>();
  }

  // All parameters, in the order of registration, widened.
  std::vector<std::vector<double>> Weights() const {
    std::vector<std::vector<double>> weights;
    const tensor::Registry& registry = model_.Parameters();
    DispatchDtype(registry.Type(), [&](auto zero) {
      for (const tensor::Parameter& parameter : registry.Parameters()) {
        const auto* from = static_cast<const decltype(zero)*>(registry.Values()) + parameter.offset;
        weights.emplace_back(from, from + parameter.end);
      }
    });
    return weights;
  }
  model::Model& Net() { return model_; }
  std::size_t Buckets() const { return buckets_.Count(); }

 private:
  std::vector<tensor::StateBlock> Blocks() {
    tensor::Registry& registry = model_.Parameters();
    return registry.Blocks(registry.Values(), registry.Type(), "", data_.Rank(), data_.Size());
  }

  const comm::Communicator& data_;
  data::Sampler sampler_;
  model::Model model_;
  optimizer::Optimizer optimizer_;
  optimizer::Schedule schedule_;
  parallel::GradientBuckets buckets_;
  driver::TrainingStep step_;
  std::int64_t done_ = 0;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_TRAINING_RUN_HPP_
