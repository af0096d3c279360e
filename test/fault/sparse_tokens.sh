#!/usr/bin/env bash
# Tokens that no node can hold are refused before anything is taken: exit code 2 within seconds, from a
# program that stays small. The file looks 200 GiB long and takes no room.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
: "${TRIREME_SPARSE_TOKENS:?the program}"
tiny_deck
tokens
run 0 "$TRIREME" -i deck.in job.output=trained schedule.stop_at=1
"$TRIREME_SPARSE_TOKENS" harbour.h5 vast.h5 $((100 << 30)) || skip "no sparse files here"
[[ $(du -k vast.h5 | cut -f 1) -lt 10000 ]] || skip "the file system keeps no holes"

small() { # COMMAND...: the largest of its processes stays below 200 MiB
  "$python" - "$@" <<'PYTHON'
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, timeout=20).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB
sys.exit(code if peak < 200 * 1024 else f"peak memory {peak} KiB")
PYTHON
}
refused() { # RANKS-IN-WORDS TOKENS COMMAND...
  run 2 small "${@:3}"
  says_once "error: memory: the $1"
  says "tokens $2 GiB"
  says "; nothing was allocated"
  is_missing run
}
refused "one rank of this node plans" 200.0 "$TRIREME" -i deck.in data.file=vast.h5
refused "one rank of this node plans" 200.0 "$TRIREME" -i deck.in data.file=vast.h5 -v
refused "one rank of this node plans" 200.0 "$TRIREME" -i deck.in data.file=vast.h5 job.task=evaluate -r trained
refused "2 ranks of this node plan" 400.0 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=vast.h5 data.staging=none
refused "2 ranks of this node plan" 200.0 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=vast.h5 data.staging=shared_memory
