#!/usr/bin/env bash
# The batch scripts queue a job again after a stop and after a death that lost little, RESTARTS times at
# most, and after nothing else. Slurm's commands are stand-ins that start one rank and note what they
# are asked; the program and the scripts are real.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
tiny_deck
tokens
mkdir bin
ln -s "$TRIREME" bin/trireme
cat >bin/srun <<'SRUN'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
command=()
for each; do [[ $each == run.device=cuda ]] || command+=("$each"); done  # without a card
exec "${command[@]}"
SRUN
printf '#!/bin/sh\necho "$@" >>queued\n' >bin/scontrol
printf '#!/bin/sh\nexit 0\n' >bin/module
chmod +x bin/*
export PATH=$scratch/bin:$PATH TRIREME SLURM_JOB_ID=77 SLURM_JOB_END_TIME=$(($(date +%s) + 36000)) RESTARTS=1
queued() { [[ $(grep -cx "requeue 77" queued) == "$1" ]] || fail_with_log "not queued again $1 times"; }

for script in train train_gpu; do
  batch=("$TRIREME_SOURCE/jobscripts/slurm/$script.sbatch" deck.in run monitor.sample_tokens=0)
  batch+=(schedule.steps=1000000 checkpoint.keep=2)
  rm -rf run
  : >queued

  # A bad deck, and a death before the first checkpoint, that of the best loss too: nothing to be gained.
  run 2 bash "${batch[@]}" schedule.stepps=3
  begins bash "${batch[@]}" checkpoint.every_steps=0 monitor.validate_every_steps=0
  awaits run/metrics.jsonl '"kind":"step"'
  pkill -KILL -P "$job"
  ends 137
  queued 0

  begins bash "${batch[@]}"
  awaits run/metrics.jsonl '"event":"checkpoint"' 2
  pkill -KILL -P "$job"
  ends 137
  cp log output
  says "died with code 137 after checkpoint step_"
  queued 1

  begins bash "${batch[@]}"
  awaits run/metrics.jsonl '"event":"checkpoint"' 5
  pkill -KILL -P "$job"
  ends 137
  cp log output
  says "not queued again (RESTARTS=1"
  queued 1

  # A stop is no death.
  begins bash "${batch[@]}"
  awaits run/metrics.jsonl '"event":"checkpoint"' 8
  pkill -USR1 -P "$job"
  ends 3
  queued 2
  run 0 bash "${batch[@]}" schedule.stop_at=1
  queued 2
done
