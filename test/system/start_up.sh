#!/usr/bin/env bash
# Start-up on 2, 4 and 8 ranks, counted at MPI's interface: what a rank does must not grow with the number of ranks, but for
# the bytes and logarithms that doc/preflight.md writes down.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: "${TRIREME_COUNT_MESSAGES:?the library}"
tiny_deck
tokens
for layout in none parameters; do
  mkdir "$layout"
  for ranks in 2 4 8; do
    run 0 env TRIREME_COUNTS="$scratch/$layout" "${mpi[@]}" "$ranks" "${preloaded[@]}" "$TRIREME_COUNT_MESSAGES" "$TRIREME" \
      -i deck.in grid.sharding="$layout" schedule.steps=1 monitor.validate_every_steps=0 monitor.sample_tokens=0 \
      job.output="run_${layout}_$ranks"
  done
done
"$python" - <<'PYTHON' || fail "start-up grows with the number of ranks"
import math
NAMES = ("collectives", "operands", "gathered", "at a root", "messages", "message bytes", "groups", "files")
MOST = 100  # bytes that one rank may receive for each other rank
# With sharded state each rank states, for the checkpoint's plan, its part of each unit (embedding, 2 blocks, head): parameters
# and two moments.
CLAIMS = 3 * 24 * 4
def count(layout):
    counts = {}
    for ranks in (2, 4, 8):
        rows = [[int(word) for word in open(f"{layout}/{ranks}_{rank}").read().split()] for rank in range(ranks)]
        assert all(row[0] == 1 for row in rows), "no exchange of gradients was seen"
        counts[ranks] = dict(zip(NAMES, (max(column) for column in list(zip(*rows))[1:])))
    print(f"grid.sharding = {layout}: most of any rank\nranks  " + "  ".join(f"{name:>13}" for name in NAMES))
    for ranks, most in counts.items():
        print(f"{ranks:5}  " + "  ".join(f"{most[name]:13,}" for name in NAMES))
    return counts
counted = {layout: count(layout) for layout in ("none", "parameters")}
for layout, counts in counted.items():
    allowed = MOST if layout == "none" else MOST + CLAIMS
    two, four, eight = counts[2], counts[4], counts[8]
    # Three calls tell of too few cores.
    assert four["collectives"] <= two["collectives"] + 3 and eight["collectives"] <= four["collectives"], "collective calls"
    assert eight["groups"] <= two["groups"], "communicators"
    assert eight["files"] <= two["files"], "files opened through MPI"
    assert eight["operands"] <= two["operands"] + 512, "bytes of broadcasts and reductions"
    assert eight["messages"] <= two["messages"] + 2 * math.log2(8 / 2), "messages between two ranks"
    for few, many in ((2, 4), (4, 8)):
        grown = sum(counts[many][name] - counts[few][name] for name in ("gathered", "at a root"))
        assert grown <= allowed * (many - few), f"{grown} bytes more on {many} ranks than on {few}"
PYTHON
