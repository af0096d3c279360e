#!/usr/bin/env bash
# Runs a fuzz target: `run.sh PROGRAM fuzz|nightly SECONDS`, from its seeds in test/fuzz/seeds.json and, nightly, from
# all that earlier nights found. Limits: 1 MiB of input, 10 s and one allocation of 32 MiB for each input.
# `run.sh PROGRAM seeds`: the program of all targets, on all seeds.
set -euo pipefail
program=$1 kind=$2 seconds=${3:-}
target=${program##*/fuzz_}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# In memory where there is a place for it.
TMPDIR=$(mktemp -d "/dev/shm/trireme_fuzz.XXXXXX" 2>/dev/null || mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
seeds=$TMPDIR/seeds
"${TRIREME_PYTHON:-python3}" "$here/../packed.py" unpack "$here/seeds.json" "$seeds"
if [[ $kind == seeds ]]; then
  "$program" "$seeds"
  exit
fi
out=$(dirname "$program")/fuzz/$target
mkdir -p "$out/corpus" "$out/findings"
found=$out/corpus
if [[ $kind == fuzz ]]; then
  found=$TMPDIR/corpus
  mkdir "$found"
fi
export ASAN_OPTIONS=quarantine_size_mb=16:detect_stack_use_after_return=1:allocator_may_return_null=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# HDF5 1.10 keeps a block of its own when it fails to open a damaged file.
echo leak:libhdf5 >"$TMPDIR/known_leaks"
export LSAN_OPTIONS=suppressions=$TMPDIR/known_leaks:print_suppressions=0
status=0
"$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=512 -malloc_limit_mb=32 -print_final_stats=1 \
  -verbosity=1 -artifact_prefix="$out/findings/" "$found" "$seeds/$target" >"$out/log" 2>&1 || status=$?
grep -E '^(stat::number_of_executed_units|stat::peak_rss_mb|stat::average_exec_per_sec)' "$out/log" || true
[[ $status == 0 ]] && exit 0
grep -vE '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse|INITED|READ)' "$out/log" | tail -n 80
echo "FINDING of the fuzz target $target: repair it, and put the input (Test unit written to ...) into test/fuzz/seeds.json (test/packed.py)"
exit 1
