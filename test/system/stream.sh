#!/usr/bin/env bash
# data.staging = stream: a token file four times as large as the memory that a process may have trains;
# losses are those of tokens in memory; a file written by h5py to the documented format works; a file
# that shrinks or is written to while it is read, and a bad token in it, are named.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck

# Four GiB of tokens of 256 types, by h5py.
"$python" - <<'PYTHON' || skip "no room for 5 GB, or no h5py"
import h5py, numpy as np, shutil, sys
if shutil.disk_usage(".").free < 6 << 30:
    sys.exit(1)
rng = np.random.default_rng(1)
piece = rng.integers(0, 256, 1 << 24, dtype=np.uint16)
with h5py.File("large.h5", "w") as file:
    file.attrs["format"] = 1
    file.attrs["tokenizer"] = "byte"
    file.attrs["eos"], file.attrs["unk"] = 10, -1
    file.attrs["source_sha256"] = "0" * 64
    file["vocabulary/bytes"] = np.arange(256, dtype=np.uint8)
    file["vocabulary/offsets"] = np.arange(257, dtype=np.uint64)
    for split, count in (("train", 1 << 31), ("valid", 2000), ("test", 2000)):
        tokens = file.create_dataset(f"{split}/tokens", count, np.uint16)
        for begin in range(0, count, piece.size):
            tokens[begin:begin + piece.size] = piece[:count - begin]
    file["train/documents"] = np.arange(0, 1 << 31, 1 << 16, dtype=np.uint64)
PYTHON
keys=(data.file=large.h5 data.document_mask=no monitor.validate_every_steps=5 schedule.steps=10)
limited() { (ulimit -v $((1 << 20)) && exec "$@"); }  # KiB: one GiB of addresses
run 0 limited "$TRIREME" -i deck.in "${keys[@]}" data.staging=stream job.output=streamed
run 1 limited "$TRIREME" -i deck.in "${keys[@]}" data.staging=none job.output=none
run 0 limited "$TRIREME" job.task=evaluate -r streamed
run 0 limited "$TRIREME" job.task=generate generate.tokens=4 -r streamed
rm large.h5

# Any staging, any layout of the same ranks: the same bits.
tokens
train() { run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in grid.tensor=2 "${@:2}" job.output="$1"; }
train memory
train stream data.staging=stream data.read_ahead=1
[[ $(losses memory/metrics.jsonl step) == "$(losses stream/metrics.jsonl step)" ]] || fail "a stream has other losses"
[[ $(losses memory/metrics.jsonl valid) == "$(losses stream/metrics.jsonl valid)" ]] || fail "a stream has other validation losses"

# changed MESSAGE COMMAND...: a job that streams a copy ends with the message when the command is done to it.
changed() {
  cp harbour.h5 copy.h5
  rm -rf changed
  "$TRIREME" -i deck.in data.file=copy.h5 data.staging=stream job.output=changed schedule.steps=1000000 \
    monitor.validate_every_steps=0 >output 2>&1 </dev/null &
  local job=$! code=0
  for _ in $(seq 200); do
    ! grep -q '"kind":"step"' changed/metrics.jsonl 2>/dev/null || break
    sleep 0.05
  done
  "${@:2}"
  wait $job || code=$?
  [[ $code == 1 ]] || fail "exit code $code instead of 1 from a job whose file changed: $*"
  says "copy.h5"
  says "$1"
}
changed "this job opened it" truncate -s 3000 copy.h5
changed "was written to since this job opened it" touch copy.h5
changed "was written to since this job opened it" "$python" -c '
import h5py
with h5py.File("copy.h5", "r+") as file:
    file["train/tokens"][:] = 7'
rm copy.h5

"$python" - <<'PYTHON'
import h5py
with h5py.File("harbour.h5", "r+") as file:
    tokens = file["train/tokens"]
    tokens[1000:] = 60000
PYTHON
run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.staging=stream grid.tensor=2 job.output=bad
says "harbour.h5: /train/tokens: token at offset"
says "has id 60000, but the vocabulary has"
run 2 "$TRIREME" -i deck.in data.staging=steram
says "stream"
