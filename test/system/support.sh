#!/usr/bin/env bash
# --support RUN: one archive with what a ticket needs and nothing that it must not have; of damaged, missing and read-only
# runs too.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
run 0 "$TRIREME" -i deck.in schedule.steps=12 generate.prompt='a hidden prompt'
sample=$("$python" -c "import json; print(json.load(open('run/summary.json'))['samples'][0].split(chr(10))[0])")
[[ -n $sample ]] || fail "the run wrote no sample"
mkdir -p run/hang/20261124_120000
echo '{"rank": 1, "calls": ["all_reduce"]}' >run/hang/20261124_120000/node_0.json
{ echo "deck in into run data.batch=4"; cat run/log.txt; } >slurm-42.out
echo "another run ends, of runs/run-2: run time" >slurm-41.out
echo "2026-11-24 10:00:00 lost n2 after checkpoint none" >run/deaths.42

# support WORDS...: the archive's files below ./got; no MPI is started.
support() {
  rm -rf got ./*.tar.gz
  run 0 env OMPI_MCA_pml=nonexistent MPIR_CVAR_CH4_NETMOD=nonexistent "$@"
  local archive=(./*.tar.gz)
  [[ ${#archive[@]} == 1 && -f ${archive[0]} ]] || fail "not one archive: ${archive[*]}"
  mkdir got
  tar -xzf "${archive[0]}" -C got --strip-components=1
}
has() { [[ -s got/$1 ]] || fail "the archive lacks $1: $(cd got && find . -type f)"; }

# 1. A whole run.
support env SLURM_JWT=hidden UCX_TLS=self TRIREME_SECRET=hidden OMP_PLACES=cores "$TRIREME" --support run
name=(run_*.tar.gz)
[[ ${name[0]} =~ ^run_20[0-9]{6}_[0-9]{6}.tar.gz$ ]] || fail "the archive is called ${name[0]}"
for each in contents.txt version.txt libraries.txt host.txt limits.txt file_systems.txt environment.txt run/deck.in run/log.txt \
  run/summary.json run/metrics.jsonl run/checkpoints/step_00000012/run.json run/hang/20261124_120000/node_0.json \
  run/deaths.42 job/slurm-42.out files.txt; do
  has "$each"
  [[ $each == contents.txt ]] || says "$each"
done
[[ ! -e got/job/slurm-41.out ]] || fail "another run's log was taken"
grep -q "^Trireme " got/version.txt && grep -q "libmpi\|libmpich" got/libraries.txt && grep -q "^kernel" got/host.txt &&
  grep -q "^locked memory" got/limits.txt && grep -q "^UCX_TLS=self$" got/environment.txt || fail "facts are missing"
[[ $("$python" -c "import json; print(json.load(open('got/run/summary.json'))['deck_given'] != [])") == True ]] ||
  fail "summary.json lost more than its texts"
! grep -rqF -e "hidden" -e "$sample" got || fail "in the archive: $(grep -rF -e hidden -e "$sample" got | head -n 3)"
[[ -z $(find got -size +100k) ]] || fail "something large is in the archive"
[[ -z $(find got -name '*.safetensors' -o -name '*.h5') ]] || fail "weights or data are in the archive"
says "before compression"

# The current folder is a run as any other.
(cd run && support "$TRIREME" --support . && has run/deck.in && has run/log.txt &&
  [[ $(cd got && ls job) == slurm-42.out && -e $(echo run_*.tar.gz) ]]) || fail "the current folder is another run"
rm -rf run/got run/run_*.tar.gz

# 2. Damaged: a torn JSON file, a log that is a folder, records longer than the bounds, a pipe.
head -c 200 run/summary.json >torn && mv torn run/summary.json
rm run/log.txt && mkdir run/log.txt
"$python" -c "
for step in range(60000):
    print('{\"kind\":\"step\",\"step\":%d,\"filler\":\"%s\"}' % (step, 'x' * 60))" >run/metrics.jsonl
mkfifo run/deck.pipe
support "$TRIREME" --support run/
says "run/summary.json: damaged"
says "run/log.txt: not a regular file"
says "bytes left out"
tail -n 1 got/run/metrics.jsonl | grep -q '"step":59999' || fail "the end of the records is not there"
[[ ! -e got/run/summary.json && $(stat -c %s got/run/metrics.jsonl) -lt 2300000 ]] || fail "bounds"

# 3. A run that is not there, of a job that died early, or an empty one: the host's facts, and the job's log.
mv slurm-42.out kept
support "$TRIREME" --support nowhere
says_once "warning: --support: nowhere: there is no such folder"
has host.txt
grep -q "no log of a batch job .* that names nowhere in $scratch" got/contents.txt || fail "contents.txt: $(cat got/contents.txt)"
echo "job script: deck.in into runs/nowhere" >trireme-7.log
support "$TRIREME" --support runs/nowhere
has job/trireme-7.log
mkdir -p elsewhere runs
(cd elsewhere && support "$TRIREME" --support ../runs/nowhere && has job/trireme-7.log) || fail "from another folder"
mv kept slurm-42.out
mkdir -p empty
support "$TRIREME" --support empty
has host.txt
touch file
run 2 "$TRIREME" --support file
says_once "error: --support: file: not a folder"

# 4. Nothing is written into the run, which may be read-only; nowhere else but here.
before=$(find run -printf '%p %s %T@\n' | sort)
if [[ $(id -u) != 0 ]] && chmod -R a-w run; then trap 'chmod -R u+w "$scratch"; leave' EXIT; fi
support "$TRIREME" --support run
[[ $(find run -printf '%p %s %T@\n' | sort) == "$before" ]] || fail "the run folder was changed"
mkdir -p closed && rm -f ./*.tar.gz
if [[ $(id -u) != 0 ]]; then
  chmod a-w closed
  (cd closed && run 2 "$TRIREME" --support ../run)
  says "cannot be written"
fi
run 2 "$TRIREME" --support
says "usage: trireme --support RUN"
run 2 "$TRIREME" -i deck.in --support run
says "--support stands alone"
