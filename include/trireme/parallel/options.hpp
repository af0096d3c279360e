// The [pipeline] section, and the keys of [grid] and [run] about transfers and canonical sums.
#pragma once

#include <cstdint>

#include "trireme/deck/deck.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

// run.canonical = DxT and its leaf: the fixed tree of sums (doc/reference/numerics.md).
struct CanonicalOptions {
  int data_groups = 0;    // D, a power of two; 0: run.canonical = none
  int slices = 0;         // T, a power of two
  std::int64_t leaf = 0;  // sequences that are computed together; 0: chosen by the program
  bool On() const { return data_groups > 0; }
};

struct Options {
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  bool schedule_given = false;
  int chunks = 1;             // parts of the model per stage
  double bucket_mib = 4;      // MiB of gradients that are summed at once
  bool bucket_given = false;  // by the deck or the command line
  int prefetch = 1;           // layers whose sharded parameters are gathered ahead
  bool overlap = true;        // transfers run during the computation
  CanonicalOptions canonical;
};

// [pipeline]; grid.bucket_mib, prefetch, overlap; run.canonical, canonical_leaf.
void Declare(deck::Schema& schema);

// Throws InputError with the deck's line for a run.canonical that is no pair of powers of two, and
// for a leaf without it.
Options Read(const deck::Deck& deck);

// The schedule on `stages` stages; the number of micro-batches is left at 1. Throws InputError with
// the deck's line if schedule, chunks and stages do not go together.
PipelineShape MakePipelineShape(const Options& options, const deck::Deck& deck, int stages);

}  // namespace trireme::parallel
