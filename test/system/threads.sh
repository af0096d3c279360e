#!/usr/bin/env bash
# Threads on cores: two ranks on two cores are pinned, each to one of its own; what the deck or the
# environment says wins; where cores are short, one line says so and nothing is pinned.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mapfile -t cores < <(taskset -cp $$ | "$python" -c '
import sys
for part in sys.stdin.read().split(":")[1].strip().split(","):
    low, _, high = part.partition("-")
    print(*range(int(low), int(high or low) + 1), sep="\n")')
[[ ${#cores[@]} -ge 2 ]] || skip "one core"
tiny_deck
tokens
unset OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY
bound=(taskset -c "${cores[0]},${cores[1]}")

# affinity NAME N KEY...: what each rank may run on while it trains, sorted, in ./affinity.
affinity() {
  local name=$1 count=$2
  shift 2
  cat >watch.sh <<SCRIPT
"$TRIREME" -i deck.in "\$@" & trireme=\$!
until grep -q '"step":20,' "$name/metrics.jsonl" 2>/dev/null; do
  [[ -d /proc/\$trireme ]] || break
  found=\$(taskset -cp \$trireme 2>/dev/null | sed 's/.*: //') && echo "\$found" >"$name.\$\$"
  sleep 0.02
done
wait \$trireme
SCRIPT
  run 0 "${bound[@]}" "${mpi[@]}" "$count" bash watch.sh "job.output=$name" schedule.steps=20 "$@"
  sort "$name".[0-9]* | tr '\n' ' ' >affinity
}
expect() { [[ $(<affinity) == "$1 " ]] || fail "affinity '$(<affinity)' instead of '$1'"; }
both=$(taskset -c "${cores[0]},${cores[1]}" bash -c 'taskset -cp $$' | sed 's/.*: //')

affinity pinned 2
says "2 ranks on 1 host, 1 thread each, pinned   device"
expect "${cores[0]} ${cores[1]}"

affinity unpinned 2 run.pin=no
says "2 ranks on 1 host, 1 thread each   device"
expect "$both $both"

# One rank on two cores with one thread: the other core may be somebody else's.
affinity alone 1 run.threads=1
says "1 rank on 1 host, 1 thread   device"
expect "$both"
affinity alone_pinned 1 run.threads=1 run.pin=yes
says "1 thread, pinned   device"
expect "${cores[0]}"

export OMP_PROC_BIND=false
affinity outside 2
says "2 ranks on 1 host, 1 thread each   device"
expect "$both $both"
unset OMP_PROC_BIND

export OMP_WAIT_POLICY=passive
affinity short 2 run.threads=2
says_once "warning: 2 ranks x 2 threads on 2 cores of a node: expect it to be slow"
says "2 ranks on 1 host, 2 threads each   device"
expect "$both $both"

bound=(taskset -c "${cores[0]}")
affinity one_core 2
says_once "warning: 2 ranks x 1 thread on 1 core of a node"
affinity many_threads 1 run.threads=3
says_once "warning: 1 rank x 3 threads on 1 core of a node"
