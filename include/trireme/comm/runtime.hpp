// Runtime: starts and ends MPI. No other code initialises or finalises MPI, or names the world.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/comm/watchdog.hpp"

namespace trireme::comm {

class Runtime {
 public:
  // From now on an uncaught exception ends the program with one message and its exit code instead
  // of a core dump; also before MPI starts and after it has ended.
  static void ReportTermination();

  Runtime(int* argc, char*** argv);  // ReportTermination(), MPI_Init_thread(MPI_THREAD_FUNNELED)
  ~Runtime();                        // MPI_Finalize
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Communicator& World() const { return world_; }
  const Communicator& Node() const { return node_; }  // ranks on this host
  const comm::Hosts& Hosts() const { return hosts_; }
  Watchdog& Watch() const { return *watchdog_; }

  // Runs `body` and turns any exception into one message and one exit code. All ranks throw an
  // AgreedError together: world rank 0 prints it, and the returned code leaves through
  // MPI_Finalize. Any other exception belongs to this rank alone and is not caught: std::terminate
  // runs before any destructor, the rank prints its message, and MPI_Abort ends the job, since
  // other ranks may wait in collectives and messages may be under way. The same holds in helper
  // threads. In a world of one rank every exception counts as agreed.
  int Guard(const std::function<ExitCode()>& body) const;

 private:
  void StartRecording(std::vector<std::int32_t> nodes);
  Communicator world_;
  Communicator node_;
  comm::Hosts hosts_;
  std::unique_ptr<FlightRecorder> recorder_;  // for world_, node_ and groups split from them
  std::unique_ptr<Watchdog> watchdog_;
};

// The launcher that started this process, read from the environment.

struct Launcher {
  int processes = 0, number = 0;  // processes started, this one's number; processes 0: unknown
  std::string name;               // "the Slurm step", "flux run"
  std::string hint;               // how to make MPI see all of them
};

// Reads the environment; to be called before MPI starts, since Open MPI sets such variables itself.
// Knows Open MPI's mpirun, MPICH's mpiexec and others that speak PMI (PALS, Slurm's pmi2), Flux,
// LSF's jsrun and srun. The innermost one counts: mpirun within a Slurm batch job.
Launcher ReadLauncher();

// Detects processes that were started together but that MPI sees as separate worlds (ranks: the
// size of this one), each of which would run the whole job. Then the first process throws an
// InputError and the others return true, to end silently; false if all is well.
bool RefuseSingletons(const Launcher& launcher, int ranks);

}  // namespace trireme::comm
