// RowsOf: means over rounds and comparison with the baseline; statistics, CSV and tables.
#include "rows.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/predict/search.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

// Each round's mean step time in seconds; with `a_token`, divided by the step's tokens.
std::vector<double> MeansOf(const std::vector<Round>& rounds, bool a_token = false) {
  std::vector<double> means;
  for (const Round& round : rounds) means.push_back(round.Mean() / (a_token ? round.tokens : 1));
  return means;
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
  if (study.machine.machine && !point.room.oversubscribed) {
    row.predicted = predict::Predict(point.plan, *study.machine.machine).step;
  }
  return row;
}

// Each cause's time beyond the baseline's for as many tokens, as a fraction of all ranks' time.
Losses LossesOf(const Row& row, const Row& base) {
  const auto causes = [](const Split& s) {
    return Losses{s.compute, s.imbalance, s.Waited() - s.imbalance, s.bubble, s.data, s.other};
  };
  const double ranks = row.point->size.ranks, base_ranks = base.point->size.ranks;
  const double work = row.tokens / base.tokens;
  Losses lost{};
  std::ranges::transform(
      causes(row.split), causes(base.split), lost.begin(), [&](double mine, double of_base) {
        return (ranks * mine - work * base_ranks * of_base) / (ranks * row.step.value);
      });
  return lost;
}

Gain GainOf(const Row& row, const Row& base) {
  Gain gain;
  const double ratio = static_cast<double>(row.point->size.ranks) / base.point->size.ranks;
  Estimate& speedup = gain.speedup;
  speedup.value = row.tokens / row.step.value * base.step.value / base.tokens;
  if (row.point == base.point) {
    speedup.interval = Interval{1, 1};
  } else {
    // Rounds measure baseline and point one after the other, so their ratios are taken in pairs.
    speedup.interval = IntervalOfRatio(speedup.value, MeansOf(base.point->rounds, true),
                                       MeansOf(row.point->rounds, true));
  }
  gain.efficiency.value = speedup.value / ratio;
  if (speedup.interval) {
    gain.efficiency.interval = {speedup.interval->low / ratio, speedup.interval->high / ratio};
  }
  gain.lost = LossesOf(row, base);
  if (row.kind == ScalingKind::kWeak || ratio <= 1) return gain;
  gain.serial = Estimate{KarpFlatt(speedup.value, ratio), std::nullopt};
  if (speedup.interval) {
    // The serial fraction falls as the speed-up rises, so low and high change places.
    gain.serial->interval = {KarpFlatt(speedup.interval->high, ratio),
                             KarpFlatt(speedup.interval->low, ratio)};
  }
  return gain;
}

constexpr int kPieces = 1000;    // intervals of Simpson's rule, even: errors below 1e-9
constexpr int kBisections = 60;  // enough to reach the last bit

// Integral of cos^(degrees - 1) from 0 to `end`. Substituting t = sqrt(degrees) tan(angle) turns it
// into the density of Student's t, up to a factor.
double Angles(double degrees, double end) {
  const double step = end / kPieces;
  double sum = 1 + std::pow(std::cos(end), degrees - 1);
  for (int i = 1; i < kPieces; ++i) {
    sum += (i % 2 == 1 ? 4 : 2) * std::pow(std::cos(i * step), degrees - 1);
  }
  return sum * step / 3;
}

// A row's cells: name of the column and text.
using Cells = std::vector<std::pair<std::string, std::string>>;

std::string Real(double value) { return fmt::format("{:.9g}", value); }
std::string Real(const std::optional<double>& value) { return value ? Real(*value) : ""; }

// Adds three columns: the value and the bounds of its interval.
void Add(const std::string& name, const std::optional<Estimate>& estimate, Cells& cells) {
  const Interval* const interval = estimate && estimate->interval ? &*estimate->interval : nullptr;
  cells.emplace_back(name, estimate ? Real(estimate->value) : "");
  cells.emplace_back(name + "_low", interval ? Real(interval->low) : "");
  cells.emplace_back(name + "_high", interval ? Real(interval->high) : "");
}

Cells SetUpOf(const Row& row, const Study& study) {
  const Point& point = *row.point;
  return {{"kind", NameOf(row.kind)},
          {"ranks", std::to_string(point.size.ranks)},
          {"nodes", std::to_string(point.room.nodes)},
          {"threads", std::to_string(point.room.threads)},
          {"cores", std::to_string(point.room.cores)},
          {"oversubscribed", point.room.oversubscribed ? "yes" : "no"},
          {"pipeline", std::to_string(point.plan.grid.pipeline)},
          {"data", std::to_string(point.plan.grid.data)},
          {"context", std::to_string(point.plan.grid.context)},
          {"tensor", std::to_string(point.plan.grid.tensor)},
          {"batch", std::to_string(point.size.batch)},
          {"micro_batch", std::to_string(point.plan.training.model.micro_batch)},
          {"tokens", Real(row.tokens)},
          {"rounds", std::to_string(point.rounds.size())},
          {"steps", std::to_string(study.options.steps)}};
}

void AddTimes(const Row& row, Cells& cells) {
  Add("step_seconds", row.step, cells);
  cells.emplace_back("step_seconds_median", Real(row.median));
  cells.emplace_back("tokens_per_second", Real(row.tokens / row.step.value));
  std::optional<Estimate> speedup, efficiency, serial;
  if (row.gain) {
    speedup = row.gain->speedup;
    efficiency = row.gain->efficiency;
    serial = row.gain->serial;
  }
  Add("speedup", speedup, cells);
  Add("efficiency", efficiency, cells);
  Add("karp_flatt", serial, cells);
  cells.emplace_back("predicted_step_seconds", Real(row.predicted));
  cells.emplace_back("loss", fmt::format("{:.12g}", row.loss));
}

void AddSplit(const Row& row, Cells& cells) {
  cells.emplace_back("seconds_compute", Real(row.split.compute));
  cells.emplace_back("seconds_data", Real(row.split.data));
  cells.emplace_back("seconds_bubble", Real(row.split.bubble));
  for (std::size_t group = 0; group < row.split.waited.size(); ++group) {
    std::string name = comm::NameOf(static_cast<comm::Group>(group));
    std::ranges::replace(name, '/', '_');
    cells.emplace_back("seconds_exposed_" + name, Real(row.split.waited[group]));
  }
  cells.emplace_back("seconds_other", Real(row.split.other));
  cells.emplace_back("seconds_imbalance", Real(row.split.imbalance));
  for (std::size_t i = 0; i < kCauses.size(); ++i) {
    cells.emplace_back(std::string("lost_") + kCauses[i], row.gain ? Real(row.gain->lost[i]) : "");
  }
}

constexpr double kPercent = 100;

// "1.93 (1.90-1.96)"; the value alone without an interval.
std::string WithInterval(const Estimate& estimate, double unit, int digits, const char* ending) {
  std::string text = fmt::format("{:.{}f}{}", unit * estimate.value, digits, ending);
  if (!estimate.interval) return text;
  return text + fmt::format(" ({:.{}f}-{:.{}f})", unit * estimate.interval->low, digits,
                            unit * estimate.interval->high, digits);
}

// "12.3 ms", "1.23 s".
std::string AsTime(double seconds) {
  return seconds < 1 ? fmt::format("{:.4g} ms", 1e3 * seconds) : fmt::format("{:.4g} s", seconds);
}

// Half the interval's width in per cent of the value; empty without an interval.
std::string Spread(const Estimate& step) {
  if (!step.interval) return {};
  return fmt::format("{:.1f}%",
                     kPercent * (step.interval->high - step.interval->low) / (2 * step.value));
}

std::string SpeedLine(const Row& row) {
  std::string speedup, efficiency, serial;
  if (row.gain) {
    speedup = WithInterval(row.gain->speedup, 1, 2, "");
    efficiency = WithInterval(row.gain->efficiency, kPercent, 1, "%");
    if (row.gain->serial) serial = fmt::format("{:.3f}", row.gain->serial->value);
  }
  return fmt::format(
      "{:>6} {:>7} {:>7} {:>6} {:>10} {:>7} {:>10} {:>11}  {:<17} {:<20} {:>8}  {:.5f}{}\n",
      NameOf(row.kind), row.point->size.ranks, row.point->room.nodes, row.point->size.batch,
      AsTime(row.step.value), Spread(row.step), row.predicted ? AsTime(*row.predicted) : "",
      report::WithThousands(static_cast<std::int64_t>(row.tokens / row.step.value)), speedup,
      efficiency, serial, row.loss, row.point->room.oversubscribed ? "  oversubscribed" : "");
}

// Groups for which ranks waited, longest first: "data 3.1%, world 1.0%".
std::string GroupsOf(const Row& row) {
  std::vector<std::pair<double, std::string>> groups;
  for (std::size_t group = 0; group < row.split.waited.size(); ++group) {
    const double part = row.split.waited[group] / row.step.value;
    if (part >= 5e-4) groups.emplace_back(part, comm::NameOf(static_cast<comm::Group>(group)));
  }
  std::sort(groups.rbegin(), groups.rend());
  std::vector<std::string> texts;
  for (const auto& [part, name] : groups) {
    texts.push_back(fmt::format("{} {:.1f}%", name, kPercent * part));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string TimeLine(const Row& row) {
  const auto part = [&](double seconds) { return kPercent * seconds / row.step.value; };
  std::string lost;
  if (row.gain && std::accumulate(row.gain->lost.begin(), row.gain->lost.end(), 0.0) != 0) {
    const Losses& causes = row.gain->lost;
    lost = fmt::format("{:>7.1f} {:>9.1f} {:>7.1f} {:>6.1f} {:>6.1f} {:>6.1f}",
                       kPercent * causes[0], kPercent * causes[1], kPercent * causes[2],
                       kPercent * causes[3], kPercent * causes[4], kPercent * causes[5]);
  }
  return fmt::format("{:>6} {:>7} {:>8.1f} {:>7.1f} {:>6.1f} {:>6.1f} {:>6.1f}  |{:<46}  {}\n",
                     NameOf(row.kind), row.point->size.ranks, part(row.split.compute),
                     part(row.split.Waited()), part(row.split.bubble), part(row.split.data),
                     part(row.split.other), lost, GroupsOf(row));
}

// Training texts of a plan: "8,000 windows of 32", "200,000 pairs".
std::string TextsOf(const train::Plan& plan) {
  if (plan.tokens.pairs) return report::WithThousands(plan.tokens.pairs->pairs) + " pairs";
  return fmt::format(
      "{} of {}", report::Counted(data::Sampler(plan.training.options.samples).Windows(), "window"),
      plan.training.model.length);
}

}  // namespace

std::vector<Row> RowsOf(const Study& study) {
  std::vector<Row> rows;
  for (const Line& line : study.lines) {
    if (study.points[line.point].rounds.empty()) continue;
    rows.push_back(RowOf(line, study));
  }
  for (Row& row : rows) {
    // The first line of each kind is its baseline.
    const auto first = std::find_if(study.lines.begin(), study.lines.end(),
                                    [&](const Line& line) { return line.kind == row.kind; });
    const auto base = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
      return other.kind == row.kind && other.point == &study.points[first->point];
    });
    if (base != rows.end()) row.gain = GainOf(row, *base);
  }
  return rows;
}

double MeanOf(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double DeviationOf(std::span<const double> values) {
  const double mean = MeanOf(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double StudentQuantile(double degrees) {
  // The integral from 0 to pi / 2 (a beta function); the quantile's angle covers kConfidence of it.
  const double half = std::sqrt(std::numbers::pi) / 2 *
                      std::exp(std::lgamma(degrees / 2) - std::lgamma((degrees + 1) / 2));
  double low = 0, high = std::numbers::pi / 2;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = (low + high) / 2;
    (Angles(degrees, middle) < kConfidence * half ? low : high) = middle;
  }
  return std::sqrt(degrees) * std::tan((low + high) / 2);
}

std::optional<Interval> IntervalOfMean(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  const auto count = static_cast<double>(values.size());
  const double half = StudentQuantile(count - 1) * DeviationOf(values) / std::sqrt(count);
  const double mean = MeanOf(values);
  return Interval{mean - half, mean + half};
}

std::optional<Interval> IntervalOfRatio(double ratio, std::span<const double> numerators,
                                        std::span<const double> denominators) {
  std::vector<double> logarithms(std::min(numerators.size(), denominators.size()));
  for (std::size_t i = 0; i < logarithms.size(); ++i) {
    logarithms[i] = std::log(numerators[i] / denominators[i]);
  }
  const std::optional<Interval> spread = IntervalOfMean(logarithms);
  if (!spread) return std::nullopt;
  const double factor = std::exp((spread->high - spread->low) / 2);
  return Interval{ratio / factor, ratio * factor};
}

double KarpFlatt(double speedup, double processors) {
  return (1 / speedup - 1 / processors) / (1 - 1 / processors);
}

// CompareLosses: strong scaling trains on the same batches, so the losses must agree.
std::vector<std::string> CompareLosses(const std::vector<Row>& rows, double tolerance) {
  std::vector<std::string> faults;
  const Row* base = nullptr;
  for (const Row& row : rows) {
    const std::string ranks = report::Counted(row.point->size.ranks, "rank");
    for (const Round& round : row.point->rounds) {
      const double first = row.point->rounds.front().loss;
      if (round.loss == first) continue;
      faults.push_back(fmt::format(
          "the loss on {} is {:.9g} in one round and {:.9g} in another: the same steps gave other "
          "bits",
          ranks, first, round.loss));
      break;
    }
    if (row.kind != ScalingKind::kStrong) continue;
    if (base == nullptr) base = &row;
    const double difference = std::abs(row.loss - base->loss) / std::abs(base->loss);
    if (difference <= tolerance) continue;
    faults.push_back(fmt::format(
        "the loss on {} is {:.9g}, on {} {:.9g}: they differ by {:.1e}, allowed is {:.0e}; the "
        "study compares different computations. Find out which with job.task = verify",
        ranks, row.loss, report::Counted(base->point->size.ranks, "rank"), base->loss, difference,
        tolerance));
  }
  return faults;
}

// Csv: each column's name stands beside the code of its value.
std::string Csv(const std::vector<Row>& rows, const Study& study) {
  std::string text;
  for (const Row& row : rows) {
    Cells cells = SetUpOf(row, study);
    AddTimes(row, cells);
    AddSplit(row, cells);
    std::vector<std::string> rounds;
    for (const double mean : MeansOf(row.point->rounds)) rounds.push_back(Real(mean));
    cells.emplace_back("round_seconds", fmt::format("{}", fmt::join(rounds, ";")));
    const auto line = [&](std::string Cells::value_type::*part) {
      std::vector<std::string> list;
      for (const auto& cell : cells) list.push_back(cell.*part);
      return fmt::format("{}\n", fmt::join(list, ","));
    };
    if (text.empty()) text = line(&Cells::value_type::first);
    text += line(&Cells::value_type::second);
  }
  return text;
}

std::string Head(const app::Request& request, const app::Device& device, const Study& study) {
  const ScalingOptions& options = study.options;
  std::vector<std::string> kinds;
  for (const ScalingKind kind : options.kinds) kinds.emplace_back(NameOf(kind));
  const Point& last = study.points.back();
  std::string text =
      fmt::format("scaling {} on {} ranks, {}: {} of {} + {} steps\n", fmt::join(kinds, " and "),
                  fmt::join(study.counts, ", "), request.deck.Path(),
                  report::Counted(options.repeats, "round"), options.warmup_steps, options.steps);
  text += fmt::format(
      "grid    of the largest: {}\nmodel   {}\ndata    {}: {}\ndevice  {}, {} "
      "per rank, {}",
      train::DescribeLayout(last.plan.grid, last.plan.sharing, last.plan.training.model),
      train::DescribeModel(last.plan.training.model.options), last.plan.tokens.source,
      TextsOf(last.plan),
      device.stream.OnGpu() ? device.gpu->Context().name : device::NameOf(device.stream.Where()),
      report::Counted(device.stream.threads, "thread"), device.Precision());
  text += study.machine.machine
              ? fmt::format("\npredict by {}", study.machine.machine->name)
              : fmt::format("\npredict nothing: {} (plan.machine; trireme --calibrate)",
                            study.machine.why_none);
  int told = 0;
  for (const Point& point : study.points) {
    if (!point.room.oversubscribed || point.size.ranks == told) continue;
    told = point.size.ranks;
    text += fmt::format(
        "\nwarning: oversubscribed: {} x {} on {}: its rows are marked and do not measure scaling",
        report::Counted(told, "rank"), report::Counted(point.room.threads, "thread"),
        report::Counted(point.room.cores, device.stream.OnGpu() ? "card" : "core"));
  }
  return text;
}

std::string Tables(const std::vector<Row>& rows) {
  std::string text =
      fmt::format("\n{:>6} {:>7} {:>7} {:>6} {:>10} {:>7} {:>10} {:>11}  {:<17} {:<20} {:>8}  {}\n",
                  "", "ranks", "nodes", "batch", "step", "95%", "predicted", "tokens/s", "speed-up",
                  "efficiency", "serial", "loss");
  for (const Row& row : rows) text += SpeedLine(row);
  text += fmt::format("\n% of the ranks' time                                  |lost to\n");
  text += fmt::format(
      "{:>6} {:>7} {:>8} {:>7} {:>6} {:>6} {:>6}  |{:>7} {:>9} {:>7} {:>6} {:>6} {:>6}  {}\n", "",
      "ranks", "compute", "exposed", "bubble", "data", "other", "compute", "imbalance", "comm",
      "bubble", "data", "other", "exposed, by group");
  for (const Row& row : rows) text += TimeLine(row);
  text +=
      "\n95%: half the confidence interval of a step's time. serial: the part that more ranks do "
      "not make faster (Karp and Flatt).\nexposed: communication that ranks waited for. lost to: "
      "what is missing to 100% efficiency, by cause.\n";
  return text;
}

}  // namespace trireme::tasks
