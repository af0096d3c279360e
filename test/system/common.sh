# shellcheck shell=bash
# Sourced by every system test: a scratch folder, launches with their exit code and output kept, and
# expectations that say what was expected and what came.
set -euo pipefail
: "${TRIREME:?the program under test}" "${TRIREME_SOURCE:?the repository}"
python=${TRIREME_PYTHON:-python3}
# shellcheck source=test/mpirun.sh
source "$TRIREME_SOURCE/test/mpirun.sh"
export OMP_NUM_THREADS=1
unset TRIREME_SITE_DECK
launcher=${TRIREME_MPIRUN:-mpirun}
mpi_environment "$launcher"

scratch=$(mktemp -d)
leave() { rm -rf "$scratch"; }
trap leave EXIT
cd "$scratch"

fail() {
  echo "FAILED: $*" >&2
  [[ ! -s $scratch/output ]] || tail -n 40 "$scratch/output" | sed 's/^/  | /' >&2
  exit 1
}
skip() {
  echo "skipped: $*"
  exit 77
}

# run CODE COMMAND...: must leave with CODE; both streams are kept in ./output.
run() {
  local expected=$1 code=0
  shift
  "$@" >"$scratch/output" 2>&1 </dev/null || code=$?
  [[ $code == "$expected" ]] || fail "exit code $code instead of $expected from: $*"
}
# "${launch[@]}" OPTION... COMMAND...: the launcher. "${mpi[@]}" N COMMAND...: N ranks.
launch=(bash "$TRIREME_SOURCE/test/mpirun.sh" "$launcher")
# shellcheck disable=SC2034  # used by those who source this
mpi=("${launch[@]}" -n)
# "${mpi[@]}" N "${preloaded[@]}" LIBRARY PROGRAM...: loads the library into the program alone, not into the launcher; one
# that the launcher preloads stays. Variables for the library come from the environment.
# shellcheck disable=SC2016,SC2034  # expanded by that bash; used by those who source this
preloaded=(bash -c 'LD_PRELOAD=$0${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"')
# ranks_of LAUNCHER: processes of its ranks, children under Open MPI, children of its proxy under MPICH.
ranks_of() { pgrep -x "$(basename "$TRIREME" | cut -c 1-15)" -P "$1$(pgrep -P "$1" | sed 's/^/,/' | tr -d '\n')"; }

says() { grep -qF -- "$1" "$scratch/output" || fail "the output lacks: $1"; }
says_once() {
  [[ $(grep -cF -- "$1" "$scratch/output") == 1 ]] || fail "not said exactly once: $1"
}
exists() { [[ -e $1 ]] || fail "$1 does not exist"; }
is_missing() { [[ ! -e $1 ]] || fail "$1 exists"; }

# is_stopped CODE: 3, of a run stopped by a signal to the launcher. MPICH 4.0.2's gives 0 for the same about once in six
# times (doc/mpi.md): there the output decides.
is_stopped() {
  [[ $1 == 3 ]] && return
  [[ $1 == 0 && $(mpi_family "$launcher") == mpich ]] && grep -q "stopped by a signal" "$scratch/output"
}

# small COMMAND...: ends within seconds; the largest of its processes stays below 200 MiB.
small() {
  "$python" - "$@" <<'PYTHON'
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, timeout=20).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB
sys.exit(code if peak < 200 * 1024 else f"peak memory {peak} KiB")
PYTHON
}
# too_large FOLDER RANKS-IN-WORDS COMMAND...: refused before anything is taken or written to FOLDER.
too_large() {
  run 2 small "${@:3}"
  says_once "error: memory: the $2"
  says "; nothing was allocated"
  is_missing "$1"
}

# losses FILE KIND: "step loss" a line, all digits.
losses() {
  "$python" - "$1" "$2" <<'PYTHON'
import json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    record = json.loads(line)
    if record["kind"] == sys.argv[2]:
        print(record["step"], repr(record["loss"]))
PYTHON
}

# A model and data that train in a second. deck.in is written, harbour.h5 is made.
tiny_deck() {
  cat >deck.in <<'DECK'
# A harbour run of seconds.
[job]
output = run
[data]
file = harbour.h5
sequence_length = 16
stride = 16
batch = 8
[model]
dim = 32
heads = 2
layers = 2
ffn = 64
max_positions = 16
dropout = 0.1
[optimizer]
learning_rate = 3e-3
[schedule]
steps = 20
warmup_steps = 4
[checkpoint]
every_steps = 10
keep = 0
[monitor]
every_steps = 1
validate_every_steps = 10
sample_tokens = 8
report = no
DECK
}

# harbour.h5 beside deck.in: 125 windows, 16 steps per epoch, the last one short.
tokens() {
  run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=2000 "$@"
}

# Warnings in the output but those of too few cores, which these tests share between many ranks.
unexpected_warnings() {
  grep 'warning' output | grep -v 'expect it to be slow'
}

# Two hosts with names and networks of their own (namespaces of Linux, joined by one cable), by root's tests: make_hosts,
# then `run 0 "$scratch/on" "$one" "${hosts[@]}" PROGRAM ...`; remove_hosts at the end. Open MPI's alone: MPICH starts ranks
# on other hosts by ssh.
one=triremea$$ two=triremeb$$
cable=trireme0

# make_hosts SLOTS [COMMAND ...]: sets hosts, the launcher that starts SLOTS ranks on each host from the first one; COMMAND runs
# what the launcher starts on the second. False, with the reason in ./output, where there are no such namespaces.
make_hosts() {
  local slots=$1 host number=0
  shift
  [[ $(mpi_family "$launcher") == open_mpi ]] || { echo "the agent is Open MPI's" >output; return 1; }
  { ip netns add "$one" && ip netns add "$two" &&
    ip link add $cable netns "$one" type veth peer name $cable netns "$two" &&
    ip netns exec "$one" true; } 2>output || return 1  # the last fails where / is no mount point (chroot)
  for host in "$one" "$two"; do
    number=$((number + 1))
    ip -n "$host" addr add "10.77.0.$number/24" dev $cable
    ip -n "$host" link set $cable up
    ip -n "$host" link set lo up
  done
  # on HOST COMMAND...: with the host's network and name.
  cat >on <<'ON'
#!/usr/bin/env bash
name=$1
shift
exec ip netns exec "$name" unshare --uts bash -c 'hostname "$0" && exec "$@"' "$name" "$@"
ON
  # Called by Open MPI instead of ssh: agent ADDRESS COMMAND.
  cat >agent <<AGENT
#!/usr/bin/env bash
shift
exec "$scratch/on" $two $* bash -c "\$*"
AGENT
  chmod +x on agent
  # shellcheck disable=SC2034  # used by those who source this
  hosts=("$launcher" --oversubscribe --bind-to none --host "$one:$slots,10.77.0.2:$slots"
    --mca plm_rsh_agent "$scratch/agent" --mca oob_tcp_if_include "$cable" --mca btl_tcp_if_include "$cable"
    --mca btl "tcp,vader,self" -n $((2 * slots)))
}

# With the processes on them, even if there are none.
remove_hosts() {
  local host
  for host in "$one" "$two"; do
    # shellcheck disable=SC2046  # one word a process
    kill -KILL $(ip netns pids "$host" 2>/dev/null) 2>/dev/null || true
    ip netns del "$host" 2>/dev/null || true
  done
}
