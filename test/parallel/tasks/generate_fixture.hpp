// Models, layouts' decks and prompts of the tests of generation, and texts from whole windows.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "generator.hpp"
#include "small_run.hpp"

namespace trireme::test {

inline constexpr double kTextFp64 = 1e-11;  // relative: log-probabilities and logits
inline constexpr std::int64_t kWindow = 12;

// All kinds of positions, norms and heads.
inline constexpr std::array kModels = {
    "heads=4\nkv_heads=2\nhead_dim=3\ndim=12\nlayers=5\nffn=17\n",
    "heads=6\nkv_heads=6\nhead_dim=2\ndim=12\nlayers=4\nffn=17\nnorm_position=post\n"
    "activation=relu\nposition=sinusoidal\ntie_embeddings=no\nscale_embedding=yes\n",
    "heads=8\nkv_heads=1\nhead_dim=4\ndim=13\nlayers=7\nffn=19\nnorm=rmsnorm\n"
    "activation=swiglu\nposition=rope\nrope_theta=500000\nbias=no\n"};

inline std::string DeckOf(const char* model, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length={}\nbatch=8\nmicro_batch=1\n[model]\n{}"
      "max_positions={}\ndropout=0.1\nattention_dropout=0.1\ninit_deviation=0.3\n[schedule]\n"
      "steps=5\nwarmup_steps=1\n[grid]\n{}",
      kWindow, model, kWindow, layout);
}

// Prompts that are empty, short, longer than the window and grow beyond it, each with its own way
// of choosing.
inline std::vector<tasks::Prompt> Prompts() {
  std::vector<tasks::Prompt> prompts;
  for (std::int64_t i = 0; i < 9; ++i) {
    tasks::Prompt prompt{.number = i + (i > 5 ? std::int64_t{1} << 33 : 0),
                         .where = fmt::format("prompt {}", i),
                         .text = {},
                         .id = {},
                         .options = {}};
    for (std::int64_t k = 0; k < (i * i) % 17; ++k) {
      prompt.ids.push_back(static_cast<std::int32_t>((7 * k + 5 * i + 3) % kVocabulary));
    }
    prompt.options.tokens = 3 + 5 * i % 13;
    prompt.options.seed = static_cast<std::uint32_t>(i % 2);
    if (i % 3 == 0) prompt.options.temperature = 0;
    if (i == 4) prompt.options.top_k = 5;
    if (i == 5) prompt.options.repetition_penalty = 1.3;
    if (i == 7) prompt.options.top_p = 0.8;
    prompts.push_back(prompt);
  }
  return prompts;
}

inline std::int64_t SeenOf(const std::vector<std::int32_t>& ids) {
  return std::min(kWindow, std::ssize(ids));
}

inline data::Entry Window(const std::vector<std::int32_t>& ids) {
  data::Entry entry;
  entry.sequences = 1;
  entry.length = SeenOf(ids);
  entry.inputs.assign(ids.end() - entry.length, ids.end());
  entry.targets.assign(entry.inputs.size(), data::kMasked);
  entry.ordinals = {0};
  return entry;
}

// The text of a prompt from whole windows.
inline tasks::Continuation Anew(model::ParallelModel& net, const tasks::Prompt& prompt) {
  tasks::Continuation text;
  std::vector<std::int32_t> ids = {0};
  ids.insert(ids.end(), prompt.ids.begin(), prompt.ids.end());
  while (std::ssize(text.tokens) < prompt.options.tokens) {
    std::vector<double> logits = net.Inference().Logits(Window(ids), SeenOf(ids) - 1);
    const std::vector<double> plain = logits;
    tasks::Penalise(ids, prompt.options.repetition_penalty, logits);
    const std::int32_t next =
        tasks::Choose(logits, prompt.options,
                      tasks::DrawOf(prompt.options.seed, prompt.number, std::ssize(text.tokens)));
    text.log_probability += tasks::LogProbability(plain, next);
    ids.push_back(next);
    text.tokens.push_back(next);
  }
  return text;
}

// Results of a data rank: the prompts that are its own.
inline void ExpectTexts(const std::vector<std::optional<tasks::Continuation>>& got,
                        const std::vector<tasks::Continuation>& wanted,
                        const comm::ProcessGrid& grid) {
  ASSERT_EQ(got.size(), wanted.size());
  const auto step = static_cast<std::size_t>(grid.Shape().data);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool mine = i % step == static_cast<std::size_t>(grid.Coordinates().data);
    ASSERT_EQ(got[i].has_value(), mine) << i;
    if (!mine) continue;
    EXPECT_EQ(got[i]->tokens, wanted[i].tokens) << i;
    EXPECT_EQ(got[i]->end, tasks::End::kLength) << i;
    EXPECT_NEAR(got[i]->log_probability, wanted[i].log_probability,
                kTextFp64 * std::abs(wanted[i].log_probability))
        << i;
  }
}

// Three texts of different lengths.
inline const std::vector<std::vector<std::int32_t>> kTexts = {
    {0, 5, 17, 3}, {0, 99}, {0, 1, 2, 3, 4, 5, 6}};

// Logits after the last token of each text, then after one token more of each.
inline std::vector<std::vector<double>> LogitsOfWindows(model::ParallelModel& net) {
  std::vector<std::vector<double>> logits;
  for (const bool next : {false, true}) {
    for (std::vector<std::int32_t> text : kTexts) {
      if (next) text.push_back(42);
      logits.push_back(net.Inference().Logits(Window(text), SeenOf(text) - 1));
    }
  }
  return logits;
}

// The same from a cache of three slots: the texts as two entries, of two and of one, padded; then
// the next tokens at once.
inline std::vector<double> LogitsFromCache(model::ParallelModel& net) {
  std::array<data::Entry, 2> whole;
  std::array<model::CachedPlaces, 2> places;
  for (std::size_t entry = 0; entry < 2; ++entry) {
    const std::size_t first = 2 * entry, end = entry == 0 ? 2 : 3;
    whole[entry].sequences = static_cast<std::int64_t>(end - first);
    whole[entry].length = 7;
    for (std::size_t i = first; i < end; ++i) {
      std::vector<std::int32_t> padded = kTexts[i];
      padded.resize(7, 77);
      whole[entry].inputs.insert(whole[entry].inputs.end(), padded.begin(), padded.end());
      whole[entry].ordinals.push_back(0);
      places[entry].slots.push_back(static_cast<std::int32_t>(2 - i));
      places[entry].firsts.push_back(0);
      places[entry].asked.push_back(static_cast<std::int64_t>(i - first) * 7 +
                                    std::ssize(kTexts[i]) - 1);
    }
    whole[entry].targets.assign(whole[entry].inputs.size(), data::kMasked);
  }
  std::vector<double> got = net.Inference().CachedLogits(whole, places);
  const std::vector<std::int32_t> tokens(3, 42), positions = {4, 2, 7};
  const data::Entry next = net.Inference().ContinuedEntry(tokens, positions);
  const model::CachedPlaces all{{2, 1, 0}, positions, {0, 1, 2}};
  const std::vector<double>& more = net.Inference().CachedLogits({&next, 1}, {&all, 1});
  got.insert(got.end(), more.begin(), more.end());
  return got;
}

inline void ExpectLogits(const std::vector<double>& got,
                         const std::vector<std::vector<double>>& wanted,
                         const comm::ProcessGrid& grid) {
  if (!grid.LastStage()) {
    EXPECT_TRUE(got.empty());
    return;
  }
  ASSERT_EQ(got.size(), wanted.size() * static_cast<std::size_t>(kVocabulary));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double largest =
        std::abs(*std::ranges::max_element(wanted[i], {}, [](double x) { return std::abs(x); }));
    for (std::size_t k = 0; k < wanted[i].size(); ++k) {
      EXPECT_NEAR(got[i * wanted[i].size() + k], wanted[i][k], kTextFp64 * largest) << i;
    }
  }
}

}  // namespace trireme::test
