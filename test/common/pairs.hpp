// Random pairs of texts for models that translate.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "reference.hpp"
#include "whole_model.hpp"

namespace trireme::test {

// Two encoder blocks before `options.layers` decoder blocks.
inline void MakeTranslation(model::Options& options) {
  options.kind = model::Kind::kEncoderDecoder;
  options.encoder_layers = 2;
  options.activation = model::Activation::kGelu;
}

// Random parameters at which no term of the model is negligible.
inline Parameters ParametersOf(const WholeModel& model, std::uint32_t seed, double scale = 0.4) {
  Parameters parameters;
  std::mt19937 engine(seed);
  for (const kernels::Parameter& parameter : model.Parameters().Parameters()) {
    const bool norm = parameter.initialiser.kind == kernels::InitialiserKind::kConstant &&
                      parameter.initialiser.scale == 1;
    std::vector<double>& values = parameters[parameter.name];
    values.resize(static_cast<std::size_t>(parameter.end));
    for (double& value : values) {
      value = scale * (static_cast<double>(engine() % 2001) / 1000 - 1) + (norm ? 1 : 0);
    }
  }
  return parameters;
}

// Fills the rest of the entry from its texts.
inline void Finish(data::Entry& entry) {
  entry.positions = PositionsOf(entry.length, 0, 1);
  entry.valid = 0;
  for (const std::int32_t length : entry.target_lengths) entry.valid += length;
}

// Pairs of texts of up to `source` and `target` tokens. The first pair fills its target and lacks a
// source token, if there is room; a later one may be shorter still.
inline data::Entry RandomPairs(const model::Options& options, std::int64_t pairs,
                               std::int64_t source, std::int64_t target, std::uint32_t seed) {
  std::mt19937 engine(seed);
  const auto below = [&](std::int64_t count) {
    return static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(count));
  };
  const std::int64_t rows =
      options.SourceVocabulary() > 0 ? options.SourceVocabulary() : options.vocabulary;
  data::Entry entry;
  entry.sequences = pairs;
  entry.length = target;
  entry.source_length = source;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const auto length = [&](std::int64_t longest, bool full) {
      return full ? static_cast<std::int32_t>(longest) : 1 + below(longest);
    };
    const std::int32_t s =
        i == 0 && source > 1 ? static_cast<std::int32_t>(source - 1) : length(source, i == 1);
    const std::int32_t t = length(target, i == 0);
    entry.source_lengths.push_back(s);
    entry.target_lengths.push_back(t);
    entry.ordinals.push_back((static_cast<std::uint64_t>(i) << 33) + 5);
    for (std::int64_t k = 0; k < source; ++k) {
      entry.sources.push_back(k < s ? below(rows) : 0);
    }
    for (std::int64_t k = 0; k < target; ++k) {
      entry.inputs.push_back(k < t ? below(options.vocabulary) : 0);
      entry.targets.push_back(k < t ? below(options.vocabulary) : data::kMasked);
    }
  }
  Finish(entry);
  return entry;
}

// The same pairs with more padding.
inline data::Entry Widened(const data::Entry& narrow, std::int64_t source, std::int64_t target) {
  data::Entry wide = narrow;
  const auto widen = [&](const std::vector<std::int32_t>& from, std::int64_t old_length,
                         std::int64_t length, std::int32_t padding) {
    std::vector<std::int32_t> to;
    for (std::int64_t i = 0; i < narrow.sequences; ++i) {
      for (std::int64_t k = 0; k < length; ++k) {
        to.push_back(k < old_length ? from[static_cast<std::size_t>(i * old_length + k)] : padding);
      }
    }
    return to;
  };
  wide.sources = widen(narrow.sources, narrow.source_length, source, 0);
  wide.inputs = widen(narrow.inputs, narrow.length, target, 0);
  wide.targets = widen(narrow.targets, narrow.length, target, data::kMasked);
  wide.source_length = source;
  wide.length = target;
  Finish(wide);
  return wide;
}

}  // namespace trireme::test
