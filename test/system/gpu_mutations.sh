#!/usr/bin/env bash
# Tests of the tests: with one barrier of a kernel, or one wait for copies, left out the kernel tests fail, with one wait of a
# queue for another a training's losses or norms differ from the CPU's. A sample; "all": every one.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=test/system/gpu_common.sh
source "$TRIREME_SOURCE/test/system/gpu_common.sh"
[[ ${TRIREME_DEVICE_LABEL:-} == emulated ]] || skip "a real GPU leaves nothing out"
all=${1:-}
programs=$(dirname "$TRIREME")
export programs

# Whether any of three orders shows that number NUMBER of KIND is left out: "caught ..." or "missed ...".
# barrier PROGRAM FILTER KIND NUMBER: by the tests of a program.
barrier() {
  local seed code verdict=missed
  for seed in 1 2 3; do
    code=0
    TRIREME_EMULATOR_SEED=$seed TRIREME_EMULATOR_OMIT=$3:$4 timeout 120 "$programs/$1" "--gtest_filter=$2" \
      --gtest_fail_fast >/dev/null 2>&1 </dev/null || code=$?
    ((code == 0)) || { verdict=caught && break; }
  done
  echo "$verdict $1 $3:$4"
}
export -f barrier

# spread COUNT WANTED: that many numbers below COUNT, or all of them.
spread() {
  local i count=$1 wanted=$2
  if [[ $all == all ]] || ((wanted > count)); then wanted=$count; fi
  for ((i = 0; i < wanted; ++i)); do echo $(((2 * i + 1) * count / (2 * wanted))); done
}
# count_of KIND: as the last program wrote it to ./output.
count_of() { awk -v kind="$1" '$1 == "emulated" && $3 == kind { print $4; exit }' output; }

# barriers PROGRAM FILTER WANTED WANTED_OF_WARPS WANTED_OF_COPIES: adds to ./judged.
barriers() {
  local program=$1 filter=$2 kind number
  [[ -x $programs/$program ]] || skip "$program was not built"
  run 0 env TRIREME_EMULATOR_OMIT=count "$programs/$program" "--gtest_filter=$filter"
  for kind in barrier:$3 warp_barrier:$4 copy_wait:$5; do
    for number in $(spread "$(count_of "${kind%:*}")" "${kind#*:}"); do
      printf '%s\0%s\0%s\0%s\0' "$program" "$filter" "${kind%:*}" "$number"
    done
  done | xargs -0 -r -n 4 -P 2 bash -c 'barrier "$@"' barrier >>judged
}
rowwise='*RowwiseNorm*fp32*:*RowwiseSums*fp32*:*RowwiseUpdate*'
[[ $all != all ]] || rowwise='*'
barriers kernels_cuda_products_test '*' 5 0 0
barriers kernels_cuda_attention_test '*' 8 3 4
# Warps': none. Votes stand between them, and bring the emulator's lanes together too.
barriers kernels_cuda_rowwise_test "$rowwise" 6 0 0

# Waits: in three steps of two tensor ranks, whose every product is followed by a sum that the next
# kernel reads.
tiny_deck
tokens
keys=(schedule.steps=3 schedule.warmup_steps=1 monitor.validate_every_steps=0 checkpoint.every_steps=100)
train cpu 1 run.device=cpu "${keys[@]}"
# trained STEPS: by two tensor ranks, with what the environment leaves out, to its end.
trained() {
  rm -rf mutated
  timeout 60 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=mutated run.device=cuda run.graphs=no grid.tensor=2 \
    "${keys[@]}" "schedule.stop_at=$1" >output 2>&1 </dev/null
}
same_steps() {
  "$python" - "$@" <<'PYTHON'
import json, sys
def steps(run):
    records = map(json.loads, open(run + "/metrics.jsonl", encoding="utf-8"))
    return [(r["loss"], r["grad_norm"]) for r in records if r["kind"] == "step"]
a, b = steps(sys.argv[1]), steps(sys.argv[2])
same = len(a) == len(b) and all(abs(x - y) <= 1e-6 * abs(y) for s, t in zip(a, b) for x, y in zip(s, t))
sys.exit(not same)
PYTHON
}
export TRIREME_EMULATOR_OMIT=count
if ! trained 3 || ! same_steps mutated cpu; then fail "two tensor ranks differ from the CPU"; fi
three=$(count_of wait)
trained 1 || fail "one step"
step=$(((three - $(count_of wait)) / 2)) # waits of one; the rehearsal before the first has about as many
((step > 8)) || fail "$step waits a step"
for number in $(spread $((3 * step)) 7); do
  # The first and the last of a step are those of the tokens' copy, which the host's own waits for
  # earlier copies hide here: driver_cuda_emulated_test leaves them out.
  (((number + 1) % step > 1)) || continue
  verdict=missed
  for seed in 1 2 3; do
    export TRIREME_EMULATOR_SEED=$seed TRIREME_EMULATOR_OMIT=wait:$((step + number))
    if trained 3 && same_steps mutated cpu; then continue; fi
    verdict=caught
    break
  done
  echo "$verdict training wait:$((step + number)) of $step a step" >>judged
done

cat judged
echo "$(grep -c ^caught judged) of $(grep -c . judged) caught"
! grep -q '^missed training' judged || fail "left out, and no test noticed: see above"
# Of barriers one in ten may stay: a compiler copies one to paths of threads that read nothing more.
(($(grep -c ^missed judged) * 10 <= $(grep -c . judged))) || fail "left out, and no test noticed: see above"
