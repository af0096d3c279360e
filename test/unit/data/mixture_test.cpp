// Mixtures of token files: quotas of an epoch, the order of the files' windows, their places after
// a change, and what is refused of data.mixture.
#include "trireme/data/sampler.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "scratch.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;

Proportion Weight(double weight) { return {.weight = weight}; }
Proportion Epochs(double epochs) { return {.epochs = epochs}; }

// Three files of 17, 5 and 40 windows, the last ones of which are short, whole and short.
Sampler::Options ThreeFiles(const std::vector<Proportion>& proportions, std::int64_t batch = 7) {
  constexpr std::int64_t kTokens[] = {163, 51, 396};
  Sampler::Options options{
      .tokens = 0, .length = 10, .stride = 10, .batch = batch, .seed = 5, .sources = {}};
  for (std::size_t i = 0; i < proportions.size(); ++i) {
    options.sources.push_back({kTokens[i % 3], proportions[i]});
  }
  return options;
}

std::vector<std::vector<Proportion>> Mixtures() {
  return {{Weight(0.7), Weight(0.3)},
          {Weight(5), Weight(1), Weight(3)},
          {Weight(1e-1), Weight(2), Weight(0.9), Weight(0.4), Weight(3)},
          {Epochs(2), Epochs(1)},
          {Epochs(1), Epochs(3.4), Epochs(0.5)},
          {Epochs(0.25)},
          {Weight(3)}};
}

TEST(Mixture, QuotasAreExact) {
  const std::vector<std::int64_t> windows = {100, 60, 41};
  EXPECT_EQ(Quotas(std::vector{Weight(7), Weight(3)}, std::vector<std::int64_t>{100, 100}),
            (std::vector<std::int64_t>{140, 60}));
  // 201 in 3 equal parts, and a remainder that goes to the first of the largest.
  EXPECT_EQ(Quotas(std::vector{Weight(1), Weight(1), Weight(2)}, windows),
            (std::vector<std::int64_t>{50, 50, 101}));
  EXPECT_EQ(Quotas(std::vector{Epochs(2), Epochs(0.29), Epochs(0.5)},
                   std::vector<std::int64_t>{60, 100, 41}),
            (std::vector<std::int64_t>{120, 29, 20}));
  // A common factor changes nothing.
  EXPECT_EQ(Quotas(std::vector{Weight(0.7), Weight(0.2), Weight(0.1)}, windows),
            Quotas(std::vector{Weight(7), Weight(2), Weight(1)}, windows));
  EXPECT_THAT(MessageOf([&] {
                Quotas(std::vector{Weight(1), Weight(1e-6), Weight(1)}, windows);
              }),
              HasSubstr("file 2 of 3 gives none of its 60 windows"));
  EXPECT_THAT(MessageOf([&] { Quotas(std::vector{Epochs(1e-3)}, windows); }),
              HasSubstr("gives none"));
}

TEST(Mixture, CountsStayNearTheSharesAndEndExactly) {
  for (const std::vector<std::int64_t>& quotas : {std::vector<std::int64_t>{1},
                                                  {70, 30},
                                                  {1, 1000},
                                                  {9, 1, 250},
                                                  {3, 3, 3, 3},
                                                  {5, 1, 77, 4, 100, 1, 13}}) {
    const Interleaving order(quotas);
    const double all = static_cast<double>(order.Windows());
    const double bound = std::ceil(std::log2(static_cast<double>(quotas.size()))) / 2 + 1e-9;
    std::vector<std::int64_t> counts(quotas.size(), 0);
    for (std::int64_t p = 0; p <= order.Windows(); ++p) {
      for (std::size_t i = 0; i < quotas.size(); ++i) {
        ASSERT_EQ(order.CountBefore(i, p), counts[i]) << p;
        ASSERT_LE(
            std::abs(static_cast<double>(counts[i]) - static_cast<double>(p * quotas[i]) / all),
            bound)
            << p;
      }
      if (p == order.Windows()) break;
      const Interleaving::Turn turn = order.At(p);
      auto& count = counts[static_cast<std::size_t>(turn.source)];
      ASSERT_EQ(turn.index, count) << p;
      ++count;
    }
    EXPECT_EQ(counts, quotas);
  }
}

TEST(Mixture, EachEpochOfAFileUsesEachOfItsWindowsOnce) {
  for (const std::vector<Proportion>& mixture : Mixtures()) {
    const Sampler sampler(ThreeFiles(mixture));
    std::vector<std::map<std::int64_t, std::int64_t>> uses(mixture.size());  // by start
    std::vector<std::int64_t> used(mixture.size(), 0), quota(mixture.size(), 0);
    std::int64_t ordinal = 0;
    for (std::int64_t step = 0; step < 4 * sampler.StepsPerEpoch(); ++step) {
      for (std::int64_t i = 0; i < sampler.BatchSize(step); ++i) {
        const Sample sample = sampler.At(step, i);
        ASSERT_EQ(sample.ordinal, ordinal++);
        const auto source = static_cast<std::size_t>(sample.source);
        ++quota[source];
        const std::int64_t epoch = used[source]++ / sampler.WindowsOf(sample.source);
        ASSERT_EQ(uses[source][sample.start]++, epoch) << "a window twice in an epoch of its file";
      }
      if ((step + 1) % sampler.StepsPerEpoch() != 0) continue;
      for (std::size_t i = 0; i < quota.size(); ++i) {
        ASSERT_EQ(quota[i], sampler.QuotaOf(static_cast<std::int64_t>(i))) << "step " << step;
      }
      std::fill(quota.begin(), quota.end(), 0);
    }
  }
}

TEST(Mixture, CountsOfTargetsAreThoseOfTheSamples) {
  for (const std::vector<Proportion>& mixture : Mixtures()) {
    const Sampler sampler(ThreeFiles(mixture));
    std::vector<SourcePlace> seen(mixture.size());
    std::int64_t all = 0;
    for (std::int64_t step = 0; step < 50; ++step) {
      ASSERT_EQ(sampler.TargetsBefore(step), all);
      ASSERT_EQ(sampler.Places(step), seen);
      std::int64_t batch = 0;
      for (const Sample& sample : sampler.Share(step, 0, 1)) {
        batch += sample.targets;
        SourcePlace& place = seen[static_cast<std::size_t>(sample.source)];
        ++place.windows;
        place.targets += sample.targets;
      }
      ASSERT_EQ(sampler.BatchTargets(step), batch);
      all += batch;
    }
  }
}

std::vector<Sample> Whole(const Sampler& sampler, std::int64_t step, int ranks) {
  std::vector<Sample> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Sample> share = sampler.Share(step, rank, ranks);
    all.insert(all.end(), share.begin(), share.end());
  }
  return all;
}

void ExpectSame(const std::vector<Sample>& got, const std::vector<Sample>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].source, wanted[i].source);
    ASSERT_EQ(got[i].start, wanted[i].start);
    ASSERT_EQ(got[i].targets, wanted[i].targets);
    ASSERT_EQ(got[i].ordinal, wanted[i].ordinal);
  }
}

TEST(Mixture, AnyNumberOfRanksTakesTheSameBatch) {
  const Sampler sampler(ThreeFiles({Weight(5), Weight(1), Weight(3)}));
  for (std::int64_t step = 0; step < 20; ++step) {
    for (const int ranks : {2, 3, 7, 10}) {
      ExpectSame(Whole(sampler, step, ranks), sampler.Share(step, 0, 1));
    }
  }
}

// Of an epoch's whole, batches of another size take the same windows in the same order.
TEST(Mixture, TheBatchDoesNotChangeTheOrder) {
  const Sampler one(ThreeFiles({Weight(5), Weight(1), Weight(3)}, 1));
  const Sampler many(ThreeFiles({Weight(5), Weight(1), Weight(3)}, 1000));
  std::vector<Sample> single;
  for (std::int64_t step = 0; step < one.StepsPerEpoch(); ++step) single.push_back(one.At(step, 0));
  ExpectSame(single, many.Share(0, 0, 1));
}

TEST(Mixture, OneFileHasTheOrderOfTheFileAlone) {
  Sampler::Options alone = ThreeFiles({});
  alone.tokens = 163;
  for (const Proportion& proportion : {Weight(3), Epochs(1)}) {
    const Sampler mixed(ThreeFiles({proportion})), plain(alone);
    for (std::int64_t step = 0; step < 3 * plain.StepsPerEpoch(); ++step) {
      ExpectSame(mixed.Share(step, 0, 1), plain.Share(step, 0, 1));
      ASSERT_EQ(mixed.TargetsBefore(step), plain.TargetsBefore(step));
    }
  }
}

Origin OriginOf(const Sampler& sampler, std::int64_t step) {
  return {step, sampler.NextSample(step), sampler.TargetsBefore(step), sampler.Places(step)};
}

TEST(Mixture, AnUnchangedMixtureGoesOnAsIfNeverStopped) {
  for (const std::vector<Proportion>& mixture : Mixtures()) {
    const Sampler::Options options = ThreeFiles(mixture);
    const Sampler whole(options);
    for (const std::int64_t stop : {1, 5, 9, 30}) {
      Sampler::Options later = options;
      later.origin = MoveOrigin(OriginOf(whole, stop), options, options);
      const Sampler rest(later);
      for (std::int64_t step = stop; step < stop + 40; ++step) {
        ExpectSame(rest.Share(step, 0, 1), whole.Share(step, 0, 1));
        ASSERT_EQ(rest.TargetsBefore(step), whole.TargetsBefore(step));
        ASSERT_EQ(rest.Places(step), whole.Places(step));
      }
      ASSERT_EQ(rest.StepsOf(90), whole.StepsOf(90));
    }
  }
}

// The next windows of each file are those that its own order has after the ones used.
void ExpectOwnOrders(const Sampler& sampler, std::int64_t first,
                     const std::vector<SourcePlace>& used, std::uint32_t seed) {
  std::vector<std::int64_t> next;
  for (const SourcePlace& place : used) next.push_back(place.windows);
  for (std::int64_t step = first; step < first + 40; ++step) {
    for (const Sample& sample : sampler.Share(step, 0, 1)) {
      const std::int64_t windows = sampler.WindowsOf(sample.source);
      const std::int64_t k = next[static_cast<std::size_t>(sample.source)]++;
      ASSERT_EQ(sample.start / 10, Permute(seed, k / windows, k % windows, windows)) << step;
    }
  }
}

TEST(Mixture, AfterAChangeEachFileGoesOnAtItsOwnPlace) {
  const Sampler::Options before = ThreeFiles({Weight(5), Weight(1), Weight(3)});
  const Sampler was(before);
  const std::int64_t stop = 6;
  const std::vector<SourcePlace> places = was.Places(stop);
  // Other weights; without the second file and in another order; with a new file in front.
  struct Change {
    std::vector<Source> sources;
    std::vector<int> from_of;
  };
  const std::vector<Source>& old = before.sources;
  const std::vector<Change> changes = {
      {{{old[0].tokens, Weight(1)}, {old[1].tokens, Weight(2)}, {old[2].tokens, Weight(2)}}, {}},
      {{{old[2].tokens, Weight(1)}, {old[0].tokens, Weight(2)}}, {2, 0}},
      {{{777, Epochs(1)}, {old[0].tokens, Epochs(2)}, {old[1].tokens, Epochs(0.5)}}, {-1, 0, 1}}};
  for (const Change& change : changes) {
    Sampler::Options after = before;
    after.sources = change.sources;
    after.origin = MoveOrigin(OriginOf(was, stop), before, after, change.from_of);
    std::vector<SourcePlace> wanted;
    for (std::size_t i = 0; i < after.sources.size(); ++i) {
      const int from = change.from_of.empty() ? static_cast<int>(i) : change.from_of[i];
      wanted.push_back(from < 0 ? SourcePlace{} : places[static_cast<std::size_t>(from)]);
    }
    const Sampler now(after);
    EXPECT_EQ(now.Places(stop), wanted);
    EXPECT_EQ(now.TargetsBefore(stop), was.TargetsBefore(stop));
    EXPECT_NEAR(now.Epochs(stop),
                static_cast<double>(was.NextSample(stop)) / static_cast<double>(was.Windows()),
                1.0 / static_cast<double>(now.Windows()));
    ExpectOwnOrders(now, stop, wanted, before.seed);
    // And stopped once more, with nothing changed.
    Sampler::Options again = after;
    again.origin = MoveOrigin(OriginOf(now, stop + 5), after, after);
    ExpectSame(Sampler(again).Share(stop + 9, 0, 1), now.Share(stop + 9, 0, 1));
  }
}

TEST(Mixture, AFileAloneBecomesPartOfAMixtureAndBack) {
  Sampler::Options alone = ThreeFiles({});
  alone.tokens = 396;
  const Sampler was(alone);
  const Origin position{9, was.NextSample(9), was.TargetsBefore(9)};
  Sampler::Options mixed = ThreeFiles({Weight(1), Weight(1), Weight(3)});
  mixed.origin = MoveOrigin(position, alone, mixed, {-1, -1, 0});
  const Sampler now(mixed);
  const std::vector<SourcePlace> wanted = {{}, {}, {position.sample, position.targets}};
  EXPECT_EQ(now.Places(9), wanted);
  ExpectOwnOrders(now, 9, wanted, alone.seed);
  Sampler::Options back = alone;
  back.origin = MoveOrigin(OriginOf(now, 20), mixed, back, {2});
  ExpectOwnOrders(Sampler(back), 20, {now.Places(20)[2]}, alone.seed);
}

// Half of each file's windows stay half of them.
TEST(Mixture, WithOtherWindowsEachFileKeepsItsFraction) {
  const Sampler::Options before = ThreeFiles({Epochs(2), Epochs(2)}, 1);
  const Sampler was(before);
  Sampler::Options after = before;
  after.length = after.stride = 5;
  const std::int64_t stop = was.StepsPerEpoch() / 2;
  after.origin = MoveOrigin(OriginOf(was, stop), before, after);
  const Sampler now(after);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto source = static_cast<std::int64_t>(i);
    const std::int64_t k = was.Places(stop)[i].windows, windows = was.WindowsOf(source);
    EXPECT_EQ(now.Places(stop)[i].windows,
              k / windows * now.WindowsOf(source) + k % windows * now.WindowsOf(source) / windows);
  }
}

TEST(Mixture, OriginsOfAnotherMixtureAreRefused) {
  Sampler::Options options = ThreeFiles({Weight(1), Weight(1)});
  options.origin.sources = {{3, 30}};
  EXPECT_THAT(MessageOf([&] { Sampler{options}; }), HasSubstr("places of 1 files"));
  options.origin.sources = {{3, 30}, {-1, 0}};
  EXPECT_THAT(MessageOf([&] { Sampler{options}; }), HasSubstr("windows used is -1"));
  options.origin.sources = {{3, 30}, {std::int64_t{1} << 60, 0}};
  EXPECT_THAT(MessageOf([&] { Sampler{options}; }), HasSubstr("not a position of a run"));
}

class MixtureFiles : public Scratch {
 protected:
  deck::Deck DeckOf(const std::string& value) {
    Declare(schema_);
    return deck::Deck::Parse(schema_, "[data]\nbatch=1\nmixture=" + value + "\n", "a.in", {});
  }
  std::string Refusal(const std::string& value) {
    schema_ = {};
    const deck::Deck deck = DeckOf(value);
    return MessageOf([&] { static_cast<void>(Read(deck)); });
  }
  deck::Schema schema_;
};

TEST_F(MixtureFiles, ListsAreReadAsWritten) {
  const std::vector<MixtureFile> files =
      Read(DeckOf(" a.h5 : 0.7,data:2/b*c.h5:3e-1 , c.h5:7")).mixture;
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].path, "a.h5");
  EXPECT_EQ(files[0].proportion, Weight(0.7));
  EXPECT_EQ(files[1].path, "data:2/b*c.h5");
  EXPECT_EQ(files[1].proportion, Weight(0.3));
  EXPECT_EQ(files[2].path, "c.h5");
  EXPECT_EQ(files[2].proportion, Weight(7));
  schema_ = {};
  const Options options = Read(DeckOf("b.h5*2, c.h5*0.5"));
  EXPECT_EQ(options.mixture[1].proportion, Epochs(0.5));
  EXPECT_EQ(options.file, "b.h5");
}

TEST_F(MixtureFiles, BadListsAreRefusedWithTheDecksLine) {
  for (const auto& [value, message] : std::map<std::string, std::string>{
           {"a.h5", "has neither a weight nor a number of epochs"},
           {"a.h5:0.7,", "an entry of the list is empty"},
           {"a.h5:0.7,,b.h5:1", "an entry of the list is empty"},
           {"a.h5:0", "a weight above 0 expected, '0' found"},
           {"a.h5:-1", "a weight above 0 expected, '-1' found"},
           {"a.h5:nan", "'nan' found"},
           {"a.h5:inf", "'inf' found"},
           {"a.h5:0.7x", "'0.7x' found"},
           {"a.h5:", "'' found"},
           {"a.h5*0", "a number of epochs above 0 expected"},
           {"a.h5*1e300", "a number of epochs above 0 expected"},
           {":0.5", "names no file"},
           {"a.h5:1, b.h5*2", "weights (:) and numbers of epochs (*) in one list"},
           {"a.h5:1, a.h5:2", "a.h5 is there twice"}}) {
    EXPECT_THAT(Refusal(value), HasSubstr(message)) << value;
    EXPECT_THAT(Refusal(value), HasSubstr("a.in:3")) << value;
  }
}

TEST_F(MixtureFiles, BothKeysAreRefused) {
  Declare(schema_);
  EXPECT_THAT(MessageOf([&] {
                deck::Deck::Parse(schema_, "[data]\nfile=a.h5\nmixture=b.h5:1\n", "a.in", {});
              }),
              HasSubstr("a.in:3"));
  const deck::Deck deck =
      deck::Deck::Parse(schema_, "[data]\nmixture=b.h5:1\n", "a.in", {"data.file=c.h5"});
  EXPECT_TRUE(Read(deck).mixture.empty());
  EXPECT_EQ(Read(deck).file, "c.h5");
}

TEST_F(MixtureFiles, MissingFilesAndOneFileTwiceAreRefused) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  std::filesystem::create_symlink("a.h5", In("link.h5"));
  const auto refusal = [&](const std::string& value) {
    schema_ = {};
    const deck::Deck deck = DeckOf(value);
    return MessageOf([&] { CheckMixtureFiles(Read(deck).mixture, deck); });
  };
  EXPECT_EQ(refusal(In("a.h5") + ":1"), "");
  EXPECT_THAT(refusal(In("a.h5") + ":1," + In("b.h5") + ":1"), HasSubstr("b.h5: no such file"));
  EXPECT_THAT(refusal(In("a.h5") + ":1," + In("./a.h5") + ":1"), HasSubstr("are one file"));
  EXPECT_THAT(refusal(In("link.h5") + ":1," + In("a.h5") + ":1"), HasSubstr("are one file"));
}

TEST_F(MixtureFiles, EntriesTakeEachWindowFromItsFile) {
  TokenData other = SmallData();
  other.tokens[0] = {3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 1};
  WriteTokenFile(In("a.h5"), SmallData(), false);
  WriteTokenFile(In("b.h5"), other, false);
  std::vector<TokenFile> files;
  files.push_back(Open(In("a.h5")));
  files.push_back(Open(In("b.h5")));
  const Sampler sampler({.tokens = 0,
                         .length = 3,
                         .stride = 3,
                         .batch = 4,
                         .seed = 1,
                         .sources = {{10, Weight(1)}, {11, Weight(1)}}});
  for (std::int64_t step = 0; step < 4; ++step) {
    const std::vector<Sample> samples = sampler.Share(step, 0, 1);
    Entry entry;
    FillEntry({samples, Corpus(std::span<const TokenFile>(files)), Split::kTrain}, 3, entry);
    EXPECT_EQ(entry.valid, sampler.BatchTargets(step));
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto source = static_cast<std::size_t>(samples[i].source);
      EXPECT_EQ(entry.inputs[3 * i],
                files[source].View(Split::kTrain, samples[i].start, 1, false).Id(0));
    }
  }
}

}  // namespace
}  // namespace trireme::data
