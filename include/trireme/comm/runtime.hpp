// Runtime: MPI's lifetime. Nothing else initialises or finalises MPI, or names the world.
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
  // From now on an exception that meets no handler becomes one message and its exit code instead of
  // a core; before MPI starts and after it ends too.
  static void ReportTermination();

  Runtime(int* argc, char*** argv);  // ReportTermination(), MPI_Init_thread(MPI_THREAD_FUNNELED)
  ~Runtime();                        // MPI_Finalize
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Communicator& World() const { return world_; }
  const Communicator& Node() const { return node_; }  // ranks on this host
  const comm::Hosts& Hosts() const { return hosts_; }
  Watchdog& Watch() const { return *watchdog_; }

  // Runs `body` and turns any exception into one message and one exit code. An AgreedError was
  // thrown by all ranks: world rank 0 prints it, and the returned code leaves through MPI_Finalize.
  // Any other exception is this rank's alone and meets no handler: std::terminate is called before
  // any destructor, the rank prints its message, and MPI_Abort ends the job. Others may still wait
  // in collectives, and messages of this rank may be under way. So does an exception in a helper
  // thread. A world of one rank agrees with itself.
  int Guard(const std::function<ExitCode()>& body) const;

 private:
  void StartRecording(std::vector<std::int32_t> nodes);
  Communicator world_;
  Communicator node_;
  comm::Hosts hosts_;
  std::unique_ptr<FlightRecorder> recorder_;  // of the calls of all groups made from these two
  std::unique_ptr<Watchdog> watchdog_;
};

// The launcher of this process, as it describes the job in the environment.

struct Launcher {
  int processes = 0, number = 0;  // of all that it has started, and of this one; 0: it does not say
  std::string name;               // "the Slurm step", "flux run"
  std::string hint;               // how MPI gets to know of them all
};

// From the environment, before MPI starts (Open MPI sets variables of its own then): Open MPI's
// mpirun, MPICH's mpiexec and whatever speaks PMI as it does (PALS, Slurm's pmi2), Flux, LSF's
// jsrun, srun. The one nearest to this process counts: in a batch job of Slurm's, mpirun.
Launcher ReadLauncher();

// Processes that were started together, each of which MPI takes for a world of its own (ranks: its
// size), would all run the whole job: InputError in the first one; the others say nothing, true.
bool RefuseSingletons(const Launcher& launcher, int ranks);

}  // namespace trireme::comm
