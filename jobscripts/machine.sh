# shellcheck shell=bash
# Sourced by other scripts: how many cores and compile jobs this machine carries, and what Open MPI
# asks of root.

# COUNT cores, or fewer where the container's quota is less.
within_quota() {
  local cores=$1 quota period
  if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    quota=$(((quota + period - 1) / period))
    [[ $quota -ge $cores ]] || cores=$quota
  fi
  echo "$cores"
}

# Cores that this process may use: physical ones, within its affinity and its container's quota.
usable_cores() {
  local cores physical
  cores=$(nproc)
  if physical=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l) &&
      [[ $physical -gt 0 && $physical -lt $cores ]]; then
    cores=$physical
  fi
  within_quota "$cores"
}

# JOBS, or fewer where there is not about a gibibyte for each.
within_memory() {
  local jobs=$1 gibibytes
  gibibytes=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null) || gibibytes=
  [[ -z $gibibytes || $gibibytes -ge $jobs ]] || jobs=$((gibibytes > 0 ? gibibytes : 1))
  echo "$jobs"
}

# Compilers at once; and on a machine that one has to oneself: on every hardware thread.
build_jobs() { within_memory "$(usable_cores)"; }
build_jobs_alone() { within_memory "$(within_quota "$(nproc)")"; }

if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
