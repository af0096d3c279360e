// run.canonical in a plan: checks of layout and model, and the size of a leaf.
#pragma once

#include <cstdint>

#include "trireme/parallel/canonical.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::train {

// batch: most windows of a step. Throws InputError with the deck's line if layout, model, precision
// or device rule out run.canonical.
parallel::Canonical MakeCanonical(const Request& request, const model::Options& model,
                                  const comm::GridShape& grid, std::int64_t batch);

// Throws InputError if data.micro_batch is given and not a multiple of the leaf.
void CheckLeaves(const Request& request, const parallel::Canonical& canonical);

}  // namespace trireme::train
