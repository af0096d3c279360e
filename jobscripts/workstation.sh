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

deck=
overrides=()
for argument in "$@"; do
  case $argument in
    -h | --help) sed -n '2,/^set/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *=*) overrides+=("$argument") ;;
    *)
      [[ -z $deck ]] || { echo "two decks: $deck and $argument" >&2; exit 2; }
      deck=$argument
      ;;
  esac
done
deck_named=${deck:+yes}
deck=${deck:-input/wikitext2_small.in}
[[ -f $deck || ! -f $here/$deck ]] || deck=$here/$deck
[[ -f $deck ]] || { echo "$deck: no such deck" >&2; exit 2; }

say() { printf '\n== %s\n' "$*"; }

say "packages"
bash jobscripts/install_debian.sh build

say "build"
mkdir -p build
if [[ ! -f build/build.ninja && ! -f build/Makefile ]]; then
  cmake -S . -B build -G Ninja -DTRIREME_TESTS=OFF >build/configure.log 2>&1 ||
    { cat build/configure.log; exit 1; }
fi
cmake --build build --parallel "$(build_jobs)" --target trireme
trireme=$PWD/build/trireme

say "python, for the page"
make_page_python || true

# The texts: where the user says, beside the repository, in data/, or from the network.
find_wikitext() {
  local folder
  for folder in "${TRIREME_DATA:-}" ../shared/data/wikitext-2 data/wikitext-2; do
    [[ -n $folder && -f $folder/train.txt && -f $folder/valid.txt && -f $folder/test.txt ]] || continue
    echo "$folder"
    return
  done
  bash jobscripts/fetch_wikitext.sh data/wikitext-2 >&2 && echo data/wikitext-2
}

# Makes the token file that the deck asks for, where we know how.
make_tokens() {
  local file texts
  file=$(resolved data.file)
  if [[ -f $file ]]; then
    echo "$file is there"
    return
  fi
  mkdir -p "$(dirname "$file")"
  case $file in
    data/wikitext2.h5)
      if ! texts=$(find_wikitext); then
        [[ -z $deck_named ]] || { echo "$deck needs WikiText-2." >&2; return 2; }
        echo "Without WikiText-2 the built-in corpus is trained instead: input/harbour.in"
        deck=input/harbour.in
        make_tokens
        return
      fi
      "$trireme" -i "$deck" "${overrides[@]}" job.task=tokenize tokenize.kind=word \
        "tokenize.train=$texts/train.txt" "tokenize.valid=$texts/valid.txt" \
        "tokenize.test=$texts/test.txt"
      ;;
    data/harbour.h5) "$trireme" -i "$deck" "${overrides[@]}" job.task=tokenize tokenize.kind=harbour ;;
    *) echo "data.file = $file does not exist; job.task=tokenize writes one" >&2; return 2 ;;
  esac
}

say "tokens"
resolved job.task >/dev/null # a bad deck ends here with the program's message
make_tokens

choose_run_folder

ranks=$(usable_cores)
launch=(mpirun -n "$ranks")
[[ $ranks == 1 ]] || launch+=(--bind-to core)
export OMP_NUM_THREADS=1
# On one machine Open MPI need not look for network adapters: a few tenths of a second of every start.
export OMPI_MCA_mtl=${OMPI_MCA_mtl:-^psm,psm2,ofi}

say "train: $deck with $ranks rank(s) into $run"
code=0
"${launch[@]}" "$trireme" -i "$deck" "${resume[@]}" "${overrides[@]}" "job.output=$run" || code=$?
if [[ $code == 3 ]]; then
  echo "Stopped early with a checkpoint. The same command continues it."
fi
[[ $code == 0 ]] || exit "$code"

# Results for the page, compared with simple models, unless the user names others.
results=()
has_key() { [[ " ${overrides[*]}" == *" $1="* ]]; }
has_key evaluate.results || results+=("evaluate.results=$run/evaluation.json" evaluate.overwrite=yes)
has_key evaluate.baselines || results+=(evaluate.baselines=yes)

say "evaluate"
"${launch[@]}" "$trireme" -i "$deck" -r "$run" "${overrides[@]}" job.task=evaluate "job.output=$run" "${results[@]}"

say "generate"
"${launch[@]}" "$trireme" -i "$deck" -r "$run" "${overrides[@]}" job.task=generate "job.output=$run"

say "everything is in $run"
if ! "$page_python" vis/report.py "$run" >build/page.log 2>&1; then
  sed 's/^/  /' build/page.log
  echo "No page was made. With matplotlib and Jinja2: python3 vis/report.py $run"
  exit 0
fi
case $run in /*) ;; *) run=$PWD/$run ;; esac
echo "$run/report.html"
