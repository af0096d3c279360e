// job.task = evaluate after the model is there: splits, a text, multiple-choice questions, and the
// files of their results.
#ifndef TRIREME_TASKS_EVALUATOR_HPP_
#define TRIREME_TASKS_EVALUATOR_HPP_

#include <memory>
#include <string>
#include <vector>

#include "trireme/data/token_file.hpp"
#include "trireme/tasks/evaluate_options.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::tasks {

// A split to evaluate; name: of data.validation, or empty.
struct Set {
  const data::TokenFile* tokens = nullptr;
  data::Split split = data::Split::kValid;
  std::string name;
};

class Evaluator {
 public:
  // Collective over the model's grid. tokens: the token file of the model, whose train split the
  // baselines learn from. Reads and tokenises the text and the questions. All must outlive it.
  // AgreedError (exit code 2) for what is wrong with them, and for splits without the documents
  // that evaluate.documents needs.
  Evaluator(model::ParallelModel& model, const data::TokenFile& tokens, const EvaluateOptions& options,
            std::vector<Set> sets);
  ~Evaluator();

  // Collective. Evaluates, prints and writes everything. checkpoint: its path, for the results.
  void Run(const std::string& checkpoint);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_EVALUATOR_HPP_
