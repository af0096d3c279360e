#!/usr/bin/env bash
# Every deck that we ship passes its verification in some layout of 4 or 8 ranks; what is wrong with
# a deck is said as training would say it; nothing is left behind, and no deck can ask for a mistake.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

verify() { # CODE RANKS DECK KEYS...
  local code=$1 ranks=$2 deck=$3
  shift 3
  run "$code" "${mpi[@]}" "$ranks" "$TRIREME" -i "$deck" job.task=verify "$@"
}
nothing_left() {
  local left
  left=$(find . -mindepth 1 ! -name output ! -name deck.in ! -name harbour.h5)
  [[ -z $left ]] || fail "left behind: $left"
}

decks=("$TRIREME_SOURCE"/input/*.in)
layouts=(
  "grid.tensor=2 grid.sequence_parallel=yes"
  "grid.pipeline=2 pipeline.schedule=zero_bubble"
  "grid.data=4"
  "grid.tensor=2 grid.pipeline=2 model.recompute=full"
  "grid.tensor=4 model.recompute=selective"
  "grid.pipeline=2 grid.tensor=2 grid.sequence_parallel=yes pipeline.schedule=gpipe"
)
for i in "${!decks[@]}"; do
  read -ra keys <<<"${layouts[i % ${#layouts[@]}]}"
  vocabulary=50,257
  [[ ${decks[i]} != */llama3_* ]] || vocabulary=128,256
  verify 0 4 "${decks[i]}" run.precision=fp32 "${keys[@]}" # bf16 is not every CPU's
  says "verified: these 4 ranks compute what one computes"
  says "is not there yet: a vocabulary of $vocabulary is assumed"
  says "gradient norm, fp64"
  nothing_left
done
verify 0 8 "$TRIREME_SOURCE/input/gpt2_124m.in" grid.tensor=2 grid.pipeline=2 \
  grid.sequence_parallel=yes pipeline.schedule=interleaved pipeline.chunks=2
says "grid    pipeline 2 x data 2 x context 1 x tensor 2, sequence parallel; interleaved of 2 chunks, "
says "shrunk  layers 12 -> "
says "verified: these 8 ranks"

# With the token file; on one rank; in fp64; -v.
tiny_deck
# shellcheck disable=SC2119  # the deck's own tokens
tokens
verify 0 2 deck.in
says "data    harbour.h5: vocabulary"
says "loss, fp32"
verify 0 1 deck.in run.precision=fp64
says "only one rank was checked"
! grep -q "fp32" output || fail "a second run in fp64"
verify 0 2 deck.in -v
says "valid: everything was constructed"
nothing_left

# As training would say it, before anything is computed.
verify 2 4 deck.in grid.tensor=3
says "grid.tensor = 3 does not divide 4 ranks"
verify 2 4 deck.in grid.tensor=4
says "4 tensor ranks do not divide model.heads = 2"
verify 2 2 deck.in -r somewhere
says "-r has no meaning for job.task = verify"
verify 2 2 deck.in job.output=/proc/none/run
says "no temporary folder can be made in /proc"
nothing_left

# Mistakes are for tests: no key leads to one.
run 0 "$TRIREME" --help-deck
! grep -qi defect output || fail "the deck knows of defects"
for key in verify.defect job.defect run.defect; do
  verify 2 1 deck.in "$key=tied_gradient_not_summed"
  says "unknown"
done
