#!/usr/bin/env bash
# A disk that fills up: exit code 1, one message, and the checkpoint before it can still be read.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $(id -u) == 0 ]] || skip "only root can mount a small file system"
mkdir disk
mount -t tmpfs -o size=16m,nr_inodes=400 tmpfs disk 2>/dev/null || skip "tmpfs cannot be mounted here"
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

# The file system takes a few more files, and then none, though it has free bytes: the message says so. How many files a start
# needs before its first checkpoint is not known here.
mkdir disk/names
found=no
for spare in 6 8 10 12 14 16; do
  rm -rf disk/names/* disk/other
  free=$(df --output=iavail disk | tail -n 1)
  (cd disk/names && seq $((free - spare)) | xargs touch)
  "$TRIREME" -i deck.in job.output=disk/other checkpoint.every_steps=1 monitor.tensorboard=no >output 2>&1 && fail "no file was missing"
  ! grep -q "No space left on device.*: 0 more files fit on disk/other/checkpoints (df -i)" output || found=yes
  [[ $found == no ]] || break
done
[[ $found == yes ]] || fail "nothing is said of files: $(cat output)"
rm -r disk/names disk/other

# A token file that does not fit leaves nothing behind.
dd if=/dev/zero of=disk/filler bs=64k >/dev/null 2>&1 || true
run 1 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour data.file=disk/tokens.h5
says "disk/tokens.h5"
[[ -z $(find disk -name '*tokens*') ]] || fail "a part of a token file was left: $(find disk -name '*tokens*')"

# Texts likewise, on two ranks; but room for all tokens and some more is enough: they are not kept twice.
PYTHONPATH=$TRIREME_SOURCE/test/python "$python" - <<'PYTHON'
import json, random
from texts import WORDS, small_bpe
json.dump(small_bpe("<|endoftext|>"), open("tokenizer.json", "w", encoding="utf-8"))
random.seed(1)
lines = [" ".join(random.choices(WORDS, k=40)) for _ in range(1000)]
with open("texts.txt", "w", encoding="utf-8") as file:
    for _ in range(130):
        file.write("\n".join(lines) + "\n")
PYTHON
texts=(-i deck.in job.task=tokenize tokenize.kind=bpe tokenize.tokenizer=tokenizer.json tokenize.train=texts.txt
  tokenize.document=line data.file=disk/tokens.h5)
for size in 1 12; do
  rm -f disk/filler
  dd if=/dev/zero of=disk/filler bs=1M count=$((16 - size)) >/dev/null 2>&1 || true
  run 1 "${mpi[@]}" 2 "$TRIREME" "${texts[@]}"
  says "No space left on device"
  says "let data.file name another disk"
  [[ -z $(find disk -name '*tokens*') ]] || fail "a part of a token file was left: $(find disk -name '*tokens*')"
done
rm disk/filler
if mount -o remount,size=70m disk 2>/dev/null; then
  run 0 "$TRIREME" "${texts[@]}"
  size=$(stat -c %s disk/tokens.h5)
  ((size > 40 * 1000 * 1000)) || fail "the token file has only $size bytes: it would fit twice"
fi
