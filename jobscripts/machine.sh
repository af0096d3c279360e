# shellcheck shell=bash
# Sourced by other scripts: how many cores and compile jobs this machine carries, and what Open MPI
# asks of root.

# Cores that this process may use: physical ones, within its affinity and its container's quota.
usable_cores() {
  local cores physical quota period
  cores=$(nproc)
  if physical=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l) &&
      [[ $physical -gt 0 && $physical -lt $cores ]]; then
    cores=$physical
  fi
  if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    quota=$(((quota + period - 1) / period))
    [[ $quota -ge $cores ]] || cores=$quota
  fi
  echo "$cores"
}

# Compilers at once: a core and about a gibibyte each.
build_jobs() {
  local jobs gibibytes
  jobs=$(usable_cores)
  gibibytes=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null) || gibibytes=
  [[ -z $gibibytes || $gibibytes -ge $jobs ]] || jobs=$((gibibytes > 0 ? gibibytes : 1))
  echo "$jobs"
}

if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
