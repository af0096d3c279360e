// Masks of documents and of the loss in entries, against their definitions position by position.
#include <array>
#include <random>

#include "scratch.hpp"
#include "trireme/data/batch.hpp"

namespace trireme::data {
namespace {

using testing::ElementsAre;

// Tokens with documents and a mask of the loss, both at random, and the rules read off them.
struct Text {
  explicit Text(std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&](int count) { return static_cast<int>(random() % count); };
    constexpr int kTokens = 90, kWords = 4;
    const int rarity = 1 + below(12);
    for (std::int64_t i = 0; i < kTokens; ++i) {
      ids.push_back(below(kWords));
      begins.push_back(i == 0 || below(rarity) == 0);
      counted.push_back(below(3) > 0 ? 1 : 0);
    }
    data = SmallData();
    data.tokens[0] = ids;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      if (begins[static_cast<std::size_t>(i)]) data.documents[0].push_back(i);
    }
    data.counted[0] = counted;
  }

  // Position in a window from `start` on of the beginning of the document of position `at`.
  std::int64_t BeginOf(std::int64_t start, std::int64_t at) const {
    while (at > 0 && !begins.at(static_cast<std::size_t>(start + at))) --at;
    return at;
  }

  std::vector<std::int32_t> ids;
  std::vector<bool> begins;
  std::vector<std::uint8_t> counted;
  TokenData data;
};

TokenFile InMemory(const TokenData& data) {
  return TokenFile(comm::Communicator::Adopt(MPI_COMM_SELF), data);
}

struct Masks {
  bool documents = false, loss = false;
};
constexpr std::array<Masks, 4> kMasks = {Masks{}, Masks{true, false}, Masks{false, true},
                                         Masks{true, true}};

// The entry of `samples` by the definitions.
void Expect(const Text& text, const Masks& masks, const std::vector<Sample>& samples,
            const Entry& entry, const std::string& what) {
  std::int64_t valid = 0, keys = 0;
  ASSERT_EQ(entry.begins.size(), masks.documents ? entry.inputs.size() : 0) << what;
  std::size_t row = 0;
  for (const Sample& sample : samples) {
    for (std::int64_t p = 0; p < entry.length; ++p, ++row) {
      const std::int64_t at = entry.positions.At(p);
      const bool there = at < sample.targets;
      const auto target = static_cast<std::size_t>(sample.start + at + 1);
      const bool counts = there && !(masks.documents && text.begins[target]) &&
                          !(masks.loss && text.counted[target] == 0);
      valid += counts ? 1 : 0;
      EXPECT_EQ(entry.inputs[row], there ? text.ids[target - 1] : 0) << what;
      EXPECT_EQ(entry.targets[row], counts ? text.ids[target] : kMasked) << what;
      if (!masks.documents) continue;
      if (there) {
        const std::int64_t begin = text.BeginOf(sample.start, at);
        EXPECT_EQ(entry.begins[row], begin) << what << ", position " << at;
        keys += at - begin + 1;
      } else {
        EXPECT_LE(entry.begins[row], at) << what;
      }
      if (p == 0) continue;
      EXPECT_GE(entry.begins[row], entry.begins[row - 1]) << what;
    }
  }
  EXPECT_EQ(entry.valid, valid) << what;
  EXPECT_EQ(entry.visible_keys, keys) << what;
}

TEST(BatchMasks, FollowTheirDefinitionsAtEveryPosition) {
  constexpr std::int64_t kLength = 11;
  Entry entry;  // reused: nothing of the last fill is left
  std::vector<Window> windows;
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const Text text(seed);
    // At the split's beginning and end, overlapping, and short.
    const std::vector<Sample> samples = {{0, 0, kLength}, {1, 3 + seed % 40, kLength},
                                         {2, 78, 11},     {3, 80, 9},
                                         {4, 88, 1},      {5, 20 + seed % 7, 5}};
    for (const Masks& masks : kMasks) {
      TokenData data = text.data;
      if (!masks.loss) data.counted[0].clear();
      const TokenFile file = InMemory(data);
      ReadWindows(file, Split::kTrain, samples, windows);
      for (const int ranks : {1, 2, 3, 6, 13}) {
        for (int rank = 0; rank < ranks; ++rank) {
          FillEntry(windows, samples, kLength, entry, PositionsOf(kLength, rank, ranks),
                    masks.documents);
          Expect(text, masks, samples, entry,
                 "seed " + std::to_string(seed) + ", rank " + std::to_string(rank) + " of " +
                     std::to_string(ranks));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The same entry from the file's own tokens, whose mask of the loss always counts.
TEST(BatchMasks, TheLossMaskCountsWithoutBeingAskedFor) {
  const Text text(7);
  const TokenFile file = InMemory(text.data);
  const std::vector<Sample> samples = {{0, 5, 8}, {1, 40, 8}};
  Entry entry;
  FillEntry(file, Split::kTrain, samples, 8, entry);
  Expect(text, {.documents = false, .loss = true}, samples, entry, "from the file");
}

TEST(BatchMasks, DocumentsThatBeginAtTheEdgesOfAWindow) {
  TokenData data = SmallData();  // 0 1 2 3 0 1 2 3 1 0
  data.documents[0] = {0, 2, 6, 7};
  const TokenFile file = InMemory(data);
  const std::vector<Sample> samples = {{0, 2, 4}, {1, 3, 4}, {2, 8, 1}};
  std::vector<Window> windows;
  ReadWindows(file, Split::kTrain, samples, windows);
  EXPECT_THAT(windows[0].documents, ElementsAre(0, 4));  // the last is a target alone
  EXPECT_THAT(windows[1].documents, ElementsAre(3, 4));
  EXPECT_THAT(windows[2].documents, ElementsAre());
  Entry entry;
  FillEntry(windows, samples, 4, entry, {}, true);
  EXPECT_THAT(entry.begins, ElementsAre(0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0));
  EXPECT_THAT(entry.targets,
              ElementsAre(3, 0, 1, kMasked, 0, 1, kMasked, kMasked, 0, kMasked, kMasked, kMasked));
  EXPECT_EQ(entry.valid, 3 + 2 + 1);
  EXPECT_EQ(entry.visible_keys, 10 + (6 + 1) + 1);
}

TEST(BatchMasks, AWindowOfFewerTokensThanItsSampleIsRefused) {
  const std::vector<Window> windows = {{{1, 2, 3}, {}, {}}};
  Entry entry;
  EXPECT_THROW(FillEntry(windows, std::vector<Sample>{{0, 0, 3}}, 4, entry), std::logic_error);
  EXPECT_NO_THROW(FillEntry(windows, std::vector<Sample>{{0, 0, 2}}, 4, entry));
}

}  // namespace
}  // namespace trireme::data
