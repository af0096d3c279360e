#!/usr/bin/env bash
# test/one_card.sh, rehearsed on one emulated card with an NCCL that lets ranks share it: every part but
# the tests of kernels and layouts, which run by themselves, and compute-sanitizer.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
build=$(dirname "$TRIREME")
export TRIREME_EMULATOR_DEVICES=1 TRIREME_EMULATOR_NCCL_VERSION=23000 TRIREME_DEVICE_LABEL=gpu XDG_CACHE_HOME=$scratch/cache
export ONE_CARD_MODELS=tiny ONE_CARD_TABLES=tiny ONE_CARD_KERNELS="tiny only=norm"
one_card() { # CODE OPTION...
  run "$1" timeout 280 bash "$TRIREME_SOURCE/test/one_card.sh" -B "$build" -o "$scratch/out" "${@:2}"
  "$python" -c '
import sys, tarfile
names = tarfile.open("out/one_card.tar.xz").getnames()
sys.exit(not {"version", "table"} <= set(names) and f"one_card.tar.xz has only {names}")' || fail "the archive"
}

one_card 0 --only versions,meet,deaths,benchmark,tables,memory,eager
# A verdict of each part as it ends, and the table of all in the end.
for part in versions meet deaths benchmark tables memory eager; do
  [[ $(grep -cE "^$part +passed +[0-9]+ s  [^ ]" output) == 2 ]] || fail "$part: no verdict"
done
grep -qE '^meet .* yes/auto: [0-9.]+ ms a step, losses within 0.0e\+00; nccl/auto: .*; nccl/no: .*losses within ([0-9.]+e-0[5-9]|0.0e.00);' out/table ||
  fail "two ranks that meet: $(grep '^meet' out/table)"
[[ -s out/kernels-tiny-yes.txt && -s out/memory-kernels && -s out/benchmark/ours-tiny-fp32 ]] || fail "a part's figures are missing"

# What the card refuses, a part that the time does not suffice for, and a run that is cut off: each is said, what there is is kept.
TRIREME_EMULATOR_NCCL_VERSION=22602 one_card 1 --only versions,meet
grep -qE '^meet +FAILED .* nccl/auto: code 2;' out/table || fail "an NCCL that lets no ranks share a card: $(cat out/table)"
one_card 0 --only versions,meet --budget 10
grep -qE '^meet +not run: ' out/table || fail "a part beyond the budget: $(cat out/table)"
rm -r out
bash "$TRIREME_SOURCE/test/one_card.sh" -B "$build" -o "$scratch/out" --only versions,layouts >output 2>&1 &
for ((i = 0; i < 300; ++i)); do
  ! grep -q '^versions' out/table 2>/dev/null || break
  sleep 0.1
done
began=$SECONDS
kill -TERM $!
! wait $! || fail "a script that was cut off ended with 0"
says "one_card.tar.xz: "
((SECONDS - began < 10)) || fail "a script that was cut off went on for $((SECONDS - began)) s"
! pgrep -f "$scratch/out" >/dev/null || fail "processes of a script that was cut off are left"
TRIREME_EMULATOR_DEVICES=0 run 77 bash "$TRIREME_SOURCE/test/one_card.sh" -B "$build" -o "$scratch/none"
