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

// Tokens that come from no token file: those of a text, or of questions.

struct Tokens {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> documents;  // offsets of their beginnings, ascending from 0
  std::vector<std::uint8_t> counted;    // [ids]: 0: no target
};

// Collective. Hands root's numbers to all ranks.
void Share(const comm::Communicator& world, Tokens& tokens);

// Collective. Tokens as the valid split of a file without a path, with the vocabulary of `like`.
// All ranks pass the same ones, at least 2.
data::TokenFile AsFile(const comm::Communicator& world, const data::TokenFile& like,
                       const Tokens& tokens);

// evaluate.text: a text file as one document of tokens.

struct Text {
  Tokens tokens;             // the tokenizer's template or an <eos>, then the text
  data::TextUnits original;  // of the file as it is; unknown: tokens <unk>
  std::int64_t bytes = 0;    // tokenised
};

// Serial. Throws InputError with the path for a file that cannot be read, is empty, or is not
// UTF-8.
Text ReadEvaluatedText(const EvaluateOptions& options, const data::TokenFile& tokens);

struct Question {
  std::int64_t line = 0;  // of the file, from 1
  std::int64_t answer = 0;
  std::vector<std::int64_t> bytes = {};   // by choice: of its text, without white space in front
  std::vector<std::int64_t> tokens = {};  // by choice
  std::int64_t truncated = 0;             // choices whose context lost tokens
};

struct Questions {
  std::vector<Question> all;
  // A document per choice of each question, in order: context, then choice, whose tokens count.
  Tokens tokens;
};

// Reads and tokenises the questions of a JSONL file. length: tokens of a window; longer contexts
// lose tokens at the left. Serial. Throws InputError with path:line.
Questions ReadQuestions(const std::string& path, const data::TokenFile& tokens,
                        std::int64_t length);

// A window per document of the tokens.
std::vector<data::Sample> WindowsOf(const Tokens& tokens);

// A fraction of right answers, and its standard error: that of the mean of n independent 0s and 1s,
// with n - 1 (not a number for one question).
struct Accuracy {
  double mean = 0, standard_error = 0;
};
Accuracy AccuracyOf(std::int64_t right, std::int64_t questions);

// A question's choices of highest log-likelihood and of highest log-likelihood per byte; the first
// of equal ones. nats: by choice, the negative log-likelihoods.
struct Chosen {
  std::int64_t by_sum = 0, by_bytes = 0;
};
Chosen Choose(const Question& question, const std::vector<double>& nats);

// Sums of losses by row, a document or a question's choice, over ranks that hold parts of them: the
// same bits in any layout.

class LossTable {
 public:
  explicit LossTable(std::int64_t rows) : sums_(static_cast<std::size_t>(rows) * kWords) {}

  std::int64_t Rows() const { return std::ssize(sums_) / static_cast<std::int64_t>(kWords); }

  // Adds a target's loss in nats, rounded to a multiple of 2^-56.
  void Add(std::int64_t row, double loss);
  void AddBytes(std::int64_t row, std::int64_t bytes) {
    At(row, kBytes) += static_cast<double>(bytes);
  }

  // Collective. Adds up the ranks' tables; afterwards all hold the whole.
  void Sum(const comm::Communicator& world);

  double Nats(std::int64_t row) const;
  std::int64_t Targets(std::int64_t row) const { return std::llround(Of(row, kTargets)); }
  std::int64_t Bytes(std::int64_t row) const { return std::llround(Of(row, kBytes)); }

 private:
  // A row: its losses in three integers, of units of 2^-10, 2^-33 and 2^-56, which add up in
  // doubles without rounding for up to 2^30 targets of losses below 2^13.
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
