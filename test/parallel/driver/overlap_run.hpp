// The run whose transfers beside computation are looked at.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_OVERLAP_RUN_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_OVERLAP_RUN_HPP_

#include <fmt/format.h>

#include <string>
#include <vector>

#include "training_run.hpp"

namespace trireme::test {

inline std::string OverlapDeck(int batch, int layers, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nmicro_batch=1\nbatch={}\n[model]\nlayers={}\n"
      "heads=8\nkv_heads=4\nhead_dim=3\ndim=12\nffn=17\nmax_positions=7\n[schedule]\nsteps=20\n"
      "[grid]\nbucket_mib=0.001\n{}",
      batch, layers, layout);
}

inline std::int64_t BlocksOf(const TrainingRun& run) {
  std::int64_t blocks = 0;
  for (const Part& chunk : run.Net().LocalPlan().chunks) blocks += chunk.Size();
  return blocks;
}

// The micro-batches of step 0, as the training step cuts them.
inline std::vector<data::Entry> BatchesOf(TrainingRun& run, const data::TokenFile& tokens) {
  const comm::Communicator& data = run.Grid().Data();
  const auto share = run.Step().Samples().Share(0, data.Rank(), data.Size());
  std::vector<data::Entry> batches(share.size());
  for (std::size_t i = 0; i < share.size(); ++i) {
    data::FillEntry(tokens, data::Split::kTrain, {&share[i], 1}, run.Net().Plan().length,
                    batches[i]);
  }
  return batches;
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_OVERLAP_RUN_HPP_
