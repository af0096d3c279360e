// Leaves Runtime::Guard in the way named by its argument; guard_exits.cmake checks what a user
// sees.
#include <cstdio>
#include <string>

#include "trireme/comm/runtime.hpp"

int main(int argc, char** argv) {
  using trireme::ExitCode;
  trireme::comm::Runtime runtime(&argc, &argv);
  const trireme::comm::Communicator& world = runtime.World();
  const std::string way = argc > 1 ? argv[1] : "";
  const bool last = world.Rank() == world.Size() - 1;
  return runtime.Guard([&]() -> ExitCode {
    if (way == "done") return ExitCode::kDone;
    if (way == "stopped") return ExitCode::kStopped;
    if (way == "agreed")
      world.Together([] { throw trireme::InputError("a.in:3: wrong", "Mend."); });
    if (way == "partly") {
      world.Together([&] {
        if (last) throw trireme::RunError("disk full");
      });
    }
    if (way == "alone" && last) throw trireme::InputError("lost my way");
    if (way == "unknown" && last) throw 42;
    world.Barrier();  // without MPI_Abort the others would wait here for ever
    return ExitCode::kDone;
  });
}
