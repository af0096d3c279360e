# shellcheck shell=bash
# shellcheck disable=SC2034  # deck_named and others are read by the scripts that source this
# Sourced by job scripts that begin with a fresh Debian or Ubuntu, at the root of the repository: the deck and the keys of the
# command line, packages, the program, the token file. Needs machine.sh, run_folder.sh, live.sh.

say() { printf '\n== %s\n' "$*"; }

# take_arguments SCRIPT FOLDER ARGUMENT...: sets deck, deck_named, output (job.output, or empty) and overrides (all other keys);
# --help prints the head of SCRIPT. A deck is looked for here, then in FOLDER.
take_arguments() {
  local script=$1 folder=$2 argument
  shift 2
  deck=
  output=
  overrides=()
  for argument in "$@"; do
    case $argument in
      -h | --help) sed -n '2,/^set/{s/^# \{0,1\}//p}' "$script"; exit 0 ;;
      job.output=*) output=${argument#*=} ;;
      *=*) overrides+=("$argument") ;;
      *)
        [[ -z $deck ]] || { echo "two decks: $deck and $argument" >&2; exit 2; }
        deck=$argument
        ;;
    esac
  done
  deck_named=${deck:+yes}
  deck=${deck:-input/wikitext2_small.in}
  [[ -f $deck || ! -f $folder/$deck ]] || deck=$folder/$deck
  [[ -f $deck ]] || { echo "$deck: no such deck" >&2; exit 2; }
}

# build_program: packages, the program (sets trireme).
build_program() {
  say "packages"
  bash jobscripts/install_debian.sh build

  say "build"
  mkdir -p build
  if [[ ! -f build/build.ninja && ! -f build/Makefile ]]; then
    # With the options of test/run.sh, which then need not compile the program again: with the compiler of the tests, warnings are errors.
    local warnings_are_errors=OFF
    # shellcheck disable=SC1091  # the system's
    [[ $(source /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}") != "debian 12" || $(c++ -dumpversion) != 12 ]] || warnings_are_errors=ON
    cmake -S . -B build -G Ninja -DTRIREME_TESTS=OFF -DTRIREME_WERROR=$warnings_are_errors >build/configure.log 2>&1 ||
      { cat build/configure.log; exit 1; }
  fi
  build_live build --parallel "$(build_jobs)" --target trireme
  trireme=$PWD/build/trireme
}

# The texts: where the user says, beside the repository, in data/, or from the network.
find_wikitext() {
  local folder
  for folder in "${TRIREME_DATA:-}" ../shared/data/wikitext-2 data/wikitext-2; do
    [[ -n $folder && -f $folder/train.txt && -f $folder/valid.txt && -f $folder/test.txt ]] || continue
    echo "$folder"
    return
  done
  bash jobscripts/fetch_wikitext.sh data/wikitext-2 >build/wikitext.log 2>&1 && echo data/wikitext-2
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
        [[ -z $deck_named ]] || { cat build/wikitext.log; echo "$deck needs WikiText-2."; return 2; } >&2
        echo "WikiText-2 cannot be fetched here (build/wikitext.log): the built-in corpus is trained instead, input/harbour.in"
        deck=input/harbour.in
        make_tokens
        return
      fi
      "$trireme" -i "$deck" "${overrides[@]}" job.task=tokenize tokenize.kind=word \
        "tokenize.train=$texts/train.txt" "tokenize.valid=$texts/valid.txt" \
        "tokenize.test=$texts/test.txt"
      ;;
    data/harbour.h5) "$trireme" -i "$deck" "${overrides[@]}" job.task=tokenize tokenize.kind=harbour ;;
    data/numerals.h5) "$trireme" -i "$deck" "${overrides[@]}" job.task=tokenize tokenize.kind=numerals ;;
    *) make_own_tokens "$file" ;;
  esac
}

# make_own_tokens FILE: as the deck's section [tokenize] says, if it says enough.
make_own_tokens() {
  local command=("$trireme" -i "$deck" "${overrides[@]}" job.task=tokenize)
  if "${command[@]}" -v >build/tokenize.log 2>&1; then
    "${command[@]}"
    return
  fi
  {
    sed 's/^/  /' build/tokenize.log
    echo "data.file = $1 does not exist, and [tokenize] of $deck does not say how it is made. With your texts:"
    echo "  ${command[*]} tokenize.kind=sentencepiece tokenize.vocabulary_size=8000 tokenize.train=TEXTS"
    echo "doc/data.md tells of other ways."
  } >&2
  return 2
}

# prepare_tokens: the deck's token file; without WikiText-2 the deck may become another.
prepare_tokens() {
  say "tokens"
  resolved job.task >/dev/null # a bad deck ends here with the program's message
  make_tokens
}
