#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to a trained model: installs what is missing, builds, makes the token
# file, trains, evaluates, writes a sample of text and a page that shows all of it, whose path comes last.
#   bash jobscripts/workstation.sh [DECK] [section.key=value ...]
# The deck is input/wikitext2_small.in unless named. Run it again and nothing is done twice: a run that
# was stopped is continued, a finished one gets a new folder beside it. Leaves with Trireme's exit code.
set -euo pipefail
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source jobscripts/machine.sh
source jobscripts/run_folder.sh
source jobscripts/page_python.sh
source jobscripts/live.sh
source jobscripts/prepared_deck.sh

take_arguments "${BASH_SOURCE[0]}" "$here" "$@"
build_program
prepare_tokens
choose_run_folder

# Two threads a rank if they fill the cores: half as many ranks have half as much to sum. The program pins them.
ranks=$(usable_cores)
export OMP_NUM_THREADS=1
binding=none
if ((ranks % 2 == 0)); then
  ranks=$((ranks / 2))
  export OMP_NUM_THREADS=2
elif ((ranks > 1)); then
  binding=core
fi
launch=(mpirun -n "$ranks" --bind-to "$binding")
# On one machine Open MPI need not look for network adapters: a few tenths of a second of every start.
export OMPI_MCA_mtl=${OMPI_MCA_mtl:-^psm,psm2,ofi}

say "train: $deck with $ranks rank(s) of $OMP_NUM_THREADS thread(s) into $run"
start_page_python
code=0
"${launch[@]}" "$trireme" -i "$deck" "${resume[@]}" "${overrides[@]}" "job.output=$run" || code=$?
if [[ $code == 3 ]]; then
  echo "Stopped early with a checkpoint. The same command continues it."
fi
[[ $code == 0 ]] || exit "$code"

# Results for the page, those of language models compared with simple models, unless the user names others.
results=()
has_key() { [[ " ${overrides[*]}" == *" $1="* ]]; }
has_key evaluate.results || results+=("evaluate.results=$run/evaluation.json" evaluate.overwrite=yes)
[[ $(resolved model.kind) == encoder_decoder ]] || has_key evaluate.baselines || results+=(evaluate.baselines=yes)

say "evaluate"
"${launch[@]}" "$trireme" -i "$deck" -r "$run" "${overrides[@]}" job.task=evaluate "job.output=$run" "${results[@]}"

say "generate"
"${launch[@]}" "$trireme" -i "$deck" -r "$run" "${overrides[@]}" job.task=generate "job.output=$run"

say "page"
await_page_python
say "everything is in $run"
if ! "$page_python" vis/report.py "$run" >build/page.log 2>&1; then
  sed 's/^/  /' build/page.log
  echo "No page was made. With matplotlib and Jinja2: python3 vis/report.py $run"
  exit 0
fi
case $run in /*) ;; *) run=$PWD/$run ;; esac
echo "$run/report.html"
