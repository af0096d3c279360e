// The [plan] section, and the options of all sections from which a plan is made.
#ifndef TRIREME_TRAIN_PLAN_OPTIONS_HPP_
#define TRIREME_TRAIN_PLAN_OPTIONS_HPP_

#include <cstdint>
#include <string>

#include "trireme/comm/options.hpp"
#include "trireme/data/options.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/train/optimizer_options.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::train {

// The facts of a token file that is not there, and of a machine that is not.
struct PlanOptions {
  std::int64_t vocabulary = 50257;      // tokens
  std::int64_t tokens = 1'000'000'000;  // of the train split
  // Name or path of a description (predict::ReadMachine); "auto": predict::DescribeRun for a run,
  // h100 for the task plan.
  std::string machine = "auto";
  std::int64_t nodes = 0;      // to plan for; 0: grid.ranks, or one
  std::int64_t rows = 10;      // layouts to show
  std::int64_t simulate = 16;  // layouts to simulate
  std::string timeline;        // file of the fastest layout's timeline; empty: none
};

// PlanOptions of the sections that a plan follows from.
struct DeckOptions {
  device::Options machine;
  comm::Options comm;
  parallel::Options parallel;
  data::Options data;
  model::Options model;  // without the vocabulary (model::WithVocabulary)
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  PlanOptions plan;
};

void DeclarePlan(deck::Schema& schema);  // [plan]

PlanOptions ReadPlan(const deck::Deck& deck);

// Every section of DeckOptions. Throws InputError with the deck's line for values that contradict
// each other.
DeckOptions ReadAll(const deck::Deck& deck);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_PLAN_OPTIONS_HPP_
