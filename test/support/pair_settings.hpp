// Settings of training a model that translates, of odd sizes.
#ifndef TRIREME_TEST_SUPPORT_PAIR_SETTINGS_HPP_
#define TRIREME_TEST_SUPPORT_PAIR_SETTINGS_HPP_

#include "training_run.hpp"
#include "trireme/data/pairs.hpp"

namespace trireme::test {

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
  settings.batch = batch;
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

#endif  // TRIREME_TEST_SUPPORT_PAIR_SETTINGS_HPP_
