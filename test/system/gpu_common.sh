# shellcheck shell=bash
# Sourced behind common.sh by the tests of the program on GPUs, or on emulated ones.
"$TRIREME" --version >"$scratch/version" 2>&1 || fail "--version"
if grep -qF "no CUDA device" "$scratch/version"; then
  skip "no CUDA device: $(grep -F 'no CUDA device' "$scratch/version")"
fi
# Cards here; the emulator has as many as any test has ranks, unless it is told how many.
# shellcheck disable=SC2034  # used by those who source this
cards=$(grep -oE '[0-9]+ GPU' "$scratch/version" | grep -oE '^[0-9]+' || echo 8)
export TRIREME_EMULATOR_DEVICES=${TRIREME_EMULATOR_DEVICES:-8}
# sharing_for RANKS: sets the array `sharing` to the keys that so many ranks need on the cards here. By NCCL where it
# allows it, up to four ranks a card; else through the host.
sharing_for() {
  local nccl ranks=$1
  nccl=$(sed -nE 's/.*NCCL ([0-9]+)\.([0-9]+)\..*/\1 \2/p' "$scratch/version" | head -n 1)
  # shellcheck disable=SC2034  # used by those who source this
  if ((ranks <= cards)); then
    sharing=()
  elif ((ranks <= 4 * cards)) && [[ -n $nccl ]] && ((${nccl% *} * 100 + ${nccl#* } >= 230)); then
    sharing=(run.share_device=nccl)
  else
    sharing=(run.share_device=yes)
  fi
}
# Algorithms chosen for products are kept for this test alone.
export XDG_CACHE_HOME=$scratch/cache

# agree TOLERANCE RUN RUN [FROM]: training losses of two runs, relative, in the steps after FROM.
agree() {
  "$python" - "$@" <<'PYTHON' || fail "losses of $2 and $3 differ"
import json, sys
tolerance, first = float(sys.argv[1]), int(sys.argv[4]) if len(sys.argv) > 4 else 0
def losses(run):
    records = map(json.loads, open(run + "/metrics.jsonl", encoding="utf-8"))
    return {r["step"]: r["loss"] for r in records if r["kind"] == "step" and r["step"] > first}
a, b = losses(sys.argv[2]), losses(sys.argv[3])
assert a and a.keys() == b.keys(), (sorted(a), sorted(b))
worst = max(abs(a[s] - b[s]) / abs(b[s]) for s in a)
print(f"{sys.argv[2]} and {sys.argv[3]}: {len(a)} steps, worst relative difference {worst:.1e}")
sys.exit(not worst <= tolerance)
PYTHON
}
# train NAME RANKS KEY...: a run in its own folder.
train() {
  local name=$1 ranks=$2
  shift 2
  run 0 timeout 200 "${mpi[@]}" "$ranks" "$TRIREME" -i deck.in "job.output=$name" "$@"
}
# Of the card; and whether RUN's products were fp8's, by its checkpoint.
has_fp8() { ! "$TRIREME" -i deck.in -v run.device=cuda run.precision=fp8 2>&1 | grep -F "has no fp8 products"; }
takes_fp8() { grep -q e4m3 "$1"/checkpoints/*10/run.json || fail "$1 multiplied no fp8"; }
