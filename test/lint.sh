#!/usr/bin/env bash
# Style: `lint.sh format` holds tracked files against .clang-format; `lint.sh tidy [BUILD]` runs clang-tidy over src/ as far as
# files changed since their last clean pass, `lint.sh changed [BUILD]` over those that differ from the branch main (or
# origin/main) alone. Exit 77: cannot be judged here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source jobscripts/machine.sh
root=$PWD

# Tracked files by pattern; everything but build trees where git cannot say.
files() {
  git -c safe.directory="$root" ls-files -- "$@" 2>/dev/null | grep . ||
    find src include test \( -name '*.cpp' -o -name '*.hpp' \) | sort
}

format() {
  local tool rough
  # Other versions disagree with 14 about details.
  for tool in clang-format-14 clang-format; do
    "$tool" --version 2>/dev/null | grep -q 'version 14\.' || continue
    rough=$(files '*.cpp' '*.hpp' '*.cu' '*.cuh' | xargs -r ls -d 2>/dev/null |
      xargs -r "$tool" --dry-run 2>&1 | sed -n 's/^\([^ :]*\):.*Wclang-format-violations.*/\1/p' | sort -u)
    [[ -z $rough ]] || { printf 'to be formatted (clang-format -i):\n%s\n' "$rough"; exit 1; }
    echo "clang-format: clean"
    return
  done
  echo "clang-format 14 is not installed: skipped"
  exit 77
}

# Sources that differ from main, headers with the source of their name; a branch that is main differs by what is not committed.
changed() {
  local git=(git -c safe.directory="$root") base
  base=$("${git[@]}" merge-base HEAD origin/main 2>/dev/null || "${git[@]}" merge-base HEAD main 2>/dev/null) || return 0
  { "${git[@]}" diff --name-only "$base"; "${git[@]}" ls-files -o --exclude-standard; } | grep -E '^(src|include)/.*[.][ch]pp$' |
    sed -E 's#^include/trireme/#src/#; s#[.]hpp$#.cpp#' | sort -u
}

tidy() {
  local build=${1:-build} only=${2:-} cache database batches=OFF headers tool version source key todo=()
  tool=$(command -v clang-tidy-14 || command -v clang-tidy) || {
    echo "clang-tidy is not installed: skipped"
    exit 77
  }
  if [[ $only == changed ]] && [[ -z $(changed) ]]; then
    echo "clang-tidy: nothing differs from main"
    return
  fi
  # After a move of everything file by file takes an hour.
  if [[ $only == changed ]] && (($(changed | wc -l) > 100)); then
    echo "clang-tidy: more than 100 files differ from main: skipped, lint.sh tidy reads them all in batches"
    exit 77
  fi
  [[ -f $build/CMakeCache.txt ]] || { echo "$build is no build tree" >&2; exit 1; }
  build=$(cd "$build" && pwd)
  cache=$build/tidy
  mkdir -p "$cache/include" "$cache/clean"
  # A tree for clang-tidy alone, in which only generated files are built: batches as in a build, whose headers are read once, or
  # a command for each file that changed.
  [[ $only == changed ]] || batches=ON
  database=$cache/database_$batches
  cmake -S . -B "$database" -G Ninja -DTRIREME_BATCHES=$batches -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DTRIREME_TESTS=OFF >"$cache/configure.log" 2>&1 &&
    cmake --build "$database" --target trireme_commit trireme_tensorboard_messages trireme_sentencepiece_messages >>"$cache/configure.log" 2>&1 ||
    { cat "$cache/configure.log" >&2; exit 1; }
  sed -i 's/ -fpch-preprocess//' "$database/compile_commands.json"
  # clang has no omp.h of its own here: the compiler's will do for reading, less what clang cannot parse.
  sed -E 's/,? *__malloc__ \(omp_free\)//' "$(g++ -print-file-name=include)/omp.h" \
    >"$cache/include/omp.h" 2>/dev/null || true

  version=$("$tool" --version; cat .clang-tidy)
  # A file is read anew if it or any header changed.
  headers=$(files 'include/*.hpp' 'src/*.hpp' | xargs cat | sha256sum)
  while read -r source; do
    # Of a batch, the files that it includes.
    key=$({ echo "$version $headers"; cat "$source"; sed -n 's/^#include "\(.*[.]cpp\)"/\1/p' "$source" | xargs -r cat; } | sha256sum | cut -c 1-32)
    [[ -e $cache/clean/$key ]] || todo+=("$key $source")
  done < <(sed -n 's/^  "file": "\(.*\)",\{0,1\}$/\1/p' "$database/compile_commands.json" | grep -E "^$root/src/|/Unity/" |
    if [[ $only == changed ]]; then grep -Fx "$(changed | sed "s#^#$root/#")"; else cat; fi)

  if [[ ${#todo[@]} -gt 0 ]]; then
    export tool database cache
    # shellcheck disable=SC2016  # expanded by the inner shell
    printf '%s\n' "${todo[@]}" | xargs -P "$(build_jobs)" -L 1 bash -c '
      if report=$("$tool" --quiet -p "$database" --extra-arg=-isystem"$cache/include" --extra-arg=-Wno-ignored-attributes --extra-arg=-Wno-unused-command-line-argument --extra-arg=-Wno-unknown-warning-option "$1" 2>&1); then
        touch "$cache/clean/$0"
      else
        grep -v "warnings generated\|warnings treated as errors" <<<"$report"
        exit 1
      fi'
  fi
  echo "clang-tidy: clean (${#todo[@]} files or batches read anew)"
}

case "${1:-}" in
  format) format ;;
  tidy) tidy "${2:-}" ;;
  changed) tidy "${2:-}" changed ;;
  *) echo "usage: lint.sh format | tidy [BUILD] | changed [BUILD]" >&2; exit 2 ;;
esac
