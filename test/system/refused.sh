#!/usr/bin/env bash
# Refusals: set-ups that sharding, context parallelism or canonical arithmetic do not support, and a job that
# its node's memory cannot hold: exit code 2, a hint at what fits, and nothing written.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
sed -i 's/^heads = .*/heads = 4/' deck.in
tokens

# refused RANKS OVERRIDES...
refused() {
  local ranks=$1
  shift
  run 2 "${mpi[@]}" "$ranks" "$TRIREME" -i deck.in job.output=refused "$@"
  says_once "error:"
  is_missing refused
}

# 1. Layouts.
refused 4 grid.context=2 run.canonical=4x2
says "command line: grid.context = 2: a ring adds up attention in an order of its own"
says "What fits: grid.context = 1, or run.canonical = none."
refused 2 run.canonical=3x2
says 'command line: run.canonical = 3x2: "3x2" is not DxT with powers of two D and T'
says "What fits: none, or for example 4x2"
refused 3 run.canonical=4x2
says "grid.data = 0 (default): 3 data ranks do not divide the 4 of run.canonical = 4x2"
says "What fits: 1, 2 or 4 data ranks."
refused 4 grid.tensor=4 run.canonical=4x2
says "command line: grid.tensor = 4: 4 tensor ranks do not divide the 2 of run.canonical = 4x2"
says "What fits: grid.tensor = 1 or 2, or run.canonical = 4x4."
refused 2 run.canonical=4x2 run.canonical_leaf=2 data.micro_batch=3
says "command line: data.micro_batch = 3: it is not a multiple of the leaf, 2 sequences"
says "What fits: data.micro_batch = 2 or 4."
refused 2 run.canonical_leaf=2
says "command line: run.canonical_leaf = 2: run.canonical is none"
refused 4 grid.sharding=parameters grid.shard_group=3
says "command line: grid.shard_group = 3: it does not divide data 4 x context 1 = 4 ranks"
says "What fits: grid.shard_group = 2 or 4, or 0 (all of them)."
refused 4 grid.shard_group=2
says "command line: grid.shard_group = 2: nothing is sharded with grid.sharding = none"
says "What fits: grid.sharding = optimizer, gradients or parameters; or leave grid.shard_group out."
refused 2 grid.sharding=zero3
says "command line: grid.sharding = zero3: not one of none, optimizer, gradients, parameters"
refused 2 grid.shard_grop=2
says "Did you mean grid.shard_group?"

# 2. A checkpoint of one canonical arithmetic does not go on with another; with none it does, said.
wrong=(run.canonical=4x2 run.canonical_leaf=1)
run 0 "$TRIREME" -i deck.in job.output=canonical "${wrong[@]}" schedule.stop_at=2
listing() { find canonical -type f -exec sha256sum {} + | sort; }
listing >before
another() { # DxT LEAF OVERRIDES...
  run 2 "$TRIREME" -i deck.in job.output=canonical -r canonical "run.canonical=$1" "run.canonical_leaf=$2" "${@:3}"
  says_once "canonical/checkpoints/step_00000002: it was written by canonical arithmetic 4x2, leaf 1, fp32, "
  says "this run has $1, leaf $2, "
  says "Continue with the same run.canonical, run.canonical_leaf, run.precision and instruction set"
  diff before <(listing) || fail "a refused resume wrote something"
}
another 4x2 2
another 2x2 1
another 4x1 1
another 4x2 1 run.precision=fp64
cp -r canonical plain
run 0 "$TRIREME" -i deck.in job.output=plain -r plain schedule.stop_at=3
says_once 'warning: run.canonical is none now and was 4x2, leaf 1, fp32, '
run 0 "$TRIREME" -i deck.in job.output=begun schedule.stop_at=2
run 0 "$TRIREME" -i deck.in job.output=begun -r begun "${wrong[@]}" schedule.stop_at=3
says_once 'warning: run.canonical is 4x2, leaf 1, fp32, '
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=canonical -r canonical "${wrong[@]}" \
  grid.sharding=optimizer schedule.stop_at=3
! unexpected_warnings || fail "a warning about the same arithmetic"

# 3. Terabytes are refused before anything is taken, quickly, by a program that stays small.
vast=(model.dim=16384 model.heads=64 model.layers=48 model.ffn=65536)
for validate in "" -v; do
  too_large refused "one rank of this node plans" "$TRIREME" -i deck.in job.output=refused "${vast[@]}" ${validate:+"$validate"}
  says "(parameters 576."
  says " GiB + gradients 576."
  says " GiB + moments 1152."
  says "What helps: "
done
refused 2 "${vast[@]}" grid.sharding=optimizer
says_once "error: memory: the 2 ranks of this node plan"
says "grid.sharding = parameters (shares out "
refused 2 "${vast[@]}" grid.tensor=2 run.canonical=4x2
says_once "error: memory: the 2 ranks of this node plan"
says "gradients 1728."  # three levels

# 4. Token files that claim what is not there: one message, quickly, by ranks that stay small.
hostile() { # DATASET REASON, patched by Python from the standard input with data, patch(from, to)
  { cat <<'PYTHON'; cat; } >patch.py
import struct, sys
data = open("harbour.h5", "rb").read()
def number(value): return struct.pack("<Q", value)
def patch(old, new):
    global data
    if data.count(old) != 1: sys.exit(f"{data.count(old)} places to patch")
    data = data.replace(old, new)
heap = data.index(b"GCOL")
PYTHON
  echo 'open("hostile.h5", "wb").write(data)' >>patch.py
  "$python" patch.py || fail "no hostile file for $1"
  run 2 small "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=hostile.h5 job.output=refused
  says_once "error:"
  says_once "hostile.h5: $1: $2"
  is_missing refused
  run 2 small "$TRIREME" -i deck.in data.file=hostile.h5 job.output=refused -v
  says_once "hostile.h5: $1: $2"
}
# The heap's texts of 64 bytes: the hash of the source, as its attribute refers to it.
hostile "attribute source_sha256" "claims 4294967295 bytes, more than 65536" <<'PYTHON'
patch(struct.pack("<IQ", 64, heap), struct.pack("<IQ", 2**32 - 1, heap))
PYTHON
hostile "attribute source_sha256" "its 64 bytes are not in the file" <<'PYTHON'
patch(struct.pack("<IQ", 64, heap), struct.pack("<IQ", 64, 2**62))
PYTHON
# A dataset of one dimension and of a fixed extent: 2,000 tokens; 2^62 of 2 bytes do not fit 63 bits.
hostile "/train/tokens" "4611686018427387904 elements of 2 bytes are too many" <<'PYTHON'
patch(number(0x010101) + number(2000) + number(2000), number(0x010101) + number(2**62) * 2)
PYTHON
hostile "/train/tokens" "1099511627776 bytes of storage expected for 549755813888 elements of 2 bytes, " <<'PYTHON'
patch(number(0x010101) + number(2000) + number(2000), number(0x010101) + number(2**39) * 2)
PYTHON
