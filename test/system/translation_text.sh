#!/usr/bin/env bash
# A user's own translations by the shipped deck, made smaller: line-aligned texts become a file of pairs, two ranks train on it,
# a model that has learnt them is scored, and lines are translated.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
deck=$TRIREME_SOURCE/input/translation_text.in
mkdir -p data/parallel
"$python" - <<'PYTHON'
import itertools, random
articles = {"the": "das", "this": "dieses", "every": "jedes"}
nouns = {"ship": "Schiff", "boat": "Boot", "house": "Haus", "child": "Kind", "book": "Buch", "animal": "Tier", "window": "Fenster", "bread": "Brot"}
verbs = {"sees": "sieht", "finds": "findet", "seeks": "sucht", "knows": "kennt", "needs": "braucht", "paints": "malt"}
lines = [(f"{a} {n} {v} {b} {m}.", f"{articles[a]} {nouns[n]} {verbs[v]} {articles[b]} {nouns[m]}.")
         for a, n, v, b, m in itertools.product(articles, nouns, verbs, articles, nouns)]
random.Random(1).shuffle(lines)
for part, some in (("a", lines[:2000]), ("b", lines[2000:])):
    for side, language in enumerate(("en", "de")):
        with open(f"data/parallel/{part}.{language}", "w", encoding="utf-8") as file:
            file.write("".join(line[side] + "\n" for line in some))
PYTHON
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" job.task=tokenize tokenize.vocabulary_size=320
says "sentencepiece, 320 types"
small=(model.dim=48 model.ffn=96 model.encoder_layers=1 model.layers=1 model.dropout=0 optimizer.learning_rate=1e-2 schedule.epochs=16 schedule.warmup_steps=30
  monitor.report=no monitor.validate_every_steps=50)
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" "${small[@]}"
exists runs/translation_text/checkpoints/latest
run 0 "${mpi[@]}" 2 "$TRIREME" -r runs/translation_text job.task=evaluate evaluate.results=scores.json
says "exact match"
"$python" - <<'PYTHON' || fail "scores: $(cat scores.json)"
import json
for scores in json.load(open("scores.json", encoding="utf-8"))["sets"]:
    assert scores["texts"] > 10 and scores["exact_match"] > 90 and scores["bleu"] > 90, scores
PYTHON
run 0 "$TRIREME" -r runs/translation_text job.task=generate "generate.prompt=the ship sees every book."
says "das Schiff"
