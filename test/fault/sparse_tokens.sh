#!/usr/bin/env bash
# Tokens that no node can hold are refused before anything is taken: exit code 2 within seconds, from a
# program that stays small; with data.staging = stream it trains on them. The file looks 200 GiB long and takes no room.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
: "${TRIREME_SPARSE_TOKENS:?the program}"
tiny_deck
tokens
run 0 "$TRIREME" -i deck.in job.output=trained schedule.stop_at=1
"$TRIREME_SPARSE_TOKENS" harbour.h5 vast.h5 $((100 << 30)) || skip "no sparse files here"
[[ $(du -k vast.h5 | cut -f 1) -lt 10000 ]] || skip "the file system keeps no holes"

refused() { # RANKS-IN-WORDS GIB COMMAND...
  too_large run "$1" "${@:3}"
  says "tokens $2 GiB"
}
refused "one rank of this node plans" 200.0 "$TRIREME" -i deck.in data.file=vast.h5
refused "one rank of this node plans" 200.0 "$TRIREME" -i deck.in data.file=vast.h5 -v
refused "2 ranks of this node plan" 400.0 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=vast.h5 data.staging=none
refused "2 ranks of this node plan" 200.0 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=vast.h5 data.staging=shared_memory
says "data.staging = stream"
# Streamed, they train; evaluation and generation read no train split in any staging.
run 0 small "$TRIREME" -i deck.in data.file=vast.h5 data.staging=stream job.output=streamed schedule.stop_at=2
run 0 small "$TRIREME" -i deck.in data.file=vast.h5 job.task=evaluate -r streamed
run 0 small "$TRIREME" -i deck.in data.file=vast.h5 job.task=generate generate.tokens=3 -r streamed
