// Runtime: MPI's start and end, and the guard that turns exceptions into one message and an exit
// code.
#include "trireme/comm/runtime.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "trireme/device/gpu.hpp"

namespace trireme::comm {

namespace {

std::string HostName() {
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return std::string(name, static_cast<std::size_t>(length));
}

// One write, so that the lines of several ranks do not interleave; what was printed before comes
// first.
void Print(const std::string& message) {
  std::fflush(stdout);
  const std::string line = message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

Runtime::Runtime(int* argc, char*** argv) {
  device::PrepareGpuEnvironment();  // before MPI looks for GPUs
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  world_ = Communicator::Adopt(MPI_COMM_WORLD);
  if (provided < MPI_THREAD_FUNNELED) {
    if (world_.IsRoot()) {
      Print(
          "trireme: error: this MPI library does not provide MPI_THREAD_FUNNELED\n"
          "  Load or build an MPI library with thread support.");
    }
    MPI_Abort(world_.Handle(), static_cast<int>(ExitCode::kFailed));
  }
  node_ = world_.SplitNode();
  hosts_ = world_.Gather(HostName());
}

Runtime::~Runtime() {
  { const Communicator freed_before_the_end = std::move(node_); }
  MPI_Finalize();
}

int Runtime::Guard(const std::function<ExitCode()>& body) const {
  const auto leave_together = [this](ExitCode code, const std::string& message) {
    if (world_.IsRoot()) Print("trireme: error: " + message);
    return static_cast<int>(code);
  };
  const auto leave_alone = [&](ExitCode code, const std::string& message) {
    // A world of one agrees with itself.
    if (world_.Size() == 1) return leave_together(code, message);
    const auto rank = static_cast<std::size_t>(world_.Rank());
    Print(fmt::format("trireme: error on rank {} ({}): {}", rank, hosts_[rank], message));
    MPI_Abort(world_.Handle(), static_cast<int>(code));
    return static_cast<int>(code);
  };

  try {
    return static_cast<int>(body());
  } catch (const AgreedError& error) {
    return leave_together(error.Code(), error.what());
  } catch (const Error& error) {
    return leave_alone(error.Code(), error.what());
  } catch (const std::bad_alloc&) {
    return leave_alone(ExitCode::kFailed,
                       "out of memory\n  Use more ranks or nodes, or smaller sizes in the deck.");
  } catch (const std::exception& error) {
    return leave_alone(ExitCode::kFailed, error.what());
  } catch (...) {
    return leave_alone(ExitCode::kFailed, "an exception of unknown type");
  }
}

}  // namespace trireme::comm
