// Four ranks on one machine as if on two nodes of two: one of them, or a whole node, never comes to
// a barrier. hang_nodes FOLDER late|silent [bound]
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/comm/runtime.hpp"

int main(int argc, char** argv) {
  using namespace trireme::comm;
  Runtime runtime(&argc, &argv);
  const std::string folder = argv[1], how = argv[2];
  Communicator world = runtime.World().Duplicate();
  const int rank = world.Rank();
  Communicator node = world.Split(rank / 2, rank, "node");
  FlightRecorder recorder(rank, node);
  world.RecordWith(recorder, "world");
  node.RecordWith(recorder, "node");
  Watchdog watchdog({.recorder = &recorder,
                     .hosts = {"first", "first", "second", "second"},
                     .nodes = {0, 0, 1, 1},
                     .cores = {0},
                     .session = "session"});
  watchdog.WriteInto(folder);
  watchdog.Arm(Phase::kStep, 7, 1);
  world.Barrier();
  if (how == "late" && rank == 3) {
    while (true) ::pause();
  }
  if (how == "silent" && rank >= 2) ::raise(SIGSTOP);
  world.Barrier();
  std::_Exit(0);
}
