// The small run of the layout tests: nothing divides, everything is on.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_SMALL_RUN_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_SMALL_RUN_HPP_

#include <string>

#include "training_run.hpp"

namespace trireme::test {

// 37 windows of 7 (the last one short), batches of 10 (the last one 7): nothing divides.
inline constexpr std::int64_t kLength = 7, kBatch = 10, kTokens = 37 * 7 - 2, kVocabulary = 101;
inline constexpr int kSteps = 20;
inline constexpr std::uint32_t kSeed = 11;

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

inline RunSettings SmallSettings(Dtype dtype, std::int64_t micro_batch,
                                 std::int64_t batch = kBatch) {
  RunSettings settings;
  settings.model.options = SmallModel();
  settings.model.dtype = dtype;
  settings.model.seed = kSeed;
  settings.model.length = kLength;
  settings.model.micro_batch = micro_batch;
  settings.model.label_smoothing = 0.05;
  settings.batch = batch;
  settings.optimizer.clip_norm = 0.5;
  settings.schedule.steps = kSteps;
  settings.schedule.warmup_steps = 3;
  settings.schedule.peak = 1e-2;
  settings.model.bucket_bytes = 1500;  // several buckets even here
  return settings;
}

class SmallRun : public TrainingRun {
 public:
  SmallRun(const comm::Communicator& data, const data::TokenFile& tokens, Dtype dtype,
           std::int64_t micro_batch, std::int64_t batch = kBatch)
      : TrainingRun(data, tokens, SmallSettings(dtype, micro_batch, batch)) {}
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_SMALL_RUN_HPP_
