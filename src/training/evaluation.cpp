// Validation and test loss: every target of a split once, on any number of ranks.
#include "trireme/training/evaluation.hpp"

#include <algorithm>

#include "trireme/base/clock.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::training {

namespace {
// Collective. Exact: the same in every layout that computes the same terms.
double SumOver(const comm::Communicator& world, const ExactSum& mine) {
  const auto digits = mine.Digits();
  std::vector<double> sums(digits.begin(), digits.end());
  world.Sum(sums);
  return ExactSum::FromDigits(sums).Value();
}
}  // namespace

Evaluation Evaluate(model::ParallelModel& model, const data::TokenFile& tokens, data::Split split) {
  const double start = Seconds();
  const model::ModelPlan& setup = model.Plan();
  const int rank = model.Grid().Coordinates().data, ranks = model.Grid().Shape().data;
  const std::int64_t length = setup.length;
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, setup.micro_batch));
  data::Sampler::Options options;
  options.tokens = tokens.Size(split);
  options.length = options.stride = length;
  options.batch = std::max<std::int64_t>(1, CeilDivide(options.tokens, length));  // all: a step
  options.shuffle = false;
  const data::Sampler sampler(options);
  const std::vector<data::Sample> share = sampler.Share(0, rank, ranks);
  const std::span<const data::Sample> all(share);
  const auto leaves = static_cast<std::size_t>(setup.leaves);
  std::vector<data::Entry> round(static_cast<std::size_t>(model.LocalPlan().evaluation_entries));
  // With gathered parameters all ranks take as many rounds as the one with the most windows.
  const std::int64_t windows =
      model.Units().ValuesSharded() ? CeilDivide(sampler.BatchSize(0), ranks) : std::ssize(share);
  const auto last = static_cast<std::size_t>(windows);
  ExactSum sum;
  std::int64_t targets = 0;
  for (std::size_t begin = 0; begin < last;) {
    std::size_t filled = 0;
    for (; filled < round.size() && begin < last; ++filled, begin += most) {
      data::Entry& entry = round[filled];
      entry.sequences = 0;
      if (begin >= share.size()) continue;
      const std::size_t count = std::min(share.size() - begin, most);
      data::FillEntry(tokens, split, all.subspan(begin, count), length, entry,
                      model.LocalPlan().positions);
      targets += entry.valid;
    }
    for (; filled % leaves != 0; ++filled) round[filled].sequences = 0;
    sum.Add(model.Loss({round.data(), filled}));
  }
  Evaluation result;
  result.targets = model.Grid().Data().Sum(targets);
  result.loss = SumOver(model.Grid().World(), sum) / static_cast<double>(result.targets);
  result.seconds = Seconds() - start;
  return result;
}

}  // namespace trireme::training
