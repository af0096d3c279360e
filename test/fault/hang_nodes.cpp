// Four ranks on one machine as if on two nodes of two: one of them, or a whole node, never comes to
// a barrier; or all come late, after they were suspended.
// hang_nodes FOLDER late|silent|suspended
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/runtime.hpp"

int main(int argc, char** argv) {
  using namespace trireme::comm;
  Runtime runtime(&argc, &argv);
  const std::string folder = argv[1], how = argv[2];
  Communicator world = runtime.World().Duplicate();
  const int rank = world.Rank();
  Communicator node = world.Split(rank / 2, rank, "node");
  FlightRecorder& recorder = *new FlightRecorder(rank, node);  // outlives the groups
  world.RecordWith(recorder, "world");
  node.RecordWith(recorder, "node");
  Watchdog watchdog({.recorder = &recorder,
                     .hosts = {"first", "first", "second", "second"},
                     .nodes = {0, 0, 1, 1},
                     .cores = {0},
                     .session = "session"});
  watchdog.WriteInto(folder);
  const bool suspended = how == "suspended";
  watchdog.Arm(Phase::kStep, 7, suspended ? 3 : 1);
  world.Barrier();
  if (how == "late" && rank == 3) {
    while (true) ::pause();
  }
  if (how == "silent" && rank >= 2) ::raise(SIGSTOP);
  if (suspended) {
    std::ofstream(folder + "/ready_" + std::to_string(rank));
    // Two seconds of its own time.
    for (int i = 0; i < 20; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  world.Barrier();
  watchdog.Disarm();
  world.Barrier();
}
