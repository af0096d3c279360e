#!/usr/bin/env bash
# Stopped by SIGUSR1, the program leaves with code 3 and a checkpoint; continued, it ends with the bytes
# and the losses of a run that was never stopped.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
steps=(schedule.steps=4000 checkpoint.every_steps=0 monitor.validate_every_steps=0)

run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${steps[@]}" job.output=whole

# The signal goes to the launcher once some steps are done.
stopped() {
  local job code=0
  "${mpi[@]}" 2 "$TRIREME" -i deck.in "${steps[@]}" job.output=parts "$@" >"$scratch/output" 2>&1 &
  job=$!
  for _ in $(seq 200); do
    [[ ! -e parts/metrics.jsonl || $(wc -l <parts/metrics.jsonl) -lt $wanted ]] || break
    sleep 0.05
  done
  kill -USR1 $job
  wait $job || code=$?
  is_stopped "$code" || fail "exit code $code instead of 3 after SIGUSR1"
}
wanted=20
stopped
says "stopped by a signal after step"
first=$(readlink parts/checkpoints/latest)
! grep -q '"kind":"done"' parts/metrics.jsonl || fail "a stopped run says that it is done"
wanted=$(($(wc -l <parts/metrics.jsonl) + 20))
stopped -r parts
second=$(readlink parts/checkpoints/latest)
[[ $first < $second ]] || fail "no new checkpoint after the second stop: $first, $second"
[[ $second < step_00004000 ]] || fail "the run was over before the signal: give it more steps"
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${steps[@]}" job.output=parts -r parts

for file in model optimizer; do
  cmp {whole,parts}/checkpoints/step_00004000/$file.safetensors || fail "$file.safetensors differs"
done
diff <(losses whole/metrics.jsonl step) <(losses parts/metrics.jsonl step) >difference ||
  fail "losses differ: $(head -n 5 difference)"

# Stopped while its batches grow: the same bytes, and each step's tokens are those of its batch.
steps=(schedule.steps=12 schedule.batch_ramp=8 schedule.batch_start=1 checkpoint.every_steps=0 monitor.every_steps=1
  monitor.validate_every_steps=0)
run 0 "$TRIREME" -i deck.in "${steps[@]}" job.output=grown
says "batches grow from 1 to"
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${steps[@]}" job.output=growing
run 0 "$TRIREME" -i deck.in "${steps[@]}" job.output=grows schedule.stop_at=3
run 0 "$TRIREME" -i deck.in "${steps[@]}" job.output=grows -r grows
for file in model optimizer; do
  cmp {grown,grows}/checkpoints/step_00000012/$file.safetensors || fail "$file.safetensors differs"
done
# A length that lies before the step at which the run goes on.
run 0 "$TRIREME" -i deck.in "${steps[@]}" job.output=over schedule.stop_at=3
sed -i '/"kind":"done"/d' over/metrics.jsonl
run 0 "$TRIREME" -r over schedule.steps=2
grep -q '"kind":"done"' over/metrics.jsonl || fail "the shortened run did not end"
"$python" - <<'PYTHON' || fail "the tokens of steps are not those of batches that grow"
import json
def tokens(run):
    lines = map(json.loads, open(run + "/metrics.jsonl"))
    return [line["tokens"] for line in lines if line["kind"] == "step"]
deck = dict(line.split(" = ") for line in open("deck.in").read().split("\n") if " = " in line)
batch, length = int(deck["batch"].split()[0]), int(deck["sequence_length"].split()[0])
wanted = [0]
for step in range(12):
    size = 1 + (batch - 1) * step // 8 if step < 8 else batch
    wanted.append(wanted[-1] + size)
# A window may lack a target.
windows = [round(count / length) for count in tokens("grown")]
assert tokens("grown") == tokens("growing") == tokens("grows") and windows == wanted[1:], (windows, wanted)
PYTHON

# Products in bf16 by fp32 ones: said, kept where the run goes on, refused without bf16.
steps=(schedule.steps=12 checkpoint.every_steps=0 monitor.validate_every_steps=0 run.precision=bf16)
run 0 "$TRIREME" -i deck.in "${steps[@]}" run.bf16_products=fp32 job.output=rounded
says "precision bf16 by fp32 products: run.bf16_products = fp32"
run 0 "$TRIREME" -i deck.in "${steps[@]}" run.bf16_products=fp32 job.output=rounds schedule.stop_at=5
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${steps[@]}" job.output=both -r rounds
says "precision bf16 by fp32 products: as the run began"
run 0 "$TRIREME" -i deck.in "${steps[@]}" job.output=rounds -r rounds
for file in model optimizer; do
  cmp {rounded,rounds}/checkpoints/step_00000012/$file.safetensors || fail "$file.safetensors differs"
done
grep -q '"bf16_products": *"fp32"' rounds/checkpoints/latest/run.json || fail "run.json does not say how bf16 is multiplied"
run 2 "$TRIREME" -i deck.in run.bf16_products=fp32 job.output=refused
says "run.bf16_products = fp32: belongs to run.precision = bf16"
is_missing refused

# Killed without a warning, a run goes on from its last checkpoint and ends in the same bytes.
steps=(schedule.steps=4000 checkpoint.every_steps=500 monitor.validate_every_steps=0)
run 0 "$TRIREME" -i deck.in "${steps[@]}" job.output=calm
"$TRIREME" -i deck.in "${steps[@]}" job.output=killed >output 2>&1 &
job=$!
for _ in $(seq 400); do
  [[ ! -e killed/checkpoints/latest ]] || break
  sleep 0.02
done
kill -KILL $job
wait $job 2>/dev/null && fail "the run was over before it was killed: give it more steps"
is_missing killed/checkpoints/step_00004000
run 0 "$TRIREME" -i deck.in "${steps[@]}" -r killed job.output=killed
for file in model optimizer; do
  cmp {calm,killed}/checkpoints/step_00004000/$file.safetensors || fail "$file.safetensors differs"
done
