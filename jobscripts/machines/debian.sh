# shellcheck shell=bash
# shellcheck disable=SC2034,SC2016  # read, and expanded, by the scripts that source this file
# Facts of a Debian or Ubuntu machine, alone or under a Slurm of its own. README.md explains each line.
TRIREME_MACHINE_TITLE="Debian or Ubuntu: a workstation, a small cluster, the Slurm of the test suite"
TRIREME_MACHINE_DATE=2026-11-24
TRIREME_MACHINE_SOURCE="run by the test suite on Debian 12 (Open MPI 4.1.4, Slurm 22.05)"
TRIREME_MACHINE_TRIED=yes
TRIREME_MACHINE_UNCONFIRMED=""

# Build.
TRIREME_MACHINE_MODULES=""
TRIREME_MACHINE_CMAKE=""
TRIREME_MACHINE_DEVICE=cpu

# A node.
TRIREME_MACHINE_GPUS_PER_NODE=0
TRIREME_MACHINE_GPU=""
TRIREME_MACHINE_CORES_PER_NODE=$(nproc)
TRIREME_MACHINE_RANKS_PER_NODE=$TRIREME_MACHINE_CORES_PER_NODE
TRIREME_MACHINE_CORES_PER_RANK=1
TRIREME_MACHINE_MEMORY_GIB=$(awk '/^MemTotal:/ { print int($2 / 1048576) }' /proc/meminfo)
TRIREME_MACHINE_FABRIC="whatever Open MPI finds: shared memory, TCP"

# Slurm.
TRIREME_MACHINE_PARTITION=""
TRIREME_MACHINE_PARTITIONS=""
TRIREME_MACHINE_QOS=""
TRIREME_MACHINE_CONSTRAINT=""
TRIREME_MACHINE_ACCOUNT=no
TRIREME_MACHINE_GRES=""
TRIREME_MACHINE_SRUN="--mpi=pmix --cpu-bind=cores"
TRIREME_MACHINE_ENVIRONMENT=""
TRIREME_MACHINE_REQUEUE=yes

# File systems: texts that the user's shell expands.
TRIREME_MACHINE_RUNS='$PWD'
TRIREME_MACHINE_LOCAL='${TMPDIR:-/tmp}'
