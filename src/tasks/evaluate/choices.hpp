// evaluate.choices: multiple-choice questions, their tokens, and their scores.
#ifndef TRIREME_SRC_TASKS_EVALUATE_CHOICES_HPP_
#define TRIREME_SRC_TASKS_EVALUATE_CHOICES_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "tokens_in_memory.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::tasks {

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

// Of a question: the choice of highest log-likelihood, and of highest log-likelihood per byte; the
// first of equal ones. nats: by choice, the negative log-likelihoods.
struct Chosen {
  std::int64_t by_sum = 0, by_bytes = 0;
};
Chosen Choose(const Question& question, const std::vector<double>& nats);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_EVALUATE_CHOICES_HPP_
