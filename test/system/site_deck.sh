#!/usr/bin/env bash
# TRIREME_SITE_DECK: a site's defaults reach a run and its record, give way to the user's, and stay as they were where the
# run goes on under another site's deck.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens

cat >site.in <<'DECK'
# A site's defaults.
[checkpoint]
async = yes
keep = 3
every_minutes = 45
[monitor]
tensorboard = no
DECK
site=$scratch/site.in
value() { sed -n "s/^$2 *= *\([^ ]*\).*/\1/p" "$1"; }

# 1. The resolved deck: the site's values with their lines, but for what deck and command line state.
run 0 env TRIREME_SITE_DECK="$site" "$TRIREME" -i deck.in -n monitor.tensorboard=yes
grep -qE "^async +=+ yes +# from $site:3$" output || fail "async is not marked as the site's"
[[ $(value output tensorboard) == yes && $(value output keep) == 0 && $(value output every_minutes) == 0 ]] ||
  fail "the user's keys did not win"
run 0 env TRIREME_SITE_DECK= "$TRIREME" -i deck.in -n
[[ $(value output async) == no ]] || fail "an empty variable names no deck"

# 2. A run on two ranks, of which one alone knows the variable; then on, under a deck of another site.
run 0 "${mpi[@]}" 2 env TRIREME="$TRIREME" SITE="$site" bash -c \
  '[[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} != 0 ]] || export TRIREME_SITE_DECK=$SITE
   exec "$TRIREME" -i deck.in schedule.stop_at=10'
[[ $(value run/deck.in async) == yes && $(value run/deck.in tensorboard) == no ]] || fail "deck.in lacks the site's values"
"$python" -c "import json; deck = json.load(open('run/checkpoints/latest/run.json'))['deck']
assert 'async' in deck and '$site:3' in deck, deck" || fail "run.json lacks the site's values"
is_missing run/tensorboard
printf '[checkpoint]\nasync = no\n[monitor]\ntensorboard = yes\n' >other.in
run 0 env TRIREME_SITE_DECK="$scratch/other.in" "$TRIREME" -r run
[[ $(value run/deck.in async) == yes ]] || fail "another site's deck changed the run"
is_missing run/tensorboard

# 3. Errors: one message with the file, code 2, before anything is written.
for bad in "$scratch/missing.in" "$scratch"; do
  run 2 env TRIREME_SITE_DECK="$bad" "$TRIREME" -i deck.in -n
  says_once "$bad: the deck cannot be read"
  says TRIREME_SITE_DECK
  run 2 env TRIREME_SITE_DECK="$bad" "$TRIREME" -i deck.in job.output=never
  says_once "$bad: the deck cannot be read"
done
printf '[checkpoint]\nkeep = 2\n[data]\nfile = theirs.h5\n' >site.in
run 2 env TRIREME_SITE_DECK="$site" "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=never
says_once "$site:4: data.file = theirs.h5: not for a site's deck"
is_missing never
