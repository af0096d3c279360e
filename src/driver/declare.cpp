// Every key of the deck, in the order of --help-deck.
#include "trireme/driver/options.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/evaluate/options.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/scaling/options.hpp"

namespace trireme::driver {

input::Schema DeclareAll() {
  input::Schema schema;
  job::Declare(schema);
  machine::Declare(schema);
  evaluate::Declare(schema);
  DeclareGenerate(schema);
  comm::Declare(schema);
  parallel::Declare(schema);
  data::Declare(schema);
  model::Declare(schema);
  optimizer::Declare(schema);
  checkpoint::Declare(schema);
  hf::Declare(schema);
  monitor::Declare(schema);
  training::Declare(schema);
  plan::Declare(schema);
  scaling::Declare(schema);
  return schema;
}

}  // namespace trireme::driver
