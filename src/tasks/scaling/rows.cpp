// RowsOf: means of rounds, and comparison with the baseline.
#include "rows.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "trireme/predict/search.hpp"
#include "trireme/report/monitor.hpp"

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

// Statistics: Student's t by its integral, means and ratios.

namespace {

constexpr int kPieces = 1000;    // of Simpson's rule, even: errors below 1e-9
constexpr int kBisections = 60;  // to the last bit

// Integral of cos^(degrees - 1) from 0 to `end`. With t = sqrt(degrees) tan(angle) it is the
// density of Student's t, but for a factor.
double Angles(double degrees, double end) {
  const double step = end / kPieces;
  double sum = 1 + std::pow(std::cos(end), degrees - 1);
  for (int i = 1; i < kPieces; ++i) {
    sum += (i % 2 == 1 ? 4 : 2) * std::pow(std::cos(i * step), degrees - 1);
  }
  return sum * step / 3;
}

double LogRatio(double numerator, double denominator) { return std::log(numerator / denominator); }

}  // namespace

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
  // Half of the whole integral (a beta function), of which kConfidence is wanted.
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
    logarithms[i] = LogRatio(numerators[i], denominators[i]);
  }
  const std::optional<Interval> spread = IntervalOfMean(logarithms);
  if (!spread) return std::nullopt;
  const double factor = std::exp((spread->high - spread->low) / 2);
  return Interval{ratio / factor, ratio * factor};
}

double KarpFlatt(double speedup, double processors) {
  return (1 / speedup - 1 / processors) / (1 - 1 / processors);
}

// CompareLosses: strong scaling trains on the same batches, so its losses agree.

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

// PredictedStepSeconds: a simulated step of the point's plan.

std::optional<double> PredictedStepSeconds(const Point& point,
                                           const std::optional<predict::Machine>& machine) {
  if (!machine || point.room.oversubscribed) return std::nullopt;
  return predict::Predict(point.plan, *machine).step;
}

// Csv: names and values of the columns, in one place.

namespace {

// Cells of one row with the names of their columns.
class Cells {
 public:
  void Add(const std::string& name, std::string text) {
    names_.push_back(name);
    texts_.push_back(std::move(text));
  }
  void Add(const std::string& name, double value) { Add(name, fmt::format("{:.9g}", value)); }
  void Add(const std::string& name, std::int64_t value) { Add(name, fmt::format("{}", value)); }
  void Add(const std::string& name, int value) { Add(name, std::int64_t{value}); }
  void Add(const std::string& name, const std::optional<double>& value) {
    Add(name, value ? fmt::format("{:.9g}", *value) : std::string());
  }
  // Three columns.
  void Add(const std::string& name, const std::optional<Estimate>& estimate) {
    std::optional<double> value, low, high;
    if (estimate) value = estimate->value;
    if (estimate && estimate->interval) {
      low = estimate->interval->low;
      high = estimate->interval->high;
    }
    Add(name, value);
    Add(name + "_low", low);
    Add(name + "_high", high);
  }
  std::string Names() const { return fmt::format("{}\n", fmt::join(names_, ",")); }
  std::string Line() const { return fmt::format("{}\n", fmt::join(texts_, ",")); }

 private:
  std::vector<std::string> names_, texts_;
};

void AddSetUp(const Row& row, const Study& study, Cells& cells) {
  const Point& point = *row.point;
  cells.Add("kind", std::string(NameOf(row.kind)));
  cells.Add("ranks", point.size.ranks);
  cells.Add("nodes", point.room.nodes);
  cells.Add("threads", point.room.threads);
  cells.Add("cores", point.room.cores);
  cells.Add("oversubscribed", std::string(point.room.oversubscribed ? "yes" : "no"));
  cells.Add("pipeline", point.plan.grid.pipeline);
  cells.Add("data", point.plan.grid.data);
  cells.Add("context", point.plan.grid.context);
  cells.Add("tensor", point.plan.grid.tensor);
  cells.Add("batch", point.size.batch);
  cells.Add("micro_batch", point.plan.training.model.micro_batch);
  cells.Add("tokens", row.tokens);
  cells.Add("rounds", std::ssize(point.rounds));
  cells.Add("steps", study.options.steps);
}

void AddTimes(const Row& row, Cells& cells) {
  cells.Add("step_seconds", std::optional(row.step));
  cells.Add("step_seconds_median", row.median);
  cells.Add("tokens_per_second", row.tokens / row.step.value);
  std::optional<Estimate> speedup, efficiency, serial;
  if (row.gain) {
    speedup = row.gain->speedup;
    efficiency = row.gain->efficiency;
    serial = row.gain->serial;
  }
  cells.Add("speedup", speedup);
  cells.Add("efficiency", efficiency);
  cells.Add("karp_flatt", serial);
  cells.Add("predicted_step_seconds", row.predicted);
  cells.Add("loss", fmt::format("{:.12g}", row.loss));
}

void AddSplit(const Row& row, Cells& cells) {
  cells.Add("seconds_compute", row.split.compute);
  cells.Add("seconds_data", row.split.data);
  cells.Add("seconds_bubble", row.split.bubble);
  for (std::size_t group = 0; group < row.split.waited.size(); ++group) {
    std::string name = comm::NameOf(static_cast<comm::Group>(group));
    for (char& letter : name) letter = letter == '/' ? '_' : letter;
    cells.Add("seconds_exposed_" + name, row.split.waited[group]);
  }
  cells.Add("seconds_other", row.split.other);
  cells.Add("seconds_imbalance", row.split.imbalance);
}

void AddLosses(const Row& row, Cells& cells) {
  const auto of = [&](double Losses::*cause) {
    return row.gain ? std::optional(row.gain->lost.*cause) : std::nullopt;
  };
  cells.Add("lost_compute", of(&Losses::compute));
  cells.Add("lost_imbalance", of(&Losses::imbalance));
  cells.Add("lost_communication", of(&Losses::communication));
  cells.Add("lost_bubble", of(&Losses::bubble));
  cells.Add("lost_data", of(&Losses::data));
  cells.Add("lost_other", of(&Losses::other));
}

}  // namespace

std::string Csv(const std::vector<Row>& rows, const Study& study) {
  std::string text;
  for (const Row& row : rows) {
    Cells cells;
    AddSetUp(row, study, cells);
    AddTimes(row, cells);
    AddSplit(row, cells);
    AddLosses(row, cells);
    std::vector<std::string> rounds;
    for (const Round& round : row.point->rounds)
      rounds.push_back(fmt::format("{:.9g}", round.Mean()));
    cells.Add("round_seconds", fmt::format("{}", fmt::join(rounds, ";")));
    if (text.empty()) text = cells.Names();
    text += cells.Line();
  }
  return text;
}

// Head and Tables of a scaling study, for the screen.

namespace {

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

// Half of the interval in per cent of the value; empty without one.
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

// "data 3.1%, world 1.0%": the groups for which ranks waited, most first.
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
  if (row.gain && row.gain->lost.Total() != 0) {
    const Losses& causes = row.gain->lost;
    lost = fmt::format("{:>7.1f} {:>9.1f} {:>7.1f} {:>6.1f} {:>6.1f} {:>6.1f}",
                       kPercent * causes.compute, kPercent * causes.imbalance,
                       kPercent * causes.communication, kPercent * causes.bubble,
                       kPercent * causes.data, kPercent * causes.other);
  }
  return fmt::format("{:>6} {:>7} {:>8.1f} {:>7.1f} {:>6.1f} {:>6.1f} {:>6.1f}  |{:<46}  {}\n",
                     NameOf(row.kind), row.point->size.ranks, part(row.split.compute),
                     part(row.split.Waited()), part(row.split.bubble), part(row.split.data),
                     part(row.split.other), lost, GroupsOf(row));
}

// "8,000 windows of 32", "200,000 pairs".
std::string TextsOf(const train::Plan& plan) {
  if (plan.tokens.pairs) return report::WithThousands(plan.tokens.pairs->pairs) + " pairs";
  return fmt::format(
      "{} of {}", report::Counted(data::Sampler(plan.training.options.samples).Windows(), "window"),
      plan.training.model.length);
}

}  // namespace

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
      "a rank, {}",
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
    text +=
        fmt::format("\nwarning: oversubscribed: {} x {} on {}: no measure of scaling, marked so",
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
      "\n95%: half the interval of the step's time. serial: the part that more ranks do not make "
      "faster (Karp and Flatt).\nexposed: communication that ranks waited for. lost to: what the "
      "efficiency lacks to 100%, by cause.\n";
  return text;
}

}  // namespace trireme::tasks
