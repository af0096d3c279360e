// RowsOf: means of rounds, and comparison with the baseline.
#include "rows.hpp"

#include <algorithm>

#include "predicted.hpp"

namespace trireme::tasks {

namespace {

std::vector<double> MeansOf(const std::vector<Round>& rounds) {
  std::vector<double> means;
  for (const Round& round : rounds) means.push_back(round.Mean());
  return means;
}

// Seconds a token, which a baseline has in pairs with others.
std::vector<double> CostsOf(const std::vector<Round>& rounds) {
  std::vector<double> costs;
  for (const Round& round : rounds) costs.push_back(round.Mean() / round.tokens);
  return costs;
}

Row RowOf(const Line& line, const Study& study) {
  const Point& point = study.points[line.point];
  Row row;
  row.kind = line.kind;
  row.point = &point;
  std::vector<double> steps;
  const double weight = 1 / static_cast<double>(point.rounds.size());
  for (const Round& round : point.rounds) {
    steps.insert(steps.end(), round.seconds.begin(), round.seconds.end());
    row.tokens += weight * round.tokens;
    row.loss += weight * round.loss;
    row.split.Add(round.split, weight);
  }
  const std::vector<double> means = MeansOf(point.rounds);
  row.step = {MeanOf(means), IntervalOfMean(means)};
  row.median = MedianOf(steps);
  row.predicted = PredictedStepSeconds(point, study.machine.machine);
  return row;
}

// Each cause's share of the ranks' time beyond what the baseline spends on as many tokens.
Losses LossesOf(const Row& row, const Row& base) {
  const double ranks = row.point->size.ranks, base_ranks = base.point->size.ranks;
  const double work = row.tokens / base.tokens;
  const auto lost = [&](double mine, double of_base) {
    return (ranks * mine - work * base_ranks * of_base) / (ranks * row.step.value);
  };
  const Split &mine = row.split, &of_base = base.split;
  return {
      .compute = lost(mine.compute, of_base.compute),
      .imbalance = lost(mine.imbalance, of_base.imbalance),
      .communication = lost(mine.Waited() - mine.imbalance, of_base.Waited() - of_base.imbalance),
      .bubble = lost(mine.bubble, of_base.bubble),
      .data = lost(mine.data, of_base.data),
      .other = lost(mine.other, of_base.other)};
}

Gain GainOf(const Row& row, const Row& base) {
  Gain gain;
  const double ratio = static_cast<double>(row.point->size.ranks) / base.point->size.ranks;
  Estimate& speedup = gain.speedup;
  speedup.value = row.tokens / row.step.value * base.step.value / base.tokens;
  if (row.point == base.point) {
    speedup.interval = Interval{1, 1};
  } else {
    speedup.interval =
        IntervalOfRatio(speedup.value, CostsOf(base.point->rounds), CostsOf(row.point->rounds));
  }
  gain.efficiency.value = speedup.value / ratio;
  if (speedup.interval) {
    gain.efficiency.interval = {speedup.interval->low / ratio, speedup.interval->high / ratio};
  }
  gain.lost = LossesOf(row, base);
  if (row.kind == ScalingKind::kWeak || ratio <= 1) return gain;
  gain.serial = Estimate{KarpFlatt(speedup.value, ratio), std::nullopt};
  if (speedup.interval) {
    // The fraction falls as the speed-up rises.
    gain.serial->interval = {KarpFlatt(speedup.interval->high, ratio),
                             KarpFlatt(speedup.interval->low, ratio)};
  }
  return gain;
}

}  // namespace

std::vector<Row> RowsOf(const Study& study) {
  std::vector<Row> rows;
  for (const Line& line : study.lines) {
    if (study.points[line.point].rounds.empty()) continue;
    rows.push_back(RowOf(line, study));
  }
  for (Row& row : rows) {
    // Lines of a kind begin with its baseline.
    const auto first = std::find_if(study.lines.begin(), study.lines.end(),
                                    [&](const Line& line) { return line.kind == row.kind; });
    const auto base = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
      return other.kind == row.kind && other.point == &study.points[first->point];
    });
    if (base != rows.end()) row.gain = GainOf(row, *base);
  }
  return rows;
}

}  // namespace trireme::tasks
