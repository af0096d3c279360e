// The launcher of this process, as it describes the job in the environment.
#ifndef TRIREME_COMM_LAUNCHER_HPP_
#define TRIREME_COMM_LAUNCHER_HPP_

#include <string>

#include "trireme/base/error.hpp"

namespace trireme::comm {

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

#endif  // TRIREME_COMM_LAUNCHER_HPP_
