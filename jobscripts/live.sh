# shellcheck shell=bash
# Sourced by job scripts: a line that says how far a long command is and how long it still takes.

# live TEXT: on a terminal in the place of the line before; elsewhere a line every half minute.
live_said=-30
live() {
  if [[ -t 1 ]]; then
    printf '\r%s\e[K' "$1"
  elif ((SECONDS - live_said >= 30)); then
    printf '%s\n' "$1"
    live_said=$SECONDS
  fi
}
# live_ends TEXT: the last of them.
live_ends() {
  if [[ -t 1 ]]; then printf '\r%s\e[K\n' "$1"; else printf '%s\n' "$1"; fi
}
minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# build_live TREE OPTION...: cmake --build with Ninja, its steps as such a line, all else as it comes.
build_live() {
  local tree=$1 began=$SECONDS
  shift
  NINJA_STATUS='[%f/%t] ' cmake --build "$tree" "$@" 2>&1 | {
    while IFS= read -r line; do
      if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
        local done_=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]} elapsed=$((SECONDS - began)) left=
        # The first steps say little about the rest.
        ((done_ < 10 || elapsed < 5)) || left=", $(minutes $((elapsed * (total - done_) / done_))) left"
        live "compiled $done_ of $total, $(minutes "$elapsed")$left"
      else
        [[ ! -t 1 ]] || printf '\r\e[K'
        [[ $line == "ninja: no work to do." ]] || printf '%s\n' "$line"
      fi
    done
    ((SECONDS - began < 5)) || live_ends "built in $(minutes $((SECONDS - began)))"
  }
}
