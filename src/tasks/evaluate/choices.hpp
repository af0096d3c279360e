// evaluate.choices: multiple-choice questions, their tokens, and their scores.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/text_units.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/tasks/evaluate.hpp"

namespace trireme::tasks {

// Tokens that come from a text or from questions instead of a token file.
struct Tokens {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> documents;  // offsets at which documents begin, ascending from 0
  std::vector<std::uint8_t> counted;    // [ids]; 0: the token is no target
};

// Collective. Broadcasts the root's tokens to all ranks.
void Share(const comm::Communicator& world, Tokens& tokens);

// Collective. The tokens as the valid split of a file in memory, with the vocabulary of `like`. All
// ranks pass the same tokens, at least 2.
data::TokenFile AsFile(const comm::Communicator& world, const data::TokenFile& like,
                       const Tokens& tokens);

// evaluate.text: a text file, taken as one document.
struct Text {
  Tokens tokens;             // the tokenizer's template or an <eos>, then the text
  data::TextUnits original;  // units of the unchanged file; `unknown` counts <unk> tokens
  std::int64_t bytes = 0;    // bytes of the text that was tokenised
};

// Serial. Throws InputError with the path if the file cannot be read, is empty or is not UTF-8.
Text ReadEvaluatedText(const EvaluateOptions& options, const data::TokenFile& tokens);

struct Question {
  std::int64_t line = 0;  // line in the file, from 1
  std::int64_t answer = 0;
  std::vector<std::int64_t> bytes = {};   // per choice: its text without leading white space
  std::vector<std::int64_t> tokens = {};  // per choice
  std::int64_t truncated = 0;             // number of choices whose context was cut
};

struct Questions {
  std::vector<Question> all;
  // One document per choice of each question, in order: the context, then the choice (targets).
  Tokens tokens;
};

// Serial. Reads and tokenises the questions of a JSONL file. length: tokens of a window; longer
// contexts are cut at the left. Throws InputError with path:line.
Questions ReadQuestions(const std::string& path, const data::TokenFile& tokens,
                        std::int64_t length);

// One window per document of the tokens.
std::vector<data::Sample> WindowsOf(const Tokens& tokens);

// Fraction of right answers, and its standard error: that of the mean of n independent 0s and 1s,
// with n - 1 degrees of freedom (NaN for one question).
struct Accuracy {
  double mean = 0, standard_error = 0;
};
Accuracy AccuracyOf(std::int64_t right, std::int64_t questions);

// The choices with the highest log-likelihood and with the highest log-likelihood per byte; the
// first of equal ones. nats: negative log-likelihood per choice.
struct Chosen {
  std::int64_t by_sum = 0, by_bytes = 0;
};
Chosen Choose(const Question& question, const std::vector<double>& nats);

// Sums of losses by row (a document, or a question's choice) over ranks that hold parts of the
// rows. The result has the same bits in any layout.
class LossTable {
 public:
  explicit LossTable(std::int64_t rows) : sums_(static_cast<std::size_t>(rows) * kWords) {}

  std::int64_t Rows() const { return std::ssize(sums_) / static_cast<std::int64_t>(kWords); }

  // Adds a target's loss in nats, rounded to a multiple of 2^-56.
  void Add(std::int64_t row, double loss);
  void AddBytes(std::int64_t row, std::int64_t bytes) {
    At(row, kBytes) += static_cast<double>(bytes);
  }

  // Collective. Sums the ranks' tables; afterwards every rank holds the total.
  void Sum(const comm::Communicator& world);

  double Nats(std::int64_t row) const;
  std::int64_t Targets(std::int64_t row) const { return std::llround(Of(row, kTargets)); }
  std::int64_t Bytes(std::int64_t row) const { return std::llround(Of(row, kBytes)); }

 private:
  // Numbers in a row. Losses are three integers, in units of 2^-10, 2^-33 and 2^-56, which doubles
  // add without rounding for up to 2^30 targets with losses below 2^13.
  enum Word : std::size_t { kHigh, kMiddle, kLow, kTargets, kBytes, kWords };

  double& At(std::int64_t row, Word word) {
    return sums_[static_cast<std::size_t>(row) * kWords + word];
  }
  double Of(std::int64_t row, Word word) const {
    return sums_[static_cast<std::size_t>(row) * kWords + word];
  }

  std::vector<double> sums_;  // [rows, kWords]
};

}  // namespace trireme::tasks
