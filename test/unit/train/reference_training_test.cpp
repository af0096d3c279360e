// Training as a user runs it, against the plain reference in fp64: the losses of the first steps of
// the jsc model at its full size, dropout, clipping and AdamW included, in each precision.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan_of.hpp"
#include "reference.hpp"
#include "whole_model.hpp"

namespace trireme::test {
namespace {

// Largest relative difference of a step's loss.
constexpr double kFp32 = 1e-5;
constexpr double kFp64 = 1e-11;
constexpr double kBf16 = 1e-3;  // 8 bits of mantissa
// Least difference of the first loss, which fp32 has within 1e-9: less would mean that nothing was
// rounded.
constexpr double kBf16Least = 1e-8;
constexpr std::int64_t kSteps = 20, kFp64Steps = 6;
constexpr std::int64_t kBatch = 16, kLength = 32;
constexpr std::int64_t kVocabulary = 33278;  // of WikiText-2, words
constexpr std::uint32_t kSeed = 11;

using Ids = std::vector<std::int32_t>;

// The first tokens of WikiText-2; none if the file is not there. A number for each new word.
Ids WikiText(std::size_t count) {
  const char* shared = std::getenv("TRIREME_SHARED");
  std::ifstream file(std::string(shared == nullptr ? "" : shared) + "/data/wikitext-2/train.txt");
  Ids ids;
  std::unordered_map<std::string, std::int32_t> numbers;
  for (std::string line; ids.size() < count && std::getline(file, line);) {
    std::istringstream words(line + " <eos>");
    for (std::string word; words >> word;) {
      ids.push_back(numbers.emplace(word, static_cast<std::int32_t>(numbers.size())).first->second);
    }
  }
  return ids;
}

// Made up in its place, by Zipf's law: word r with probability about 1 / (r log V).
Ids Made(std::size_t count) {
  Ids ids;
  for (std::uint32_t i = 0; i < count; ++i) {
    const double uniform = 1 - UniformFrom(Philox({i, 0, 0, 0}, {1, 0})[0]);  // [0, 1)
    ids.push_back(static_cast<std::int32_t>(std::pow(static_cast<double>(kVocabulary), uniform)) -
                  1);
  }
  return ids;
}

std::vector<data::Entry> Batches() {
  const std::size_t count = kSteps * kBatch * kLength + 1;
  Ids ids = WikiText(count);
  if (ids.size() < count) ids = Made(count);
  std::vector<data::Entry> batches;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    data::Entry batch;
    batch.sequences = kBatch;
    batch.length = kLength;
    batch.valid = kBatch * kLength;
    const auto first = ids.begin() + step * batch.valid;
    batch.inputs.assign(first, first + batch.valid);
    batch.targets.assign(first + 1, first + 1 + batch.valid);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      batch.ordinals.push_back(static_cast<std::uint64_t>(step * kBatch + b));
    }
    batches.push_back(batch);
  }
  return batches;
}

// The model and the optimizer as a deck with `preset = jsc` has them; dropout everywhere.
struct Settings {
  model::Options model;
  train::OptimizerOptions optimizer;
  std::int64_t sequences = kBatch, length = kLength;
};
Settings Jsc() {
  deck::Schema schema;
  model::Declare(schema);
  train::DeclareOptimizerAndSchedule(schema);
  deck::Deck deck = deck::Deck::Parse(schema, "", "test", {"model.preset=jsc"});
  model::Resolve(deck);
  return {model::WithVocabulary(model::Read(deck), kVocabulary, deck), train::ReadOptimizer(deck)};
}

// A linear warm-up: in its first steps AdamW moves a weight by the whole rate in the direction of
// its gradient, and if that is rounding noise, so is the direction.
double Rate(std::int64_t step) {
  constexpr double kPeak = 1e-3;
  return kPeak * static_cast<double>(step + 1) / static_cast<double>(kSteps);
}

class Training {
 public:
  Training(const Settings& settings, Dtype dtype, bool bf16)
      : model_(PlanOf(settings, dtype), StreamOf(bf16)),
        optimizer_(settings.optimizer, model_.Parameters(), model_.Stream()) {}

  double Step(const data::Entry& batch, double rate) {
    model_.Parameters().ZeroGradients();
    const double loss = model_.ForwardBackward(batch, {});
    const auto count = static_cast<double>(batch.valid);
    optimizer_.Step(++step_, rate, std::sqrt(optimizer_.GradientSquares()) / count, batch.valid);
    return loss / count;
  }
  std::vector<double> Losses(const std::vector<data::Entry>& batches, std::int64_t steps) {
    std::vector<double> losses;
    for (std::int64_t i = 0; i < steps; ++i) {
      losses.push_back(Step(batches.at(static_cast<std::size_t>(i)), Rate(i)));
    }
    return losses;
  }

  // The weights, rounded to fp32, so that every precision starts from the same numbers.
  Parameters RoundedStart() {
    Parameters start;
    DispatchDtype(model_.Parameters().Type(), [&](auto zero) {
      for (const kernels::Parameter& parameter : model_.Parameters().Parameters()) {
        auto* from = static_cast<decltype(zero)*>(model_.Parameters().Values()) + parameter.offset;
        for (std::int64_t i = 0; i < parameter.LocalSize(); ++i) {
          from[i] = static_cast<decltype(zero)>(static_cast<float>(from[i]));
          start[parameter.name].push_back(static_cast<double>(from[i]));
        }
      }
    });
    return start;
  }

 private:
  static model::ModelPlan PlanOf(const Settings& settings, Dtype dtype) {
    model::ModelPlan plan;
    plan.options = settings.model;
    plan.dtype = dtype;
    plan.seed = kSeed;
    plan.length = settings.length;
    plan.micro_batch = settings.sequences;
    return plan;
  }
  static device::Stream StreamOf(bool bf16) {
    return {.threads = device::ConfigureThreads(0, 1), .bf16 = bf16};
  }
  WholeModel model_;
  train::Optimizer optimizer_;
  std::int64_t step_ = 0;
};

double LargestDifference(const std::vector<double>& losses, const std::vector<double>& right) {
  double largest = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double difference = std::abs(losses[i] - right.at(i)) / right.at(i);
    if (!std::isfinite(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

class TrainingAgainstReference : public testing::Test {
 protected:
  // The reference trains once for all tests.
  static void SetUpTestSuite() {
    batches_ = Batches();
    Training start(Jsc(), Dtype::kFloat32, false);
    ReferenceTraining reference(Jsc().model, Jsc().optimizer, start.RoundedStart(), kSeed);
    right_.clear();
    for (std::int64_t i = 0; i < kSteps; ++i) {
      right_.push_back(reference.Step(batches_.at(static_cast<std::size_t>(i)), Rate(i)));
    }
  }
  static std::vector<double> Losses(Dtype dtype, bool bf16, std::int64_t steps) {
    Training training(Jsc(), dtype, bf16);
    training.RoundedStart();
    std::vector<double> losses = training.Losses(batches_, steps);
    RecordProperty("largest_difference", fmt::format("{:.2e}", LargestDifference(losses, right_)));
    return losses;
  }
  inline static std::vector<data::Entry> batches_;
  inline static std::vector<double> right_;
};

TEST_F(TrainingAgainstReference, TheReferenceLearns) {
  EXPECT_NEAR(right_.front(), std::log(static_cast<double>(kVocabulary)), 0.5);
  EXPECT_LT(right_.back(), right_.front() - 0.5);
}

TEST_F(TrainingAgainstReference, InFp32) {
  EXPECT_LT(LargestDifference(Losses(Dtype::kFloat32, false, kSteps), right_), kFp32);
}

TEST_F(TrainingAgainstReference, InFp64) {
  EXPECT_LT(LargestDifference(Losses(Dtype::kFloat64, false, kFp64Steps), right_), kFp64);
}

TEST_F(TrainingAgainstReference, InBf16) {
  if (device::Bf16Instructions().empty()) GTEST_SKIP() << "this CPU has no bf16 instructions";
  const std::vector<double> losses = Losses(Dtype::kFloat32, true, kSteps);
  EXPECT_LT(LargestDifference(losses, right_), kBf16);
  EXPECT_GT(LargestDifference({losses.front()}, right_), kBf16Least);
}

// The coordinate check of muP (Yang et al. 2022, appendix D.1): after some steps at one rate, block
// outputs and logits have moved by as much in a wide model as in a narrow one.

constexpr std::int64_t kCoordinateSteps = 4;
// Largest ratio of two widths' moves that muP may have: of block outputs, and of logits, whose
// first values are smaller in a wide model.
constexpr double kSteady = 1.25, kSteadyLogits = 2;
constexpr double kGrows = 3;  // least ratio from 64 to 512 without it

// Mean |after - before| of each block's output and, last, of the logits.
std::vector<double> Moves(std::int64_t width, const std::string& kind, bool mup) {
  constexpr std::int64_t kSequences = 4, kTokens = 8, kTypes = 31;
  const deck::Deck deck = ParsedDeck(
      fmt::format("[model]\ndim={}\nheads=4\nlayers=2\nffn={}\ninit_deviation=0.1\n"
                  "max_positions=8\n{}[optimizer]\nkind={}\n",
                  width, 4 * width,
                  mup ? "parametrization=mup\nmup_base=64\nmup_base_head_dim=16\n" : "", kind));
  const train::DeckOptions options = train::ReadAll(deck);
  const Settings settings{model::WithVocabulary(options.model, kTypes, deck), options.optimizer,
                          kSequences, kTokens};
  Training training(settings, Dtype::kFloat32, false);
  const data::Entry batch = RandomBatch(kTypes, kSequences, kTokens, 0, 5);
  const auto run = [&] {
    return RunReference(settings.model, training.RoundedStart(), batch, kSeed, 0, false);
  };
  ReferenceResult before = run();
  for (std::int64_t step = 0; step < kCoordinateSteps; ++step) {
    training.Step(batch, kind == "lion" ? 1e-3 : 3e-3);
  }
  ReferenceResult after = run();
  before.blocks.push_back(before.logits);
  after.blocks.push_back(after.logits);
  std::vector<double> moves;
  for (std::size_t i = 0; i < before.blocks.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < before.blocks[i].size(); ++j) {
      sum += std::abs(after.blocks[i][j] - before.blocks[i][j]);
    }
    moves.push_back(sum / static_cast<double>(before.blocks[i].size()));
  }
  return moves;
}

TEST(CoordinateCheck, MupMovesAsMuchAtAnyWidth) {
  for (const std::string kind : {"adamw", "lion", "muon"}) {
    for (const bool mup : {true, false}) {
      std::vector<double> least, most, first, last;
      for (const std::int64_t width : {64, 128, 256, 512}) {
        last = Moves(width, kind, mup);
        if (first.empty()) first = least = most = last;
        std::string text;
        for (std::size_t i = 0; i < last.size(); ++i) {
          least[i] = std::min(least[i], last[i]);
          most[i] = std::max(most[i], last[i]);
          text += fmt::format(" {:.4f}", last[i]);
        }
        RecordProperty(fmt::format("{}_{}_{}", kind, mup ? "mup" : "standard", width), text);
      }
      for (std::size_t i = 0; i < first.size(); ++i) {
        if (mup) {
          const bool logits = i + 1 == first.size();
          EXPECT_LT(most[i] / least[i], logits ? kSteadyLogits : kSteady) << kind << " " << i;
        } else {
          EXPECT_GT(last[i] / first[i], kGrows) << kind << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
