#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to a scaling study and its figure (doc/scaling.md): installs what is missing, builds, makes
# the token file, measures the deck's training step on 1, 2, 4, 8 ranks of this machine, draws.
#   bash jobscripts/scaling.sh [DECK] [section.key=value ...]
# The deck is input/wikitext2_small.in unless named; RANKS=16 measures up to 16 ranks, one thread each. More ranks than cores
# are oversubscribed: named on the screen, marked in the table and in the figure. Leaves with Trireme's exit code.
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

# Beside a study that is there, a new one.
base=${output:-runs/scaling_$(basename "$deck" .in)}
study=$base
for ((number = 2; ; ++number)); do
  [[ -e $study/deck.in || -e $study/scaling.csv ]] || break
  study=$base-$number
done

ranks=${RANKS:-8}
cores=$(usable_cores)  # before OMP_NUM_THREADS is set, which nproc obeys
launch=(mpirun -n "$ranks")
if ((ranks > cores)); then
  launch+=(--oversubscribe --bind-to none)
  # Ranks that wait let others compute.
  export OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle:-1}
elif ((ranks > 1)); then
  launch+=(--bind-to core)
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# On one machine Open MPI need not look for network adapters.
export OMPI_MCA_mtl=${OMPI_MCA_mtl:-^psm,psm2,ofi}

# The machine, for predictions: described with as many ranks as it has cores.
if [[ " ${overrides[*]}" != *" plan.machine="* && $(resolved plan.machine) == auto ]]; then
  machine=build/machine_$OMP_NUM_THREADS.in
  if [[ ! -e $machine ]]; then
    say "calibration: steps and transfers on this machine, for predictions"
    mpirun -n "$cores" --bind-to core "$trireme" --calibrate "$machine" || true
  fi
  [[ ! -e $machine ]] || overrides+=("plan.machine=$machine")
fi

say "scaling: $deck on up to $ranks ranks into $study"
code=0
"${launch[@]}" "$trireme" -i "$deck" "${overrides[@]}" job.task=scaling "job.output=$study" || code=$?
[[ $code == 0 || $code == 3 ]] || exit "$code"

say "figure"
make_page_python || true
if [[ -e $study/scaling.csv ]] && "$page_python" vis/scaling.py "$study" -o "$study/scaling.pdf" --latex "$study/scaling.tex" &&
  "$page_python" vis/scaling.py "$study" -o "$study/scaling.png"; then
  :
else
  echo "No figure was made. With matplotlib: python3 vis/scaling.py $study"
fi
exit "$code"
