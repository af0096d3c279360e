// Two models and made-up tokens, for the benchmarks of layouts.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::benchmark {

struct Setup : train::TrainingOptions {
  device::Stream stream;
};

// A run on a grid.
struct Trial {
  Trial(const comm::ProcessGrid& grid, const data::TokenFile& tokens, const Setup& setup)
      : state(grid, train::PlanTraining(setup, tokens.Size(data::Split::kTrain), grid.Shape()),
              setup.stream),
        step(state, tokens) {}
  train::TrainingState state;
  train::TrainingStep step;
};

// jsc: the deck input/wikitext2_jsc.in. gpt12: 12 blocks of dim 384 on bytes, where nearly all work
// is in the blocks. Both with 8 micro-batches in a pipeline.
inline Setup SetupOf(const std::string& model) {
  deck::Schema schema;
  model::Declare(schema);
  const bool jsc = model == "jsc";
  std::vector<std::string> keys = {"model.preset=jsc"};
  if (!jsc) keys = {"model.dim=384", "model.heads=6", "model.layers=12", "model.ffn=1536"};
  deck::Deck deck = deck::Deck::Parse(schema, "", "benchmark", keys);
  model::Resolve(deck);
  Setup setup;
  setup.model.options = model::WithVocabulary(model::Read(deck), jsc ? 33278 : 256, deck);
  setup.model.length = jsc ? 32 : 256;
  setup.samples.batch = jsc ? 512 : 16;
  setup.model.micro_batch = jsc ? 64 : 2;
  setup.stream.threads = device::ConfigureThreads(0, 1);
  setup.schedule.steps = 1000;
  return setup;
}

inline data::TokenData RandomTokens(std::int64_t vocabulary, std::int64_t count) {
  data::TokenData data;
  for (auto& split : data.tokens) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto words = Philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {1, 0});
      split.push_back(static_cast<std::int32_t>(words[0] % vocabulary));
    }
  }
  for (std::int64_t id = 0; id < vocabulary; ++id) {
    data.vocabulary.words.push_back(std::to_string(id));
  }
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, '0');
  return data;
}

// Enough for 40 global batches of a setup.
inline data::TokenData TokensFor(const Setup& setup) {
  return RandomTokens(setup.model.options.vocabulary,
                      40 * setup.samples.batch * setup.model.length);
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Arguments {
  std::string model;
  int steps = 0;
};
// PROGRAM jsc|gpt12 [STEPS]. AgreedError, exit code 2, for others.
inline Arguments ReadArguments(int argc, char** argv, const std::string& program) {
  constexpr int kSteps = 5;
  const std::string model = argc > 1 ? argv[1] : "";
  if (model != "jsc" && model != "gpt12") {
    throw AgreedError(ExitCode::kBadInput, "usage: " + program + " jsc|gpt12 [STEPS]");
  }
  return {model, argc > 2 ? std::max(1, std::atoi(argv[2])) : kSteps};
}

}  // namespace trireme::benchmark
