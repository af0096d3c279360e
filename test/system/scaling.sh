#!/usr/bin/env bash
# A scaling study as a user runs it: its table adds up, all counts compute the same, a stop keeps what was measured, and
# what does not fit is refused by name before anything is computed.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=8000
keys=(job.task=scaling scaling.steps=4 scaling.warmup_steps=2 scaling.repeats=2)

# check FOLDER COUNTS KINDS: the table.
check() {
  "$python" - "$@" <<'PYTHON' || fail "$1/scaling.csv: $(cat "$1/scaling.csv")"
import csv, sys
folder, counts, kinds = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
rows = list(csv.DictReader(open(folder + "/scaling.csv", encoding="utf-8")))
assert [(r["kind"], r["ranks"]) for r in rows] == [(k, n) for k in kinds for n in counts], rows
near = lambda a, b, most: abs(a / b - 1) <= most
for row in rows:
    base = next(r for r in rows if r["kind"] == row["kind"])
    number = lambda name, of=row: float(of[name])
    ranks = int(row["ranks"]) / int(base["ranks"])
    split = sum(number(name) for name in row if name.startswith("seconds_") and name != "seconds_imbalance")
    assert near(split, number("step_seconds"), 0.01), (split, row)
    assert all(number(name) >= 0 for name in row if name.startswith("seconds_") and name != "seconds_other"), row
    assert abs(number("seconds_other")) < 0.1 * number("step_seconds"), row
    rounds = [float(text) for text in row["round_seconds"].split(";")]
    assert len(rounds) == 2 and near(sum(rounds) / 2, number("step_seconds"), 1e-6), row
    assert near(number("tokens_per_second"), number("tokens") / number("step_seconds"), 1e-6), row
    speedup = number("tokens_per_second") / number("tokens_per_second", base)
    assert near(number("speedup"), speedup, 1e-6), row
    if row["kind"] == "strong":
        assert near(speedup, number("step_seconds", base) / number("step_seconds"), 1e-6), row
        assert row["batch"] == base["batch"] and near(number("loss"), number("loss", base), 1e-5), row
    else:
        assert near(number("batch"), number("batch", base) * ranks, 1e-12), row
    assert near(number("efficiency"), speedup / ranks, 1e-6), row
    assert number("speedup_low") <= number("speedup") <= number("speedup_high"), row
    lost = sum(number(name) for name in row if name.startswith("lost_"))
    assert abs(lost - (1 - number("efficiency"))) < 1e-3, (lost, row)
    if row["kind"] == "strong" and ranks > 1:
        assert near(number("karp_flatt"), (1 / speedup - 1 / ranks) / (1 - 1 / ranks), 1e-5), row
    else:
        assert row["karp_flatt"] == "", row
    over = int(row["ranks"]) * int(row["threads"]) > int(row["cores"])
    assert row["oversubscribed"] == ("yes" if over else "no"), row
    assert row["predicted_step_seconds"] == "", row
    if int(row["ranks"]) == 1:
        assert all(number(name) == 0 for name in row if name.startswith("seconds_exposed_") and "world" not in name), row
    elif int(row["data"]) > 1:
        assert number("seconds_exposed_data") + number("seconds_exposed_shard") > 0, row
PYTHON
}

# Both kinds, on 1, 2 and 4 ranks of the job's 4.
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${keys[@]}" scaling.kind=strong,weak job.output=study
says "scaling strong and weak on 1, 2, 4 ranks, deck.in: 2 rounds of 2 + 4 steps"
says "round   2 of 2"
says "table   study/scaling.csv"
! grep -q "warning: the loss" output || fail "losses differ"
exists study/deck.in
check study 1,2,4 strong,weak
cores=$("$python" -c 'import csv; print([r["cores"] for r in csv.DictReader(open("study/scaling.csv"))][-1])')
if ((cores < 4)); then says "oversubscribed: 4 ranks x 1 thread on $cores core"; fi

# A layout: stages of a pipeline, whose replicas are two ranks.
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${keys[@]}" grid.pipeline=2 grid.sharding=optimizer data.micro_batch=2 job.output=stages
check stages 2,4 strong
"$python" - <<'PYTHON' || fail "no bubble"
import csv
for row in csv.DictReader(open("stages/scaling.csv")):
    assert float(row["seconds_bubble"]) > 0 and row["pipeline"] == "2", row
PYTHON

# Streamed tokens: any rank may lead a replica. A part of the job's ranks.
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${keys[@]}" scaling.ranks=1,3 data.staging=stream job.output=stream
check stream 1,3 strong

# Refused, in one message, before anything is computed or written.
refused() { # WORDS KEYS...
  local words=$1
  shift
  run 2 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${keys[@]}" job.output=refused "$@"
  says_once "$words"
  is_missing refused
}
refused "scaling.ranks: on 3 ranks: command line: grid.tensor = 2 does not divide 3 ranks" scaling.ranks=2,3,4 grid.tensor=2
says "What fits: grid.tensor = 1; or start the job with 2 or 4 ranks."
refused "scaling.ranks = 1,8: 8 are more than the job's 4" scaling.ranks=1,8
refused "scaling.ranks: on 1 rank: command line: grid.data = 2: the grid has 2 ranks, the job has 1" grid.data=2 scaling.ranks=1,2
refused "take more than an epoch on 1 rank" data.batch=400
refused "makes no whole number of windows for 3 ranks" scaling.kind=weak scaling.ranks=2,3 data.batch=7
refused "scaling.kind = week: 'week' is not a kind" scaling.kind=week
refused "Did you mean scaling.ranks?" scaling.rank=2
run 0 "$TRIREME" -i deck.in job.output=trained schedule.steps=2 schedule.warmup_steps=1 monitor.validate_every_steps=0 monitor.sample_tokens=0
refused "-r has no meaning for job.task = scaling" -r trained
run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" job.output=study
says "study: holds a scaling.csv already"
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" job.output=refused -v
says "valid: everything was constructed"
is_missing refused

# A fault on a part of the ranks ends all of them, with one message.
run 1 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${keys[@]}" scaling.ranks=2,4 optimizer.learning_rate=1e30 optimizer.clip_norm=0 \
  schedule.warmup_steps=1 model.dropout=0 job.output=fault
says_once "is not finite"
says "(on ranks 0, 1 of 4)"

# The end of a batch job's time.
TRIREME_JOB_END_TIME=$(($(date +%s) + 5)) run 3 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" job.output=late
says "stopped: what was measured so far is written"
is_missing late/scaling.csv

# A stop in the middle: the first rounds are kept. One rank alone gets the signal, the one that sleeps at times.
"${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]/repeats=2/repeats=100000}" job.output=stopped >output 2>&1 </dev/null &
launched=$!
for ((i = 0; i < 300; ++i)); do
  [[ ! -e stopped/scaling.csv ]] || break
  sleep 0.1
done
exists stopped/scaling.csv
kill -USR1 "$(pgrep -P "$launched" | tail -n 1)"
code=0
wait "$launched" || code=$?
is_stopped "$code" || fail "code $code of a study that was stopped"
says "stopped: what was measured so far is written"
"$python" -c 'import csv; assert [r["ranks"] for r in csv.DictReader(open("stopped/scaling.csv"))] == ["1", "2"]'
