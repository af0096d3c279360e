#!/usr/bin/env bash
# The one place where tests start ranks: more of them than cores, unbound, also as root, in the words of the MPI library
# at hand (Open MPI's, or MPICH's hydra). The launcher takes this process's place: signals to it reach the launcher.
#   bash test/mpirun.sh LAUNCHER -n RANKS COMMAND...
# Sourced, it defines mpi_family and mpi_environment alone.

# mpi_family LAUNCHER: open_mpi or mpich.
mpi_family() {
  local path
  path=$(readlink -f "$(type -P "$1" || echo "$1")")
  case ${path##*/} in
    orterun | prterun | mpirun.openmpi | mpiexec.openmpi) echo open_mpi ;;
    *hydra* | *mpich*) echo mpich ;;
    *) if "$1" --version 2>&1 | grep -qiE 'hydra|mpich'; then echo mpich; else echo open_mpi; fi ;;
  esac
}

# mpi_environment LAUNCHER: what ranks on shared cores need; those of Open MPI that are started without a launcher, too.
mpi_environment() {
  # MPICH has no such setting: common/yield_ucx.c does it.
  [[ $(mpi_family "$1") != mpich ]] || return 0
  export OMPI_MCA_mpi_yield_when_idle=1
  if [[ $(id -u) == 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  launcher=${1:?the launcher of the MPI library}
  shift
  mpi_environment "$launcher"
  options=(-bind-to none)
  [[ $(mpi_family "$launcher") == mpich ]] || options=(--oversubscribe --bind-to none)
  exec "$launcher" "${options[@]}" "$@"
fi
