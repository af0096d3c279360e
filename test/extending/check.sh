#!/usr/bin/env bash
# The worked examples of doc/extending.md, each a patch beside this file with a heading that states the
# files it may touch, its build targets and its tests:
#   check.sh apply BUILD                    each applies alone to this tree and keeps to its number of files
#   check.sh build BUILD [CMAKE OPTION...]  each is applied, built and tested as well
# The first changes nothing; the second works in BUILD/extending/tree, a copy of the tree.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
action=$1
mkdir -p "$2/extending"
work=$(cd "$2/extending" && pwd)
shift 2
source "$root/jobscripts/machine.sh"

# heading PATCH WORD: the rest of the heading's line "WORD: ...".
heading() {
  local line
  line=$(sed -n "/^diff /q; s/^$2: //p" "$1")
  [[ -n $line ]] || { echo "$1: no line '$2: ...' before the first file" >&2; return 1; }
  echo "$line"
}

tree=$root
# No repository around the tree counts, so that git takes paths as they are.
export GIT_CEILING_DIRECTORIES=$(dirname "$root"):$work
patched() { git -c safe.directory="$tree" -C "$tree" apply "$@"; }

if [[ $action == build ]]; then
  tree=$work/tree
  rm -rf "$tree"
  mkdir "$tree"
  tar -C "$root" --exclude='./build*' --exclude=./.git --exclude=./runs --exclude=./data -cf - . |
    tar -C "$tree" -xf -
  # Paths below it count alike in a compiler cache, wherever it lies.
  export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
  cmake -S "$tree" -B "$tree/build" -G Ninja -DTRIREME_WERROR=ON -DTRIREME_TESTS=ON "$@" >"$work/configure.log" 2>&1 ||
    { cat "$work/configure.log"; exit 1; }
fi

# build_and_test PATCH: of a tree to which it was applied.
build_and_test() {
  local targets tests
  targets=$(heading "$1" Targets)
  tests=$(heading "$1" Tests)
  # shellcheck disable=SC2086  # a list of targets
  cmake --build "$tree/build" --parallel "$(build_jobs)" --target $targets >"$work/build.log" 2>&1 ||
    { tail -n 40 "$work/build.log"; return 1; }
  ctest --test-dir "$tree/build" --output-on-failure --timeout 300 --no-tests=error \
    -R "^(rooms|deck_keys|house_rules|style_format|${tests// /|})\$"
}

failed=()
for patch in "$here"/*.patch; do
  name=$(basename "$patch" .patch)
  if ! patched --check "$patch"; then
    failed+=("$name does not apply")
    continue
  fi
  # As the patch counts them, and as git did, which leaves out what is not in the tree.
  files=$(grep -c '^diff --git ' "$patch")
  [[ $files == "$(patched --numstat "$patch" | wc -l)" ]] || failed+=("$name is applied in part")
  most=$(heading "$patch" Files)
  echo "$name: $files files, at most $most"
  [[ $files -le $most ]] || failed+=("$name touches $files files")
  [[ $action == build ]] || continue
  patched "$patch"
  build_and_test "$patch" || failed+=("$name does not build or fails its tests")
  patched -R "$patch"
done
[[ ${#failed[@]} == 0 ]] || { printf 'FAILED: %s\n' "${failed[@]}"; exit 1; }
