// The [job] section, and the options of all sections together, read once for a job.
#ifndef TRIREME_JOB_OPTIONS_HPP_
#define TRIREME_JOB_OPTIONS_HPP_

#include <string>

#include "trireme/checkpoint/options.hpp"
#include "trireme/data/options.hpp"
#include "trireme/input/deck.hpp"
#include "trireme/monitor/options.hpp"
#include "trireme/plan/options.hpp"
#include "trireme/training/options.hpp"

namespace trireme::job {

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
struct DeckOptions : plan::DeckOptions {
  Options job;
  data::TokenizeOptions tokenize;
  checkpoint::Options checkpoint;
  monitor::Options monitor;
  training::Options training;
};

void Declare(input::Schema& schema);  // [job]

// Gives job.output its value from job.name if the deck leaves it out.
void Resolve(input::Deck& deck);

Options Read(const input::Deck& deck);

// True for the tasks that turn weights or texts into others and compute nothing.
constexpr bool OnlyConverts(Task task) {
  return task == Task::kTokenize || task == Task::kImport || task == Task::kExport;
}

// True for the tasks that take windows from the training split.
constexpr bool ReadsTraining(Task task) { return task == Task::kTrain || task == Task::kScaling; }

// Every section of DeckOptions. Throws InputError with the deck's line for values that contradict
// each other; what depends on the ranks or the token file is checked later.
DeckOptions ReadAll(const input::Deck& deck);

}  // namespace trireme::job

#endif  // TRIREME_JOB_OPTIONS_HPP_
