// Losses of simple models beside the trained one, learned from a token file's train split.
#ifndef TRIREME_TASKS_BASELINES_HPP_
#define TRIREME_TASKS_BASELINES_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/token_file.hpp"
#include "trireme/tasks/kneser_ney.hpp"

namespace trireme::tasks {

inline constexpr std::int64_t kMostBaselineTokens = 100'000'000;  // of the train split
inline constexpr std::int64_t kBaselineTokenBytes = 13;  // of memory per token of it, at most

// All tokens of a split and its targets that count; the split's first token is none. With
// document_mask a context begins with its document, whose first token is none either. Serial.
TargetStream ReadTargets(const data::TokenFile& file, data::Split split, bool document_mask);

class Baselines {
 public:
  // Serial. Reads the train split of `file` unless it has more than `most` tokens: then only the
  // uniform distribution is left. Throws as data::SplitReader does.
  Baselines(const data::TokenFile& file, bool document_mask,
            std::int64_t most = kMostBaselineTokens);

  // Why the learned ones are left out; empty: they are there.
  const std::string& LeftOut() const { return left_out_; }

  // Summed losses in nats over the targets of a split that count: name and sum.
  struct Result {
    std::vector<std::pair<std::string, double>> nats;  // "uniform", "unigram", "5-gram"
    std::int64_t targets = 0;
  };
  // Serial. Of a file with the vocabulary of the first one. Reads it in pieces.
  Result Evaluate(const data::TokenFile& file, data::Split split) const;

 private:
  std::int64_t vocabulary_;
  bool document_mask_;
  std::string left_out_;
  std::vector<double> unigram_;    // [vocabulary]: -ln p, of (occurrences + 1) / (targets + types)
  std::vector<KneserNey> n_gram_;  // one, or none
};

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_BASELINES_HPP_
