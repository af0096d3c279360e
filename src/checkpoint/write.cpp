// One checkpoint, written at once.
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {

void Write(const comm::Communicator& world, const std::string& folder, std::int64_t step,
           const Contents& contents, bool best, std::int64_t keep) {
  Writer writer(world, {contents.model, contents.optimizer, contents.read}, {});
  writer.Begin({.folder = folder,
                .step = step,
                .run = contents.run,
                .best = best,
                .retention = {.keep = keep},
                .may_publish = {}});
  const Outcome outcome = writer.Finish();
  if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
}

}  // namespace trireme::checkpoint
