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
# Replaced or removed under its name, it is read on, by validations too.
for change in 'mv other.h5 copy.h5' 'rm copy.h5'; do
  cp harbour.h5 copy.h5
  run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour data.file=other.h5 \
    tokenize.harbour_tokens=1000 tokenize.harbour_seed=2 tokenize.overwrite=yes
  rm -rf changed
  "$TRIREME" -i deck.in data.file=copy.h5 data.staging=stream job.output=changed schedule.steps=1000 \
    monitor.validate_every_steps=100 checkpoint.every_steps=0 >output 2>&1 </dev/null &
  job=$!
  for _ in $(seq 200); do
    ! grep -q '"kind":"step"' changed/metrics.jsonl 2>/dev/null || break
    sleep 0.05
  done
  $change
  wait $job || fail "a job whose file was replaced ended with code $?: $change"
  [[ $(losses changed/metrics.jsonl valid | wc -l) == 10 ]] || fail "validations are missing after: $change"
  rm -f copy.h5
done

# ends_together MESSAGE COMMAND...: four ranks of two replicas leave with code 1 and one message, of the
# world's ranks, through MPI_Finalize.
ends_together() {
  run 1 "${mpi[@]}" 4 "$TRIREME" "${@:2}" grid.data=2
  says_once "trireme: error"
  says_once "$1"
  ! grep -q MPI_ABORT output || fail "ranks were aborted"
}
"$python" - <<'PYTHON'
import h5py, shutil
for split in ("train", "valid"):
    name = f"bad_{split}.h5"
    shutil.copy("harbour.h5", name)
    with h5py.File(name, "r+") as file:
        tokens = file[f"{split}/tokens"]
        tokens[len(tokens) - 200:len(tokens) - 190] = 60000  # of the second replica's windows in a validation
PYTHON
for layout in grid.tensor=2 grid.pipeline=2 grid.sharding=parameters; do
  [[ $layout == grid.sharding* ]] && layout="$layout grid.tensor=2"
  rm -rf bad
  # shellcheck disable=SC2086  # several keys
  ends_together "error: bad_train.h5: /train/tokens: token at offset 18" \
    -i deck.in data.staging=stream data.file=bad_train.h5 job.output=bad $layout
  says "has id 60000, but the vocabulary has"
  is_missing bad/run.lock
  rm -rf bad
  # shellcheck disable=SC2086
  ends_together "error: bad_valid.h5: /valid/tokens: token at offset" \
    -i deck.in data.staging=stream data.file=bad_valid.h5 job.output=bad $layout
  is_missing bad/run.lock
done
run 0 "$TRIREME" -i deck.in job.output=good
ends_together "error: bad_valid.h5: /valid/tokens: token at offset" \
  -r good job.task=evaluate data.staging=stream data.file=bad_valid.h5 grid.tensor=2
# A file that is cut off while all ranks read it.
cp harbour.h5 copy.h5
rm -rf changed
"${mpi[@]}" 4 "$TRIREME" -i deck.in data.file=copy.h5 data.staging=stream grid.data=2 grid.tensor=2 job.output=changed \
  schedule.steps=1000000 monitor.validate_every_steps=0 >output 2>&1 </dev/null &
job=$! code=0
for _ in $(seq 400); do
  ! grep -q '"kind":"step"' changed/metrics.jsonl 2>/dev/null || break
  sleep 0.05
done
truncate -s 3000 copy.h5
wait $job || code=$?
[[ $code == 1 ]] || fail "exit code $code instead of 1 from ranks whose file was cut off"
says_once "trireme: error: copy.h5"
says "this job opened it"
! grep -q MPI_ABORT output || fail "ranks were aborted"
is_missing changed/run.lock
rm copy.h5

run 2 "$TRIREME" -i deck.in data.staging=steram
says "stream"

# Splits that are read need documents for document masks, and targets for a loss: said before anything
# is written, whatever the staging.
"$python" - <<'PYTHON'
import h5py, numpy as np, shutil
def copy(name, documents, masks=()):
    shutil.copy("harbour.h5", name)
    with h5py.File(name, "r+") as file:
        for split in documents:
            file[f"{split}/documents"] = np.arange(0, len(file[f"{split}/tokens"]), 10, dtype=np.uint64)
        for split in masks:
            file[f"{split}/mask"] = np.zeros(len(file[f"{split}/tokens"]), np.uint8)
copy("train.h5", ["train"])
copy("all.h5", ["train", "valid", "test"])
copy("train_test.h5", ["train", "test"])
copy("valid.h5", ["valid"])
copy("no_target.h5", [], ["test"])
copy("no_valid.h5", [], ["valid"])
with h5py.File("bad_documents.h5", "w"):
    pass
shutil.copy("all.h5", "bad_documents.h5")
with h5py.File("bad_documents.h5", "r+") as file:
    file["train/documents"][1:] = 5
PYTHON
masked=(-i deck.in data.document_mask=yes)
refused() {
  for staging in none stream; do
    run 2 "$TRIREME" "${@:2}" data.staging=$staging job.output=refused
    says "$1"
    is_missing refused
  done
}
refused "data.document_mask = yes: train.h5 has no /valid/documents" "${masked[@]}" data.file=train.h5
refused "data.document_mask = yes: train.h5 has no /valid/documents" "${masked[@]}" data.file=train.h5 -v
refused "data.document_mask = yes: harbour.h5 has no /train/documents" "${masked[@]}"
refused "data.document_mask = yes: harbour.h5 has no /valid/documents" "${masked[@]}" data.file=train_test.h5 data.validation=a:harbour.h5
refused "no_target.h5: no target of /test/tokens counts" -i deck.in data.file=no_target.h5
refused "no_valid.h5: no target of /valid/tokens counts" -i deck.in data.validation=a:no_valid.h5
run 0 "$TRIREME" "${masked[@]}" data.file=train.h5 monitor.validate_every_steps=0 job.output=masked
run 0 "$TRIREME" "${masked[@]}" data.file=train_test.h5 data.validation=a:valid.h5 data.staging=stream job.output=sets
run 0 "$TRIREME" -i deck.in data.file=no_target.h5 monitor.validate_every_steps=0 job.output=unvalidated
run 2 "$TRIREME" -r masked job.task=evaluate
says "data.document_mask = yes: train.h5 has no /valid/documents"
run 0 "$TRIREME" -r masked job.task=generate
# Nobody reads documents without the mask.
run 0 "$TRIREME" -i deck.in data.file=bad_documents.h5 data.staging=stream job.output=unread
diff <(losses memory/metrics.jsonl step | head -n 1 | cut -c -10) <(losses unread/metrics.jsonl step | head -n 1 | cut -c -10) >difference ||
  fail "documents that are not used change the losses"
