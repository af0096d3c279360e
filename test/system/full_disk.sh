#!/usr/bin/env bash
# A disk that fills up: exit code 1, one message, and the checkpoint before it can still be read.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $(id -u) == 0 ]] || skip "only root can mount a small file system"
mkdir disk
mount -t tmpfs -o size=16m tmpfs disk 2>/dev/null || skip "tmpfs cannot be mounted here"
leave() {
  cd /
  umount "$scratch/disk" || umount -l "$scratch/disk"
  rm -rf "$scratch"
}
tiny_deck
tokens

run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=disk/run schedule.stop_at=10
cp disk/run/checkpoints/step_00000010/model.safetensors before
dd if=/dev/zero of=disk/filler bs=64k >/dev/null 2>&1 || true
run 1 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=disk/run -r disk/run
says_once "error:"
says "disk/run"
is_missing disk/run/checkpoints/step_00000020
cmp before disk/run/checkpoints/step_00000010/model.safetensors || fail "the earlier checkpoint changed"

rm disk/filler
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=disk/run -r disk/run
exists disk/run/checkpoints/step_00000020

# A token file that does not fit leaves nothing behind.
dd if=/dev/zero of=disk/filler bs=64k >/dev/null 2>&1 || true
run 1 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour data.file=disk/tokens.h5
says "disk/tokens.h5"
[[ -z $(find disk -name '*tokens*') ]] || fail "a part of a token file was left: $(find disk -name '*tokens*')"
