// A small training run on any group of ranks, with everything of the real one but the deck.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_SMALL_RUN_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_SMALL_RUN_HPP_

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/driver/training_step.hpp"

namespace trireme::test {

// 37 windows of 7 (the last one short), batches of 10 (the last one 7): nothing divides.
inline constexpr std::int64_t kLength = 7, kBatch = 10, kTokens = 37 * 7 - 2, kVocabulary = 101;
inline constexpr int kSteps = 20;
inline constexpr std::uint32_t kSeed = 11;

// The world of this process, without naming it: mpi_main started MPI.
inline comm::Communicator World() {
  MPI_Comm parent = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &parent);
  return comm::Communicator::Adopt(parent);
}

// A folder that all ranks share, removed by rank 0 at the end.
class SharedFolder {
 public:
  explicit SharedFolder(const comm::Communicator& world) : root_(world.IsRoot()) {
    std::string name;
    if (root_) {
      std::string pattern = (std::filesystem::temp_directory_path() / "trireme-XXXXXX").string();
      name = mkdtemp(pattern.data());
    }
    path_ = world.Broadcast(name);
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (root_) std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  bool root_;
  std::string path_;
};

// Tokens with some structure, so that there is something to learn.
inline data::TokenData SyntheticTokens() {
  data::TokenData data;
  for (std::size_t split = 0; split < 3; ++split) {
    const std::int64_t count = split == 0 ? kTokens : 50;
    std::int64_t token = static_cast<std::int64_t>(split) + 3;
    for (std::int64_t i = 0; i < count; ++i) {
      data.tokens[split].push_back(static_cast<std::int32_t>(token));
      token = (token * 7 + i % 3) % kVocabulary;
    }
  }
  for (std::int64_t id = 0; id < kVocabulary; ++id) {
    data.vocabulary.words.push_back("w" + std::to_string(id));
  }
  data.vocabulary.eos = 0;
  data.vocabulary.unk = 1;
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, '0');
  return data;
}

inline model::Options SmallModel() {
  model::Options options;
  options.preset = "none";
  options.vocabulary = kVocabulary;
  options.dim = 12;
  options.heads = 3;
  options.kv_heads = 1;
  options.head_dim = 4;
  options.layers = 2;
  options.ffn = 17;
  options.max_positions = kLength;
  options.dropout = options.attention_dropout = options.ffn_dropout = 0.1;
  options.init_deviation = 0.2;
  return options;
}

// One run: model, optimizer and step on the group `data`.
class SmallRun {
 public:
  SmallRun(const comm::Communicator& data, const data::TokenFile& tokens, Dtype dtype,
           std::int64_t micro_batch, std::int64_t batch = kBatch)
      : data_(data),
        sampler_({tokens.Size(data::Split::kTrain), kLength, kLength, batch, kSeed, true}),
        model_(Setup(dtype, micro_batch)),
        optimizer_(OptimizerOptions(), model_.Parameters(), model_.Setup().stream),
        schedule_({.steps = kSteps, .warmup_steps = 3, .peak = 1e-2}),
        buckets_(data, model_.Parameters(), model_.Setup().stream, kBucketBytes),
        step_(data, tokens, sampler_, kLength, micro_batch, model_, optimizer_, schedule_,
              buckets_) {}

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
  static constexpr std::int64_t kBucketBytes = 1500;  // several buckets even here

  static model::ModelSetup Setup(Dtype dtype, std::int64_t micro_batch) {
    model::ModelSetup setup;
    setup.options = SmallModel();
    setup.dtype = dtype;
    setup.seed = kSeed;
    setup.length = kLength;
    setup.micro_batch = micro_batch;
    setup.label_smoothing = 0.05;
    return setup;
  }
  static optimizer::Options OptimizerOptions() {
    optimizer::Options options;
    options.learning_rate = 1e-2;
    options.clip_norm = 0.5;
    return options;
  }
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

#endif  // TRIREME_TEST_PARALLEL_DRIVER_SMALL_RUN_HPP_
