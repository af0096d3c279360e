// job.task = evaluate of a model that translates: losses, translations and their scores.
#ifndef TRIREME_TASKS_PAIR_EVALUATOR_HPP_
#define TRIREME_TASKS_PAIR_EVALUATOR_HPP_

#include <functional>
#include <string>
#include <vector>

#include "trireme/data/pair_file.hpp"
#include "trireme/tasks/evaluate_options.hpp"
#include "trireme/tasks/scores.hpp"
#include "trireme/tasks/translator.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

// A pair of a split and its translation.
struct TranslatedPair {
  std::int64_t number = 0;  // in the split
  std::string source, reference, translation;
  double log_probability = 0;  // nats
  bool ended = false;          // false: cut off
};

// Translations of a split.
struct SplitTranslations {
  ScoreCounts counts;         // of all ranks
  std::int64_t left_out = 0;  // pairs that are longer than the model takes
  double seconds = 0;
  // Of this rank, in the order of the split: pairs that it translated as the first one of its
  // replica. `keep`: all, else the first few that are right and the first few that are wrong.
  std::vector<TranslatedPair> pairs;
};
// Collective over the model's grid. Pairs of which a text is longer than the model's sequences are
// left out. AgreedError (exit code 3) if a rank was asked to stop.
SplitTranslations TranslateSplit(Translator& translator, const model::ParallelModel& model,
                                 const data::PairFile& pairs, data::Split split, bool keep);

// Limits of what a search writes, and when to stop.
struct TranslationOptions {
  std::int64_t beams = 1;
  double length_penalty = 0.6;
  std::int64_t longest = 100;          // tokens of a translation
  std::function<bool()> stopped = {};  // whether this rank was asked to stop
};
// The set-up of a search for a file's target texts.
Translator::Setup SetupOf(model::ParallelModel& model, const data::PairFile& pairs,
                          const TranslationOptions& options);

// Collective. Evaluates the valid and the test split, prints and writes everything. checkpoint: its
// path, for the results.
void EvaluateTranslations(model::ParallelModel& model, const data::PairFile& pairs,
                          const EvaluateOptions& options, const TranslationOptions& search,
                          const std::string& checkpoint);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_PAIR_EVALUATOR_HPP_
