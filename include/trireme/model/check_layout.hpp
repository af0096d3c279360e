// Check that a layout suits a model; names of layouts that do.
#ifndef TRIREME_MODEL_CHECK_LAYOUT_HPP_
#define TRIREME_MODEL_CHECK_LAYOUT_HPP_

#include <cstdint>

#include "trireme/comm/process_grid.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/options.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::model {

// Whether this many tensor ranks and stages (of `chunks` chunks) can share the model.
bool LayoutFits(const Options& options, int chunks, std::int64_t tensor, std::int64_t pipeline);

// Throws InputError with the deck's line if the grid or the pipeline does not suit the model:
// heads, hidden features and vocabulary against grid.tensor, layers against stages and chunks.
// Names the nearest layouts of these ranks that do.
void CheckLayout(const deck::Deck& deck, const Options& options, const comm::GridShape& grid,
                 const parallel::PipelineShape& pipeline);
// Throws InputError if a step's micro-batches do not suit the schedule. share: windows of a data
// rank in a step; micro_batch: sequences at once, a multiple of `unit`.
void CheckMicroBatches(const deck::Deck& deck, const parallel::PipelineShape& pipeline,
                       std::int64_t data_ranks, std::int64_t share, std::int64_t micro_batch,
                       std::int64_t unit = 1);

}  // namespace trireme::model

#endif  // TRIREME_MODEL_CHECK_LAYOUT_HPP_
