#!/usr/bin/env bash
# The number of ranks changes nothing but the speed: losses of 1, 2 and 4 ranks agree to 1e-5, and so
# does a checkpoint of 2 ranks continued on 3.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens

for count in 1 2 4; do
  run 0 "${mpi[@]}" "$count" "$TRIREME" -i deck.in "job.output=ranks_$count"
done
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=mixed schedule.stop_at=10
run 0 "${mpi[@]}" 3 "$TRIREME" -i deck.in job.output=mixed -r mixed

"$python" - ranks_1 ranks_2 ranks_4 mixed <<'PYTHON' || fail "losses differ"
import json, sys
TOLERANCE = 1e-5  # relative, over 20 steps in fp32: numerical rule 4
runs = {}
for name in sys.argv[1:]:
    records = [json.loads(line) for line in open(f"{name}/metrics.jsonl", encoding="utf-8")]
    runs[name] = {(r["kind"], r["step"]): r["loss"] for r in records if r["kind"] in ("step", "valid")}
reference = runs[sys.argv[1]]
assert len(reference) == 22, sorted(reference)
for name, losses in runs.items():
    assert losses.keys() == reference.keys(), (name, sorted(losses.keys() ^ reference.keys()))
    worst = max(abs(losses[k] - reference[k]) / reference[k] for k in reference)
    print(f"{name}: {worst:.1e}")
    assert worst < TOLERANCE, (name, worst)
PYTHON
