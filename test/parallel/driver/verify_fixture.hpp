// Shared by the tests of verification: a large deck, and its small run on the ranks at hand.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_VERIFY_FIXTURE_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_VERIFY_FIXTURE_HPP_

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>

#include "plan_of.hpp"
#include "small_run.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/verify.hpp"

namespace trireme::test {

inline constexpr int kRanks = 8;
inline constexpr std::int64_t kDeckBatch = 96;

// Pre-norm, tied, dropout everywhere; far too large to be run here.
inline constexpr const char* kDeck =
    R"([data]
sequence_length = 512
batch = 96
micro_batch = 8
[model]
dim = 1024
heads = 8
kv_heads = 4
layers = 24
ffn = 4096
dropout = 0.1
attention_dropout = 0.1
ffn_dropout = 0.1
max_positions = 1024
[optimizer]
label_smoothing = 0.1
[schedule]
steps = 1000
warmup_steps = 100
)";

class Verifying : public testing::Test {
 protected:
  Verifying() : world_(World()), folder_(world_) {}

  struct Large {
    deck::Deck deck;
    comm::GridShape grid;
    comm::GridOptions sharing;
    train::TrainingOptions setup;
    device::Stream stream;
  };
  // The deck with other keys, "section.key=value ...", as large as it is.
  Large Read(const std::string& keys, int ranks = kRanks) const {
    std::istringstream words(keys);
    std::vector<std::string> overrides{std::istream_iterator<std::string>(words), {}};
    constexpr std::int64_t kTokens = 1 << 20;  // windows enough for the largest batch
    train::TokenFacts facts{
        .vocabulary = kVocabulary, .train = kTokens, .source = "made up", .loss_mask = loss_mask_};
    if (pairs_) {
      const bool shared = keys.find("shared_vocabulary=no") == std::string::npos;
      overrides.emplace_back("model.kind=encoder_decoder");
      facts.pairs = train::PairFacts{.source_vocabulary = kVocabulary + (shared ? 0 : 7),
                                     .shared_vocabulary = shared,
                                     .pairs = kTokens,
                                     .steps = kTokens / kDeckBatch,
                                     .batch = kDeckBatch};
    }
    const train::Plan plan = PlanOf(kDeck, facts, ranks, Dtype::kFloat32, overrides);
    return {ParsedDeck(kDeck, overrides), plan.grid, plan.sharing, plan.options,
            plan.machine.stream};
  }

  tasks::Verification Run(const std::string& keys, Defect defect = Defect::kNone,
                          Dtype precision = Dtype::kFloat32) {
    const Large large = Read(keys);
    comm::ProcessGrid grid(world_, large.grid, large.sharing);
    Spoil(grid, defect);
    const train::TrainingOptions small = tasks::Shrink(large.setup, large.grid);
    const std::string folder = folder_ / std::to_string(runs_++);
    world_.Together([&] {
      if (world_.IsRoot()) std::filesystem::create_directories(folder);
    });
    return tasks::Verify(grid, small, large.stream, precision, folder);
  }

  comm::Communicator world_;
  SharedFolder folder_;
  int runs_ = 0;
  bool loss_mask_ = false;
  bool pairs_ = false;  // a model that translates
};

inline const tasks::VerifiedQuantity& Quantity(const tasks::Verification& verification,
                                               const std::string& name) {
  for (const auto& quantity : verification.quantities) {
    if (quantity.name == name) return quantity;
  }
  ADD_FAILURE() << "no quantity " << name;
  return verification.quantities.front();
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_VERIFY_FIXTURE_HPP_
