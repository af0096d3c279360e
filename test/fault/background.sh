# shellcheck shell=bash
# shellcheck disable=SC2154  # scratch and python are of common.sh
# Sourced after common.sh by tests that disturb a run in the background: $job is its process, log its
# output. A test may stop it with SIGSTOP to change something at a known moment.
job=

# A pause without a process of its own, s.
exec {never}<> <(:)
pause() { read -rt "$1" -u "$never" _ || true; }

background_leave() {
  # shellcheck disable=SC2046  # one word a process
  [[ -z $job ]] || kill -KILL $(pgrep -P "$job") "$job" 2>/dev/null || true
  leave
}
trap background_leave EXIT

fail_with_log() {
  [[ ! -s $scratch/log ]] || cp "$scratch/log" "$scratch/output"
  fail "$@"
}

# begins COMMAND...: in the background.
begins() {
  "$@" >"$scratch/log" 2>&1 </dev/null &
  job=$!
}
# awaits FILE TEXT [COUNT]: so many lines of FILE with TEXT, 1 unless stated, while the job runs.
awaits() {
  local found end=$((SECONDS + 30))
  while true; do
    found=$(grep -cF -- "$2" "$1" 2>/dev/null) || found=${found:-0}
    ((found < ${3:-1})) || return 0
    kill -0 "$job" 2>/dev/null || fail_with_log "the job has ended before $1 says: $2"
    ((SECONDS < end)) || fail_with_log "after 30 s $1 does not say: $2"
    pause 0.01
  done
}
# holds, goes_on: between two calls of the system; for a job of one process.
holds() { kill -STOP "$job" || fail_with_log "the job has ended"; }
goes_on() { kill -CONT "$job"; }
# ends CODE: the job does.
ends() {
  local code=0
  wait "$job" || code=$?
  job=
  cp "$scratch/log" "$scratch/output"
  [[ $code == "$1" ]] || fail "exit code $code instead of $1"
}
# killed: it is, at once.
killed() {
  # shellcheck disable=SC2046  # one word a process
  kill -KILL $(pgrep -P "$job") "$job" 2>/dev/null || true
  wait "$job" 2>/dev/null || true
  job=
}

count() { grep -cF -- "$2" "$1" || true; }
# same_end RUN RUN [KIND...]: the weights and moments of both, and the losses of these kinds.
same_end() {
  local file kinds=("${@:3}")
  ((${#kinds[@]} > 0)) || kinds=(step valid test)
  for file in model optimizer; do
    cmp "$1/checkpoints/latest/$file.safetensors" "$2/checkpoints/latest/$file.safetensors" ||
      fail_with_log "$2: $file.safetensors differs from $1's"
  done
  "$python" - "$1" "$2" "${kinds[@]}" >difference <<'PYTHON' || fail_with_log "losses differ: $(cat difference)"
import json, sys

def losses(run):
    records = map(json.loads, open(run + "/metrics.jsonl", encoding="utf-8"))
    return [(r["kind"], r["step"], r["loss"]) for r in records if r["kind"] in sys.argv[3:]]

one, other = losses(sys.argv[1]), losses(sys.argv[2])
for pair in zip(one, other):
    if pair[0] != pair[1]:
        sys.exit(print(sys.argv[1:3], pair) or 1)
if len(one) != len(other) or not one:
    sys.exit(print(sys.argv[1:3], len(one), "and", len(other), "records") or 1)
PYTHON
}
