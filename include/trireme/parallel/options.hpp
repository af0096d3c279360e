// The [pipeline] section, and the keys of [grid] and [run] for transfers and canonical sums.
#pragma once

#include "trireme/deck/deck.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

struct Options {
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  bool schedule_given = false;
  int chunks = 1;             // parts of the model per stage
  double bucket_mib = 4;      // MiB of gradients per bucket, summed by one transfer
  bool bucket_given = false;  // bucket_mib is in the deck or on the command line
  int prefetch = 1;           // layers whose sharded parameters are gathered in advance
  bool overlap = true;        // transfers run while the model computes
  Canonical canonical;        // run.canonical and canonical_leaf; leaf 0: chosen by the program
};

// Declares [pipeline]; grid.bucket_mib, prefetch, overlap; run.canonical, canonical_leaf.
void Declare(deck::Schema& schema);

// Throws InputError with the deck's line if run.canonical is not DxT with powers of two, or if
// run.canonical_leaf is given without it.
Options Read(const deck::Deck& deck);

// The shape of a pipeline of `stages` stages, with micro_batches left at 1. Throws InputError with
// the deck's line if schedule, chunks and stages contradict each other.
PipelineShape MakePipelineShape(const Options& options, const deck::Deck& deck, int stages);

}  // namespace trireme::parallel
