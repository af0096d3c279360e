// Verification's made-up data: tokens, or pairs of texts for a model that translates.
#include "made_up_data.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "trireme/data/sampler.hpp"

namespace trireme::tasks {

namespace {

constexpr std::int64_t kValidSamples = 5;

// Windows or pairs. A second step has fewer: then, or in the first, data ranks have unequal shares.
std::int64_t SamplesOfAnEpoch(const train::TrainingOptions& small) {
  return small.batch + std::max<std::int64_t>(small.batch - 1, 1);
}

// All of the vocabulary in turn, and between them a few common tokens.
std::int32_t TokenAt(data::Split split, std::int64_t i, std::int64_t vocabulary) {
  constexpr std::int64_t kCommon = 5, kEveryThird = 3;
  const std::int64_t any =
      data::Permute(static_cast<std::uint32_t>(split), i / vocabulary, i % vocabulary, vocabulary);
  const std::int64_t common = i % std::min(kCommon, vocabulary);
  return static_cast<std::int32_t>(i % kEveryThird == 0 ? common : any);
}

void AddWords(std::int64_t vocabulary, data::TokenData& data) {
  for (std::int64_t id = 0; id < vocabulary; ++id) {
    data.vocabulary.words.push_back(std::to_string(id));
  }
  data.tokenizer = "word";
}

// Documents of uneven lengths, some of which end at a window's edges, and targets that do not
// count, if the deck's run has them.
void AddMasks(const train::TrainingOptions& small, data::TokenData& data) {
  constexpr std::int64_t kLongest = 5, kEvery = 4;
  for (const data::Split split : data::kSplits) {
    const auto i = static_cast<std::size_t>(split);
    const std::int64_t count = std::ssize(data.tokens[i]);
    if (small.model.document_mask) {
      for (std::int64_t at = 0, place = 0; at < count; at += 1 + place++ % kLongest) {
        data.documents[i].push_back(at);
      }
    }
    // More in front than at the end: the ranks' counts differ.
    for (std::int64_t t = 0; small.loss_mask && t < count; ++t) {
      data.counted[i].push_back(t < count / 2 ? t % kEvery != 0 : t % 2);
    }
  }
}

// Texts of every length from 2 to the longest, in turn; `stride` apart.
data::TokenData Texts(const train::TrainingOptions& small, std::int64_t vocabulary,
                      std::int64_t stride) {
  data::TokenData data;
  AddWords(vocabulary, data);
  const auto eos = static_cast<std::int32_t>(data.vocabulary.eos);
  for (const data::Split split : data::kSplits) {
    const auto s = static_cast<std::size_t>(split);
    std::vector<std::int32_t>& tokens = data.tokens.at(s);
    const std::int64_t count =
        split == data::Split::kTrain ? SamplesOfAnEpoch(small) : kValidSamples;
    for (std::int64_t i = 0; i < count; ++i) {
      data.documents.at(s).push_back(std::ssize(tokens));
      const std::int64_t length = small.model.length - i * stride % (small.model.length - 1);
      for (std::int64_t t = 0; t + 1 < length; ++t) {
        tokens.push_back(TokenAt(split, std::ssize(tokens), vocabulary));
      }
      tokens.push_back(eos);
    }
  }
  return data;
}

data::PairFile MakePairs(const comm::Communicator& world, const train::TrainingOptions& small) {
  const model::Options& o = small.model.options;
  const std::int64_t sources = o.shared_vocabulary ? o.vocabulary : o.source_types;
  constexpr std::int64_t kSourceStride = 1, kTargetStride = 3;
  return {world, Texts(small, sources, kSourceStride), Texts(small, o.vocabulary, kTargetStride),
          o.shared_vocabulary};
}

}  // namespace

data::TokenData VerificationTokens(const train::TrainingOptions& small) {
  const std::int64_t vocabulary = small.model.options.vocabulary;
  const std::int64_t length = small.model.length, stride = small.stride;
  const std::int64_t windows = SamplesOfAnEpoch(small);
  // The last window is half as long, or as short as none of it is the one before's.
  const std::int64_t shorter = std::min({length / 2, stride - 1, length - 1});
  const std::int64_t targets = (windows - 1) * stride + length - shorter;
  data::TokenData data;
  for (const data::Split split : data::kSplits) {
    std::vector<std::int32_t>& tokens = data.tokens.at(static_cast<std::size_t>(split));
    const std::int64_t count =
        split == data::Split::kTrain ? targets + 1 : kValidSamples * length - length / 2 + 1;
    for (std::int64_t i = 0; i < count; ++i) tokens.push_back(TokenAt(split, i, vocabulary));
  }
  AddMasks(small, data);
  AddWords(vocabulary, data);
  return data;
}

MadeUpData::MadeUpData(const comm::Communicator& world, const train::TrainingOptions& small) {
  if (small.pairs) {
    pairs_.emplace(MakePairs(world, small));
  } else {
    tokens_.emplace(world, VerificationTokens(small));
  }
}

std::int64_t MadeUpData::TrainSize(const train::TrainingOptions& small) {
  return small.pairs ? SamplesOfAnEpoch(small) : std::ssize(VerificationTokens(small).tokens[0]);
}

train::TrainingStep MadeUpData::MakeStep(train::TrainingState& state) const {
  if (pairs_) return {state, *pairs_};
  return {state, *tokens_};
}

double MadeUpData::ValidationLoss(model::ParallelModel& model) const {
  constexpr data::Split kValid = data::Split::kValid;
  return pairs_ ? train::EvaluatePairs(model, *pairs_, kValid, {}).loss
                : train::Evaluate(model, *tokens_, kValid).loss;
}

}  // namespace trireme::tasks
