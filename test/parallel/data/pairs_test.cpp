// Files of pairs by several ranks: written to the same bytes, read alike from every staging.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "scratch.hpp"
#include "trireme/data/pairs.hpp"

namespace trireme::data {
namespace {

class PairsOfRanks : public Scratch {
 protected:
  PairsOfRanks()
      : world_(comm::Communicator::Adopt(MPI_COMM_WORLD)), at_(world_.Broadcast(folder_)) {}

  static void Tokenize(const comm::Communicator& ranks, const std::string& path) {
    TestDeck deck({"tokenize.kind=numerals", "tokenize.numerals_pairs=40000"});
    TokenizeInParallel(ranks, ReadTokenize(deck.deck), deck.deck, path, {}, false);
  }

  const comm::Communicator world_;
  const std::string at_;  // a folder of all ranks
};

TEST_F(PairsOfRanks, HaveTheSameBytes) {
  Tokenize(world_, at_ + "/all.h5");
  if (world_.IsRoot()) {
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    Tokenize(self, at_ + "/one.h5");
    const std::string bytes = test::ReadBytes(at_ + "/all.h5");
    EXPECT_GT(bytes.size(), 1'000'000u);
    EXPECT_TRUE(bytes == test::ReadBytes(at_ + "/one.h5"));
  }
  world_.Barrier();
}

TEST_F(PairsOfRanks, AreReadAlikeFromEveryStaging) {
  Tokenize(world_, at_ + "/a.h5");
  for (const Staging staging :
       {Staging::kNone, Staging::kSharedMemory, Staging::kStream, Staging::kNode}) {
    Keeping keeping(staging);
    keeping.folder = at_;
    const PairFile file(world_, world_, at_ + "/a.h5", keeping);
    ASSERT_EQ(file.Pairs(Split::kTrain), 40000);
    const PairBatches batches(40000, LengthsOf(file, Split::kTrain), {.seed = 2});
    std::vector<std::int64_t> pairs;
    PairEntry entry;
    for (const std::int64_t step : {0, 3, 50}) {
      const PairBatchShape shape = batches.Shape(step);
      batches.Fill(step, PartOf(shape.pairs, world_.Rank(), world_.Size()), pairs);
      FillPairs(file, Split::kTrain, pairs, shape, entry);
      EXPECT_EQ(entry.target_length, shape.target_length);
      EXPECT_EQ(world_.Sum(entry.valid), shape.target_tokens);
      for (std::size_t i = 0; i < pairs.size(); i += 7) {
        const NumeralPair pair = MakeNumeralPair(1, Split::kTrain, pairs[i]);
        const std::int32_t* const ids =
            entry.targets.data() + static_cast<std::int64_t>(i) * entry.target_length;
        const std::vector<std::int32_t> target(ids, ids + entry.target_lengths[i]);
        EXPECT_EQ(target, file.Encode(Side::kTarget, pair.target));
        EXPECT_EQ(file.Decode(Side::kTarget, target), pair.target);
      }
    }
  }
}

// Lengths read without MPI, from the path alone.
TEST_F(PairsOfRanks, HaveLengthsWithoutBeingOpened) {
  Tokenize(world_, at_ + "/b.h5");
  const PairFile file(world_, world_, at_ + "/b.h5", Keeping());
  for (const Split split : kSplits) {
    const ReadPairLengths opened = LengthsOf(file, split), closed = LengthsOf(at_ + "/b.h5", split);
    const std::int64_t pairs = file.Pairs(split);
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{7}, pairs - 5}) {
      std::array<std::vector<std::int32_t>, 4> lengths;
      for (auto& each : lengths)
        each.resize(static_cast<std::size_t>(std::min(pairs - first, std::int64_t{300})));
      opened(first, lengths[0], lengths[1]);
      closed(first, lengths[2], lengths[3]);
      EXPECT_EQ(lengths[0], lengths[2]);
      EXPECT_EQ(lengths[1], lengths[3]);
    }
  }
  world_.Barrier();
}

}  // namespace
}  // namespace trireme::data
