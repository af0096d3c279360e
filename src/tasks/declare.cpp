// Every key of the deck, in the order of --help-deck.
#include "trireme/tasks/options.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/evaluate_options.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/tasks/scaling_options.hpp"

namespace trireme::tasks {

deck::Schema DeclareAll() {
  deck::Schema schema;
  app::Declare(schema);
  device::Declare(schema);
  DeclareEvaluate(schema);
  DeclareGenerate(schema);
  comm::Declare(schema);
  parallel::Declare(schema);
  data::Declare(schema);
  model::Declare(schema);
  train::DeclareOptimizerAndSchedule(schema);
  checkpoint::Declare(schema);
  hf::Declare(schema);
  report::Declare(schema);
  train::DeclareSafeguards(schema);
  train::DeclarePlan(schema);
  DeclareScaling(schema);
  return schema;
}

}  // namespace trireme::tasks
