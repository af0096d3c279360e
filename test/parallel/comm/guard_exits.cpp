// Leaves Runtime::Guard in the way named by its argument; guard_exits.cmake checks what a user
// sees.
#include <chrono>
#include <cstdio>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/runtime.hpp"

namespace {

using trireme::ExitCode;
using trireme::comm::Communicator;

// Tells of its destruction.
struct Witness {
  ~Witness() {
    std::fputs("unwound\n", stderr);
    std::fflush(stderr);
  }
};

// Throws what `way` names while a message from this frame's memory is under way to rank 0, which
// does not receive it.
void FailAlone(const std::string& way, const Communicator& world) {
  constexpr std::size_t kMessage = std::size_t{1} << 20;  // bytes: waits for its receiver
  const Witness witness;
  const std::vector<char> message(kMessage);
  MPI_Request request = MPI_REQUEST_NULL;
  if (world.Size() > 1) {
    MPI_Isend(message.data(), static_cast<int>(kMessage), MPI_BYTE, 0, 0, world.Handle(), &request);
  }
  if (way == "alone") throw trireme::InputError("lost my way");
  if (way == "unknown") throw 42;
  if (way == "memory") throw std::bad_alloc();
  if (way == "thread") {
    std::thread([] { throw trireme::InputError("lost my way"); }).detach();
    std::this_thread::sleep_for(std::chrono::seconds(20));
  }
}

ExitCode Leave(const std::string& way, const Communicator& world) {
  const bool last = world.Rank() == world.Size() - 1;
  if (way == "done") return ExitCode::kDone;
  if (way == "stopped") return ExitCode::kStopped;
  if (way == "agreed") world.Together([] { throw trireme::InputError("a.in:3: wrong", "Mend."); });
  if (way == "partly") {
    world.Together([&] {
      if (last) throw trireme::RunError("disk full");
    });
  }
  if (last) FailAlone(way, world);
  world.Barrier();  // without MPI_Abort the others would wait here for ever
  return ExitCode::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  trireme::comm::Runtime runtime(&argc, &argv);
  const std::string way = argc > 1 ? argv[1] : "";
  return runtime.Guard([&] { return Leave(way, runtime.World()); });
}
