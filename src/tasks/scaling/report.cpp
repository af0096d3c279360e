// Head and Tables of a scaling study, for the screen.
#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

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
  return fmt::format("{} of {}",
                     report::Counted(data::Sampler(plan.training.samples).Windows(), "window"),
                     plan.training.model.length);
}

}  // namespace

std::string Head(const app::Job& job, const Study& study) {
  const ScalingOptions& options = study.options;
  std::vector<std::string> kinds;
  for (const ScalingKind kind : options.kinds) kinds.emplace_back(NameOf(kind));
  const Point& last = study.points.back();
  std::string text =
      fmt::format("scaling {} on {} ranks, {}: {} of {} + {} steps\n", fmt::join(kinds, " and "),
                  fmt::join(study.counts, ", "), job.deck.Path(),
                  report::Counted(options.repeats, "round"), options.warmup_steps, options.steps);
  text += fmt::format(
      "grid    of the largest: {}\nmodel   {}\ndata    {}: {}\ndevice  {}, {} "
      "a rank, {}",
      train::DescribeLayout(last.plan.grid, last.plan.sharing, last.plan.training.model),
      train::DescribeModel(last.plan.training.model.options), last.plan.tokens.source,
      TextsOf(last.plan),
      job.stream.OnGpu() ? job.gpu->Context().name : device::NameOf(job.stream.Where()),
      report::Counted(job.stream.threads, "thread"), job.Precision());
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
                    report::Counted(point.room.cores, job.stream.OnGpu() ? "card" : "core"));
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
