#!/usr/bin/env bash
# Signals that arrive in the middle of matrix products, many of them, disturb nothing: oneDNN 2.6 keeps
# data below the stack pointer, so a handler on the same stack would corrupt the heap.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
wide=(model.dim=256 model.heads=8 model.layers=4 model.ffn=2048 data.batch=125
  monitor.validate_every_steps=0 checkpoint.every_steps=0)

for round in 1 2; do
  "$TRIREME" -i deck.in "${wide[@]}" schedule.steps=1000 "job.output=storm_$round" >output 2>&1 &
  job=$!
  for _ in $(seq 200); do
    ! grep -q '"step":1,' "storm_$round/metrics.jsonl" 2>/dev/null || break
    sleep 0.05
  done
  for _ in $(seq 100); do
    kill -USR1 $job 2>/dev/null || break
    sleep 0.002
  done
  code=0
  wait $job || code=$?
  [[ $code == 3 ]] || fail "exit code $code instead of 3"
  run 0 "$TRIREME" -i deck.in "${wide[@]}" -v -r "storm_$round"
done
