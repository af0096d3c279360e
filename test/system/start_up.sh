#!/usr/bin/env bash
# Start-up on 2, 4 and 8 ranks, counted at MPI's interface: what a rank does must not grow with the number of ranks, but for
# the bytes and logarithms that doc/preflight.md writes down.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: "${TRIREME_COUNT_MESSAGES:?the library}"
tiny_deck
tokens
# Sharded state with a writer of checkpoints for each rank, as if each were on a node of its own; and with more blocks.
declare -A keys=([none]='' [sharded]='grid.sharding=parameters checkpoint.writers=0')
keys[blocks]="${keys[sharded]} model.layers=6"
for layout in none sharded blocks; do
  mkdir "$layout"
  for ranks in 2 4 8; do
    # shellcheck disable=SC2086
    run 0 env TRIREME_COUNTS="$scratch/$layout" "${mpi[@]}" "$ranks" "${preloaded[@]}" "$TRIREME_COUNT_MESSAGES" "$TRIREME" \
      -i deck.in ${keys[$layout]} schedule.steps=1 monitor.validate_every_steps=0 monitor.sample_tokens=0 \
      job.output="run_${layout}_$ranks"
  done
done
"$python" - <<'PYTHON' || fail "start-up grows with the number of ranks"
import math
NAMES = ("collectives", "operands", "gathered", "at a root", "messages", "message bytes", "groups", "files")
MOST = 100  # bytes that one rank may receive for each other rank
def count(layout):
    counts = {}
    for ranks in (2, 4, 8):
        rows = [[int(word) for word in open(f"{layout}/{ranks}_{rank}").read().split()] for rank in range(ranks)]
        assert all(row[0] == 1 for row in rows), "no exchange of gradients was seen"
        counts[ranks] = dict(zip(NAMES, (max(column) for column in list(zip(*rows))[1:])))
    print(f"{layout}: most of any rank\nranks  " + "  ".join(f"{name:>13}" for name in NAMES))
    for ranks, most in counts.items():
        print(f"{ranks:5}  " + "  ".join(f"{most[name]:13,}" for name in NAMES))
    return counts
def grown(counts, few, many):
    return sum(counts[many][name] - counts[few][name] for name in ("gathered", "at a root"))
counted = {layout: count(layout) for layout in ("none", "sharded", "blocks")}
for layout, counts in counted.items():
    two, four, eight = counts[2], counts[4], counts[8]
    # Three calls tell of too few cores.
    assert four["collectives"] <= two["collectives"] + 3 and eight["collectives"] <= four["collectives"], "collective calls"
    assert eight["groups"] <= two["groups"], "communicators"
    assert eight["files"] <= two["files"], "files opened through MPI"
    assert eight["operands"] <= two["operands"] + 512, "bytes of broadcasts and reductions"
    assert eight["messages"] <= two["messages"] + 2 * math.log2(8 / 2), "messages between two ranks"
    for few, many in ((2, 4), (4, 8)):
        more = grown(counts, few, many)
        print(f"{layout}: {more / (many - few):.1f} bytes for each rank beyond {few}")
        assert more <= MOST * (many - few), f"{layout}: {more} bytes more on {many} ranks than on {few}"
assert grown(counted["blocks"], 4, 8) <= grown(counted["sharded"], 4, 8), "growth follows the number of blocks"
PYTHON
