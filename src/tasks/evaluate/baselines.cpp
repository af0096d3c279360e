// Baselines: the train split read once, and the sums over evaluated targets.
#include "trireme/tasks/baselines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/exact_sum.hpp"
#include "trireme/data/split_reader.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // tokens read and evaluated at once

// The targets of a split in pieces, each with the tokens before it that its contexts need.
class TargetReader {
 public:
  TargetReader(const data::TokenFile& file, data::Split split, bool document_mask)
      : reader_(file, split, document_mask), document_mask_(document_mask) {}

  // Adds the next piece to `stream`; false: there is none.
  bool Next(TargetStream& stream) {
    if (at_ >= reader_.Size()) return false;
    const std::int64_t count = std::min(kPiece, reader_.Size() - at_);
    reader_.Read(at_, count, window_);
    data::CountTargets(window_, document_mask_);
    auto begin = window_.documents.begin();
    for (std::int64_t i = 0; i < count; ++i, ++at_) {
      const auto place = static_cast<std::size_t>(i);
      const bool begins = begin != window_.documents.end() && *begin == i;
      if (begins) ++begin;
      const bool starts = at_ == 0 || (document_mask_ && begins);
      known_ = starts ? 0 : std::min(known_ + 1, kOrder - 1);
      if (at_ > 0 && window_.counted[place] != 0) {
        stream.targets.push_back(static_cast<std::uint32_t>(stream.ids.size()));
      }
      stream.ids.push_back(static_cast<std::uint32_t>(window_.ids[place]));
      stream.known.push_back(static_cast<std::uint8_t>(known_));
    }
    return true;
  }

 private:
  data::SplitReader reader_;
  const bool document_mask_;
  data::Window window_;
  std::int64_t at_ = 0;
  int known_ = 0;
};

// Leaves only the last tokens, as context of the next piece.
void KeepContext(TargetStream& stream) {
  const auto kept = static_cast<std::ptrdiff_t>(
      std::min(stream.ids.size(), static_cast<std::size_t>(kOrder - 1)));
  stream.ids.erase(stream.ids.begin(), stream.ids.end() - kept);
  stream.known.erase(stream.known.begin(), stream.known.end() - kept);
  stream.targets.clear();
}

}  // namespace

TargetStream ReadTargets(const data::TokenFile& file, data::Split split, bool document_mask) {
  TargetStream stream;
  const auto tokens = static_cast<std::size_t>(file.Size(split));
  stream.ids.reserve(tokens);
  stream.known.reserve(tokens);
  stream.targets.reserve(tokens);
  TargetReader reader(file, split, document_mask);
  while (reader.Next(stream)) {
  }
  return stream;
}

Baselines::Baselines(const data::TokenFile& file, bool document_mask, std::int64_t most)
    : vocabulary_(file.VocabularySize()), document_mask_(document_mask) {
  const std::int64_t tokens = file.Size(data::Split::kTrain);
  if (tokens > most) {
    left_out_ =
        fmt::format("unigram and 5-gram are left out: the train split has {} tokens, more than {}",
                    report::WithThousands(tokens), report::WithThousands(most));
    return;
  }
  TargetStream train = ReadTargets(file, data::Split::kTrain, document_mask);
  if (train.targets.empty()) {
    left_out_ = "unigram and 5-gram are left out: no target of the train split counts";
    return;
  }
  unigram_.assign(static_cast<std::size_t>(vocabulary_), 1);
  for (const std::uint32_t at : train.targets) ++unigram_[train.ids[at]];
  const auto total =
      static_cast<double>(std::ssize(train.targets)) + static_cast<double>(vocabulary_);
  for (double& value : unigram_) value = -std::log(value / total);
  n_gram_.emplace_back(std::move(train), vocabulary_);
}

Baselines::Result Baselines::Evaluate(const data::TokenFile& file, data::Split split) const {
  Result result;
  ExactSum unigram, n_gram;
  TargetReader reader(file, split, document_mask_);
  TargetStream stream;
  while (reader.Next(stream)) {
    result.targets += std::ssize(stream.targets);
    if (!n_gram_.empty()) {
      for (const std::uint32_t at : stream.targets) unigram.Add(unigram_[stream.ids[at]]);
      for (const double loss : n_gram_.front().Losses(stream)) n_gram.Add(loss);
    }
    KeepContext(stream);
  }
  const double uniform = std::log(static_cast<double>(vocabulary_));
  result.nats = {{"uniform", uniform * static_cast<double>(result.targets)}};
  if (n_gram_.empty()) return result;
  result.nats.emplace_back("unigram", unigram.Value());
  result.nats.emplace_back("5-gram", n_gram.Value());
  return result;
}

}  // namespace trireme::tasks
