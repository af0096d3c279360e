#!/usr/bin/env bash
# A stretch of text that makes no sense raises the loss: told by default; with run.on_spike = rollback
# the run goes back to its last checkpoint and on with the samples after the spike, the same in every
# layout, and in the same bits if it is stopped or killed anywhere.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
tiny_deck

# Each word follows from the one before it, but for one in 20; 48 of 6,400 words are drawn at random.
"$python" - <<'PYTHON'
import random
random.seed(3)
def text(count, senseless=()):
    word, words = 0, []
    for i in range(count):
        lost = i in senseless or random.random() < 0.05
        word = random.randrange(32) if lost else (5 * word + 7) % 32
        words.append(f"w{word}")
    return " ".join(words) + "\n"
open("train.txt", "w").write(text(6400, range(3200, 3248)))
open("valid.txt", "w").write(text(200))
PYTHON
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.train=train.txt tokenize.valid=valid.txt \
  tokenize.test=valid.txt
keys=(data.batch=4 model.dropout=0 optimizer.learning_rate=1e-2 schedule.steps=0 schedule.epochs=1.5
  monitor.sample_tokens=0 monitor.validate_every_steps=0 run.spike_window=20)
train() { "$TRIREME" -i deck.in "${keys[@]}" "$@"; }
