#!/usr/bin/env bash
# The page of a run: made at its end, not of one that stops early; without Python, on a full disk, in a folder that
# cannot be written, and beside a signal, the exit code stays and one line says how to make it.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
script=$TRIREME_SOURCE/vis/report.py
"$python" -c 'import matplotlib, jinja2' 2>/dev/null || skip "matplotlib or Jinja2 is not there, so no page can be made"
tiny_deck
sed -i 's/^report .*/report = yes/' deck.in
tokens
is_missing report.html
export TRIREME_PYTHON=$python

run 3 "${mpi[@]}" 2 "$TRIREME" -i deck.in schedule.walltime_minutes=1e-9
is_missing run/report.html
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in -r run schedule.walltime_minutes=0
says_once "page    run/report.html"
tail -n 1 output | grep -q '^page ' || fail "the page's path is not the last line"
grep -q '<h1>run</h1>' run/report.html || fail "the page has no title"
grep -q 'model.dim' run/report.html || fail "the page has no deck"
! grep -q 'has not ended' run/report.html || fail "the page of a whole run says that it has not ended"
! compgen -G 'run/.report*' || fail "a piece of a page was left"

# By key; in tasks that train nothing.
run 0 "$TRIREME" -i deck.in job.output=no_page monitor.report=no
is_missing no_page/report.html
! grep -q '^page ' output || fail "a page that nobody wants is mentioned"
rm run/report.html
run 0 "$TRIREME" -i deck.in -r run job.task=evaluate
is_missing run/report.html

# Without a Python, and with one that fails.
TRIREME_PYTHON=/nowhere/python3 run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=no_python
says_once "page    not made: "
says "by hand: /nowhere/python3 $script no_python"
printf '#!/bin/sh\necho "no module of that name" >&2\nexit 4\n' >python_fails
chmod +x python_fails
TRIREME_PYTHON=$PWD/python_fails run 0 "$TRIREME" -i deck.in job.output=fails
says_once "page    not made: no module of that name; by hand: "

# A signal while the page is made: the run has ended, and ends at once with its code.
printf '#!/bin/sh\necho $$ >python_is\nsleep 60\n' >python_sleeps
chmod +x python_sleeps
code=0
TRIREME_PYTHON=$PWD/python_sleeps "$TRIREME" -i deck.in job.output=asked >output 2>&1 &
program=$!
for _ in {1..300}; do [[ ! -s python_is ]] || break; sleep 0.1; done
exists python_is
kill -TERM "$program"
wait "$program" || code=$?
[[ $code == 0 ]] || fail "exit code $code after a signal that came while the page was made"
says_once "page    not made: a signal came; by hand: "
! kill -0 "$(cat python_is)" 2>/dev/null || fail "the page's process outlives the program"

# The end of the job's time is near: nothing is begun.
SLURM_JOB_ID=1 SLURM_JOB_END_TIME=$(($(date +%s) + 24)) TRIREME_PYTHON=$PWD/python_fails \
  run 0 "$TRIREME" -i deck.in job.output=late checkpoint.every_steps=1000 monitor.validate_every_steps=0 schedule.steps=2
says_once "page    not made: the job's time ends; by hand: "

# A killed run, told by hand.
cp -r no_page killed
rm -f killed/summary.json killed/report.html
sed -i '/"kind":"done"/d' killed/metrics.jsonl
printf '{"kind":"step","st' >>killed/metrics.jsonl
run 0 "$python" "$script" killed
grep -q 'was killed' killed/report.html || fail "the page does not say that the run was killed"
grep -q 'is torn' killed/report.html || fail "the page does not say that a line is torn"

# A full disk, and a disk that cannot be written.
[[ $(id -u) == 0 ]] || skip "the rest: only root can mount a small file system"
mkdir disk
mount -t tmpfs -o size=8m tmpfs disk 2>/dev/null || skip "the rest: tmpfs cannot be mounted here"
leave() {
  cd /
  umount "$scratch/disk" || umount -l "$scratch/disk"
  rm -rf "$scratch"
}
cp -r no_page disk/run
dd if=/dev/zero of=disk/filler bs=4k >/dev/null 2>&1 || true
run 1 "$python" "$script" disk/run
says "report.html: cannot be written: No space left on device"
says "-o FILE"
is_missing disk/run/report.html
! compgen -G 'disk/run/.report*' || fail "a piece of a page was left on a full disk"
mount -o remount,ro disk
run 1 "$python" "$script" disk/run
says "cannot be written: Read-only file system"
run 0 "$python" "$script" disk/run -o page.html
exists page.html
