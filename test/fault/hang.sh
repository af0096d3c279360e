#!/usr/bin/env bash
# A rank that is stopped or killed ends the job with a message that names it: in time, with code 1, and
# with no process left. One that is late but comes, and a job that is suspended as a whole, go on.
# hang.sh [every]: every rank in every phase of both layouts.
# hang.sh nodes: watchdogs of two nodes meet through their files: one verdict, from the lowest node that lives; a node that says
# nothing is named.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$(dirname "${BASH_SOURCE[0]}")/background.sh"
if [[ ${1-} == nodes ]]; then
  : "${TRIREME_HANG_NODES:?the program}"

  run 1 "${mpi[@]}" 4 "$TRIREME_HANG_NODES" "$scratch" late
  says_once "trireme: error: "
  says "rank 3 on second has not entered barrier 2 of group world in step 7"
  says "ranks 0-2 wait for it"
  exists hang/session/node_0.json
  exists hang/session/node_1.json
  exists hang/session/verdict.txt
  grep -q pause hang/session/node_1.json || fail "rank 3's stack does not say where it waits"
  rm -r hang

  start=$SECONDS
  run 1 "${mpi[@]}" 4 "$TRIREME_HANG_NODES" "$scratch" silent
  ((SECONDS - start <= 11)) || fail "it took $((SECONDS - start)) s"
  says_once "trireme: error: "
  says "second (ranks 2, 3) says nothing"
  exists hang/session/node_0.json
  rm -r hang

  # Suspended as a whole for longer than the bound, without progress just before and after.
  begins "${mpi[@]}" 4 "$TRIREME_HANG_NODES" "$scratch" suspended
  for rank in 0 1 2 3; do
    until [[ -e ready_$rank ]]; do pause 0.02; done
  done
  pause 0.6
  # shellcheck disable=SC2046  # one word a process
  kill -STOP $(pgrep -P "$job")
  pause 4
  # shellcheck disable=SC2046
  kill -CONT $(pgrep -P "$job")
  ends 0
  is_missing hang
  exit
fi

ranks=4
bound=1.5 # run.hang_timeout, s
most=10   # seconds from the bound to the last process gone
host=$(uname -n)
tiny_deck
# Validations of many windows, so that most of the time goes by in them.
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=60000
keys=("run.hang_timeout=$bound" schedule.steps=1000000 monitor.sample_tokens=0 monitor.every_steps=1
  checkpoint.keep=1)
square=(grid.data=2 grid.tensor=2)
stages=(grid.data=2 grid.pipeline=2)

# launch COMMAND...: four ranks in the background, into the folder run.
launch() {
  rm -rf run
  begins "${mpi[@]}" "$ranks" "$TRIREME" -i deck.in "$@"
}
# process RANK: its number.
process() {
  local each
  for each in $(pgrep -P "$job"); do
    ! tr '\0' '\n' <"/proc/$each/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" || echo "$each"
  done
}
now() { echo "${EPOCHREALTIME/./}"; }
is_alive() { [[ -d /proc/$1 && $(cut -d ' ' -f 3 "/proc/$1/stat" 2>/dev/null) != Z ]]; }

# disturbed SIGNAL RANK PHASE KEYS...: the job ends in time, and says who it was.
disturbed() {
  local signal=$1 rank=$2 phase=$3 began ended code=0 all each victim
  launch "${keys[@]}" "${@:4}"
  case $phase in
  step) awaits run/metrics.jsonl '"kind":"step"' 3 ;;
  validation) awaits run/metrics.jsonl '"kind":"valid"' 2 ;;
  checkpoint) awaits run/metrics.jsonl '"event":"checkpoint"' 2 ;;
  esac
  all=$(pgrep -P "$job")
  victim=$(process "$rank")
  began=$(now)
  kill -s "$signal" "$victim"
  wait "$job" || code=$?
  job=
  for each in $all; do
    while is_alive "$each"; do
      (($(now) - began < (most + 2) * 1000000)) || break
      pause 0.02
    done
    ! is_alive "$each" || fail_with_log "$signal of rank $rank, $phase: process $each is left"
  done
  ended=$(now)
  cp log output
  echo "$signal of rank $rank, $phase (${*:4}): $(((ended - began) / 1000)) ms"
  sed -n 's/^trireme: error/  &/p; /^  rank/p' log
  ((ended - began < (most + 2) * 1000000)) || fail "it took $(((ended - began) / 1000)) ms"
  [[ $(grep -c '^trireme: error: ' log) == 1 ]] || fail "not one message"
  [[ $(grep -cE '^  rank [0-9]+ on ' log) == 1 ]] || fail "not one rank is named"
  if [[ $signal == STOP ]]; then
    [[ $code == 1 ]] || fail "exit code $code instead of 1"
    grep -qE "^  rank $rank on $host .* step [0-9]+.*: it is stopped" log ||
      fail "rank $rank is not named"
    says "ranks"
  else
    [[ $code != 0 ]] || fail "exit code 0"
    grep -qE "^  rank $rank on $host .* step [0-9]+.*: it is gone" log || fail "rank $rank is not named"
  fi
  [[ $phase != checkpoint ]] || grep -qE '^  Go on from step [0-9,]+: -r run$' log || fail "it is not said how to go on"
  grep -q '"event":"hang"' run/metrics.jsonl || fail "no event in metrics.jsonl"
  "$python" - run/hang/*/node_0.json "$rank" <<'PYTHON' || fail "the node's file is not as it should be"
import json, sys
node = json.load(open(sys.argv[1], encoding="utf-8"))
assert [rank["rank"] for rank in node["ranks"]] == [0, 1, 2, 3]
for rank in node["ranks"]:
    assert len(rank["calls"]) > 20 and rank["groups"], rank["rank"]
lost = node["ranks"][int(sys.argv[2])]
assert lost["process"] in "TZX-", lost["process"]
if lost["process"] == "T":
    others = [rank for rank in node["ranks"] if rank is not lost]
    assert any(rank["waiting"] for rank in others)
    assert all(rank["stack"] for rank in others)
PYTHON
}

steps=(checkpoint.every_steps=0 monitor.validate_every_steps=0)
validations=(checkpoint.every_steps=0 monitor.validate_every_steps=1)
checkpoints=(checkpoint.every_steps=1 monitor.validate_every_steps=0)
if [[ ${1:-} == every ]]; then
  for signal in STOP KILL; do
    for rank in 0 1 2 3; do
      for layout in square stages; do
        declare -n of=$layout
        disturbed "$signal" "$rank" step "${of[@]}" "${steps[@]}"
        disturbed "$signal" "$rank" validation "${of[@]}" "${validations[@]}"
        disturbed "$signal" "$rank" checkpoint "${of[@]}" "${checkpoints[@]}"
      done
    done
  done
  exit 0
fi
disturbed STOP 0 step "${square[@]}" "${steps[@]}"
disturbed STOP 1 validation "${square[@]}" "${validations[@]}"
disturbed STOP 2 checkpoint "${square[@]}" "${checkpoints[@]}"
disturbed STOP 3 step "${stages[@]}" "${steps[@]}"
disturbed STOP 0 checkpoint "${stages[@]}" "${checkpoints[@]}"
disturbed STOP 2 validation "${stages[@]}" "${validations[@]}"
disturbed KILL 1 step "${square[@]}" "${steps[@]}"
disturbed KILL 0 checkpoint "${stages[@]}" "${checkpoints[@]}"

# Late, but in time: stopped for half the bound, again and again. Suspended as a whole, for longer than
# the bound. Both end as an undisturbed run does.
few=(run.hang_timeout=3 schedule.steps=120 monitor.sample_tokens=0 monitor.validate_every_steps=0
  checkpoint.every_steps=0)
run 0 "${mpi[@]}" "$ranks" "$TRIREME" -i deck.in "${few[@]}" "${square[@]}" job.output=calm
launch "${few[@]}" "${square[@]}"
awaits run/metrics.jsonl '"kind":"step"' 3
for rank in 1 3; do
  victim=$(process $rank)
  kill -STOP "$victim"
  pause 1.2
  kill -CONT "$victim"
done
# shellcheck disable=SC2046  # one word a process
kill -STOP $(pgrep -P "$job")
pause 4.5
# shellcheck disable=SC2046
kill -CONT $(pgrep -P "$job")
ends 0
same_end calm run step
is_missing run/hang
