#!/usr/bin/env bash
# A random rank is killed at a random moment, again and again; each time the run is continued as a batch
# script would, and ends in the bytes and losses of a run that was never disturbed.
# kill_loop.sh KILLS [section.key=value ...]; TRIREME_KILL_SEED repeats the choices of an earlier loop.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
kills=${1:-10}
shift || true
seed=${TRIREME_KILL_SEED:-$(($(date +%s) % 32768))}
RANDOM=$seed
echo "$kills kills, seed $seed"

limit=10 # seconds from a kill to the end of mpirun and all ranks
steps=240 validate_every=30
tiny_deck
tokens
keys=("schedule.steps=$steps" checkpoint.every_steps=10 checkpoint.keep=2
  "monitor.validate_every_steps=$validate_every" monitor.sample_tokens=0 checkpoint.max_restarts=0 "$@")
last=step_$(printf %08d $steps)
program=$(readlink -f "$TRIREME")

ms_since() { echo $(((${EPOCHREALTIME/./} - ${1/./}) / 1000)); }
begin=$EPOCHREALTIME
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" job.output=calm
whole_ms=$(ms_since "$begin")

# A pause without a process of its own, ms.
exec {never}<> <(:)
pause() { read -rt "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))" -u "$never" _ || true; }
below() { echo $(((RANDOM * 32768 + RANDOM) % $1)); }
running() { kill -0 "$job" 2>/dev/null; }

# Processes of our ranks, a line each: children of mpirun, and whatever outlived one in our folder.
ranks_of() {
  local process
  for process in $(pgrep -P "$1"); do
    [[ $(readlink "/proc/$process/exe") != "$program" ]] || echo "$process"
  done
}
survivors() {
  local process
  for process in $(pgrep -x "$(basename "$program" | cut -c 1-15)"); do
    [[ $(readlink "/proc/$process/cwd") != "$scratch"* ]] || echo "$process"
  done
}

# The moments of a kill. Each returns early when the run ends.
any_time() { pause "$(below $((whole_ms < 4000 ? whole_ms : 4000)))"; }
start() { pause "$(below 1500)"; }
# After the n-th change of the names in checkpoints/, to hit files written, published, linked, pruned.
file_system() {
  local changes=$((1 + RANDOM % 16)) names before
  before="$(echo "$folder"/checkpoints/* "$folder"/checkpoints/*/*)"
  while running && ((changes > 0)); do
    names="$folder/checkpoints/* $folder/checkpoints/*/*"
    # shellcheck disable=SC2116,SC2086  # the names that the patterns find
    names=$(echo $names)
    [[ $names == "$before" ]] || changes=$((changes - 1))
    before=$names
    pause 1
  done
  pause $((RANDOM % 12))
}
# While a validation runs: the last record is that of its step.
validation() {
  local lines=() record wanted=$((1 + RANDOM % 4))
  while running && ((wanted > 0)); do
    pause 2
    [[ -e $folder/metrics.jsonl ]] && mapfile -t lines <"$folder/metrics.jsonl"
    ((${#lines[@]} > 0)) || continue
    record=${lines[-1]}
    [[ $record =~ \"kind\":\"(step|interval)\",\"step\":([0-9]+), ]] || continue
    ((BASH_REMATCH[2] % validate_every != 0)) || wanted=$((wanted - 1))
  done
  pause $((RANDOM % 4))
}
moments=(any_time any_time start file_system file_system file_system validation)

# Starts or continues the run in $folder.
launch() {
  local resume=()
  [[ ! -e $folder/deck.in ]] || resume=(-r "$folder")
  "${mpi[@]}" 2 "$TRIREME" -i deck.in "${resume[@]}" "${keys[@]}" "job.output=$folder" \
    >"$scratch/output" 2>&1 </dev/null &
  job=$!
}

# Kills one rank at the moment $1 and waits for the end. False when the run was over before.
disturb() {
  local moment=$1 victims=() victim code=0 begin took=0
  "$moment"
  while running && ((${#victims[@]} == 0)); do mapfile -t victims < <(ranks_of "$job"); done
  victim=
  if ((${#victims[@]} > 0)); then
    victim=${victims[RANDOM % ${#victims[@]}]}
    kill -KILL "$victim" 2>/dev/null || victim=
  fi
  begin=$EPOCHREALTIME
  while running; do
    pause 5
    took=$(ms_since "$begin")
    ((took < limit * 1000)) || { kill -KILL "$job"; fail "$moment: mpirun is there $limit s after a rank was killed"; }
  done
  wait "$job" || code=$?
  ((took <= slowest_ms)) || slowest_ms=$took
  while [[ -n $(survivors) ]]; do
    took=$(ms_since "$begin")
    ((took < limit * 1000)) || fail "$moment: processes are left: $(survivors | tr '\n' ' ')"
    pause 50
  done
  if [[ -z $victim ]]; then
    [[ $code == 0 ]] || fail "exit code $code of a run that nobody killed, continued in $folder"
    return 1
  fi
  # A kill after its last work does not change a run's result: mpirun may still report it.
  # The others may say who is gone, and nothing else.
  if [[ $code != 0 ]] && grep '^trireme: error' output | grep -qv 'a process of the job has ended by itself'; then
    fail "$moment: an error after a kill"
  fi
  counted[$moment]=$((${counted[$moment]:-0} + 1))
}

finished() {
  local file
  for file in model optimizer; do
    cmp "calm/checkpoints/$last/$file.safetensors" "$folder/checkpoints/$last/$file.safetensors" ||
      fail "$folder: $file.safetensors differs (seed $seed)"
  done
  for kind in step valid; do
    diff <(losses calm/metrics.jsonl $kind) <(losses "$folder/metrics.jsonl" $kind) >difference ||
      fail "$folder: losses differ (seed $seed): $(head -n 5 difference)"
  done
}

declare -A counted=()
slowest_ms=0
runs=1 killed=0
folder=run_1
while ((killed < kills)); do
  launch
  if disturb "${moments[RANDOM % ${#moments[@]}]}"; then
    killed=$((killed + 1))
  else
    finished
    rm -rf "$folder"
    runs=$((runs + 1))
    folder=run_$runs
  fi
done
launch
wait "$job" || fail "exit code $? of the last continuation (seed $seed)"
finished
for moment in "${!counted[@]}"; do echo "  ${counted[$moment]} at $moment"; done
echo "$killed kills, $runs runs: the same bytes; a run without kills takes $whole_ms ms, the slowest end $slowest_ms ms"
