// Every key of the deck, in the order of --help-deck.
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/model/options.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/optimizer/optimizer.hpp"
#include "trireme/optimizer/schedule.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::driver {

input::Schema DeclareAll() {
  input::Schema schema;
  job::DeclareJob(schema);
  comm::DeclareGrid(schema);
  parallel::DeclareBuckets(schema);
  training::DeclareCanonical(schema);
  parallel::DeclarePipeline(schema);
  data::DeclareData(schema);
  data::DeclareTokenize(schema);
  model::DeclareModel(schema);
  optimizer::DeclareOptimizer(schema);
  optimizer::DeclareSchedule(schema);
  checkpoint::DeclareCheckpoint(schema);
  monitor::DeclareMonitor(schema);
  return schema;
}

}  // namespace trireme::driver
