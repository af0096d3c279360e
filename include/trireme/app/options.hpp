// The [job] section, and the options of all sections together, read once for a job.
#ifndef TRIREME_APP_OPTIONS_HPP_
#define TRIREME_APP_OPTIONS_HPP_

#include <string>

#include "trireme/checkpoint/options.hpp"
#include "trireme/data/options.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/report/options.hpp"
#include "trireme/train/plan_options.hpp"
#include "trireme/train/safeguard_options.hpp"

namespace trireme::app {

enum class Task {
  kTrain,
  kEvaluate,
  kGenerate,
  kTokenize,
  kVerify,
  kImport,
  kExport,
  kPreflight,
  kScaling,
  kPlan
};

struct Options {
  Task task = Task::kTrain;
  std::string name = "run";   // of the run
  std::string output;         // run folder; runs/<name> unless the deck names one
  bool output_given = false;  // by the deck or the command line
};

// Options of every section that a job reads; [generate] belongs to its task.
struct DeckOptions : train::DeckOptions {
  Options job;
  data::TokenizeOptions tokenize;
  checkpoint::Options checkpoint;
  report::Options monitor;
  train::SafeguardOptions training;
};

void Declare(deck::Schema& schema);  // [job]

// Gives job.output its value from job.name if the deck leaves it out.
void Resolve(deck::Deck& deck);

Options Read(const deck::Deck& deck);

// True for the tasks that turn weights or texts into others and compute nothing.
constexpr bool OnlyConverts(Task task) {
  return task == Task::kTokenize || task == Task::kImport || task == Task::kExport;
}

// True for the tasks that take windows from the training split.
constexpr bool ReadsTraining(Task task) { return task == Task::kTrain || task == Task::kScaling; }

// Every section of DeckOptions. Throws InputError with the deck's line for values that contradict
// each other; what depends on the ranks or the token file is checked later.
DeckOptions ReadAll(const deck::Deck& deck);

}  // namespace trireme::app

#endif  // TRIREME_APP_OPTIONS_HPP_
