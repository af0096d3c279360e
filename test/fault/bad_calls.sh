#!/usr/bin/env bash
# A call of the system that fails on one rank ends the job within seconds: one message that names the file
# or the rank, exit code 1 or 2, no process left, no core. `bad_calls.sh every`: each call in turn, else
# some of its kind.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
: "${TRIREME_FAIL_CALLS:?the library to preload}"
every=${1:-}
patience=10 # seconds
tiny_deck
tokens
ulimit -c unlimited

# Arguments of the validation, and the folder that must stay as `kept`, or be missing without one.
arguments=(-i "$scratch/deck.in" data.staging=none "job.output=$scratch/run")
folder=run

# job RANK NTH: validates on 2 ranks; sets `code`.
job() {
  rm -f log
  code=0
  env TRIREME_FAULT_CALL="$call" TRIREME_FAULT_RANK="$1" TRIREME_FAULT_PATH="$path" TRIREME_FAULT_BYTES="$bytes" \
    TRIREME_FAULT_NTH="$2" TRIREME_FAULT_ERRNO="$errno" TRIREME_FAULT_LOG="$scratch/log" \
    timeout -k 5 "$patience" "${mpi[@]}" 2 -x "LD_PRELOAD=$TRIREME_FAIL_CALLS" \
    "$TRIREME" -v "${arguments[@]}" >output 2>&1 </dev/null || code=$?
}

# counts: of the chosen calls on each rank.
counts() {
  local rank
  job "" 0
  [[ $code == 0 ]] || fail "exit code $code without a failing call: $call"
  for rank in 0 1; do
    count[rank]=$(grep -c "^call $rank " log 2>/dev/null) || true
  done
}

# bad RANK WHICH NAMED: the first, middle or last call of a rank fails; the message has the text.
bad() {
  local rank=$1 which=$2 named=$3 last=${count[$1]} n numbers what
  what="$call on rank $rank of ${path:-$bytes bytes}"
  ((last > 0)) || fail "no such call: $what"
  case $which in
    first) numbers=1 ;;
    middle) numbers=$(((last + 1) / 2)) ;;
    last) numbers=$last ;;
  esac
  [[ -z $every ]] || numbers=$(seq "$last")
  for n in $numbers; do
    job "$rank" "$n"
    what="$call on rank $rank of ${path:-$bytes bytes}, call $n of $last"
    grep -q '^failed' log || fail "$what: it was not made"
    [[ $code == 1 || $code == 2 ]] || fail "$what: exit code $code"
    says_once "trireme: error"
    grep 'trireme: error' -A 3 output | grep -qF -- "$named" || fail "$what: the message does not name $named"
    # A process gets its rank when MPI starts.
    [[ $call != allocate || $n == 1 ]] || says "rank $rank"
    ! grep -qE 'exited on signal|Aborted|Segmentation' output || fail "$what: a crash"
    ! pgrep -f -- "-v .*$scratch" >/dev/null || fail "$what: a process is left"
    [[ -z $(find . -name 'core*') ]] || fail "$what: a core"
    if [[ -e kept ]]; then diff -r kept "$folder" >&2 || fail "$what: $folder was changed"; else is_missing "$folder"; fi
  done
}

# sweep CALL PATH BYTES ERRNO RANK:WHICH...: the message names the file or, without one, the rank.
sweep() {
  call=$1 path=$2 bytes=$3 errno=$4
  local each named done_ranks=""
  counts
  echo "$call of ${path:-$bytes bytes}: ${count[0]} and ${count[1]} calls"
  for each in "${@:5}"; do
    if [[ -n $every ]]; then
      [[ $done_ranks != *${each%:*}* ]] || continue
      done_ranks+=${each%:*}
    fi
    named=$path
    [[ $call != allocate ]] || named="out of memory"
    bad "${each%:*}" "${each#*:}" "$named"
  done
}

declare -a count
eio=5 enomem=12 eacces=13
sweep open deck.in 0 $eacces 0:first
sweep read deck.in 0 $eio 0:first
sweep open harbour.h5 0 $eio 0:middle 0:last 1:last
sweep read harbour.h5 0 $eio 0:middle 0:last 1:last
# The model, its gradients and moments, activations.
sweep allocate "" 16384 $enomem 0:middle 1:first 1:last

# A restore by two ranks, of which the first reads for both.
run 0 "$TRIREME" -i deck.in job.output=run schedule.stop_at=1
cp -r run kept
arguments=(-r "$scratch/run" grid.tensor=2)
sweep open model.safetensors 0 $eacces 0:last
sweep read model.safetensors 0 $eio 0:first 0:last
sweep open optimizer.safetensors 0 $eio 0:last
sweep allocate model.safetensors 4096 $enomem 0:first 0:middle
