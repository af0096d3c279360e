#!/usr/bin/env bash
# Style: `lint.sh format` holds tracked files against .clang-format, `lint.sh tidy [BUILD]` runs
# clang-tidy over src/ as far as files changed since their last clean pass. Exit 77: cannot be judged
# here.
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

# "source dependency ..." for each object that Ninja built, repository files only.
dependencies() {
  ninja -C "$1" -t deps 2>/dev/null | awk -v root="$root/" -v build="$2/" '
    function flush() { if (first != "") print first list; first = ""; list = "" }
    /^[^ ]/ { flush() }
    /^    / {
      path = substr($0, 5)
      if (index(path, root) != 1 || index(path, build) == 1) next
      if (first == "") first = path; else list = list " " path
    }
    END { flush() }'
}

tidy() {
  local build=${1:-build} cache tool version source list key todo=()
  tool=$(command -v clang-tidy-14 || command -v clang-tidy) || {
    echo "clang-tidy is not installed: skipped"
    exit 77
  }
  [[ -f $build/compile_commands.json ]] || { echo "$build has no compile_commands.json" >&2; exit 1; }
  build=$(cd "$build" && pwd)
  cache=$build/tidy
  mkdir -p "$cache/include" "$cache/clean"
  # clang has no omp.h of its own here: the compiler's will do for reading, less what clang cannot parse.
  sed -E 's/,? *__malloc__ \(omp_free\)//' "$(g++ -print-file-name=include)/omp.h" \
    >"$cache/include/omp.h" 2>/dev/null || true

  version=$("$tool" --version; cat .clang-tidy)
  dependencies "$build" "$build" >"$cache/dependencies"
  while read -r source; do
    grep -qF "$root/$source\"" "$build/compile_commands.json" || continue
    list=$(grep -m 1 -F "$root/$source " "$cache/dependencies" || true)
    [[ -n $list ]] || list="$source $(files 'include/*.hpp' 'src/*.hpp' | tr '\n' ' ')"
    # shellcheck disable=SC2086  # a list of paths
    key=$({ echo "$version"; cat $list; } | sha256sum | cut -c 1-32)
    [[ -e $cache/clean/$key ]] || todo+=("$key $source")
  done < <(files 'src/*.cpp' | grep '^src/')

  if [[ ${#todo[@]} -gt 0 ]]; then
    export tool build cache
    # shellcheck disable=SC2016  # expanded by the inner shell
    printf '%s\n' "${todo[@]}" | xargs -P "$(build_jobs)" -L 1 bash -c '
      if report=$("$tool" --quiet -p "$build" --extra-arg=-isystem"$cache/include" --extra-arg=-Wno-ignored-attributes --extra-arg=-Wno-unused-command-line-argument "$1" 2>&1); then
        touch "$cache/clean/$0"
      else
        grep -v "warnings generated\|warnings treated as errors" <<<"$report"
        exit 1
      fi'
  fi
  echo "clang-tidy: clean (${#todo[@]} files read anew)"
}

case "${1:-}" in
  format) format ;;
  tidy) tidy "${2:-}" ;;
  *) echo "usage: lint.sh format | tidy [BUILD]" >&2; exit 2 ;;
esac
