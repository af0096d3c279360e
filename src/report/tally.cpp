// Sums over step records and the closing summary made of them.
#include "tally.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "table.hpp"

namespace trireme::report {

void Range::Add(double value) {
  if (!std::isfinite(value)) return;
  min_ = std::fmin(min_, value);  // of a number and NaN: the number
  max_ = std::fmax(max_, value);
  sum_ += value;
  ++count_;
}

Spread Range::Of() const {
  return {.min = min_, .max = max_, .mean = count_ > 0 ? sum_ / static_cast<double>(count_) : NAN};
}

void Tally::Add(const Record& record) {
  ++steps;
  seconds += record.step_seconds;
  tokens += record.tokens_per_second * record.step_seconds;
  operations += record.flops_per_second * record.step_seconds;
  roof_seconds += record.roof_fraction * record.step_seconds;
  compute += record.seconds_compute;
  communication += record.seconds_exposed_communication;
  bubble += record.seconds_bubble;
  data += record.seconds_data;
  checkpoint += record.seconds_checkpoint;
  memory = std::max(memory, record.memory_bytes);
  loss_range.Add(record.loss);
  norm_range.Add(record.grad_norm);
  seconds_range.Add(record.step_seconds);
  speed_range.Add(record.tokens_per_second);
}

Record Tally::Mean(Record record) const {
  const auto count = static_cast<double>(std::max<std::int64_t>(steps, 1));
  const auto rate = [this](double sum) { return seconds > 0 ? sum / seconds : 0.0; };
  record.step_seconds = seconds / count;
  record.tokens_per_second = rate(tokens);
  record.flops_per_second = rate(operations);
  record.roof_fraction = rate(roof_seconds);
  record.memory_bytes = std::max(memory, record.memory_bytes);
  record.seconds_compute = compute / count;
  record.seconds_exposed_communication = communication / count;
  record.seconds_bubble = bubble / count;
  record.seconds_data = data / count;
  record.seconds_checkpoint = checkpoint / count;
  return record;
}

Interval Tally::Since(const Record& record) const {
  Interval interval{.last = Mean(record),
                    .steps = steps,
                    .loss = loss_range.Of(),
                    .grad_norm = norm_range.Of(),
                    .step_seconds = seconds_range.Of(),
                    .tokens_per_second = speed_range.Of()};
  interval.tokens_per_second.mean = interval.last.tokens_per_second;
  return interval;
}

TimeFacts Tally::Times(double elapsed) const {
  TimeFacts times{.elapsed = elapsed,
                  .compute = compute,
                  .exposed_communication = communication,
                  .bubble = bubble,
                  .data = data,
                  .checkpoint = checkpoint,
                  .validation = validation};
  const double seen = compute + communication + bubble + data + checkpoint + validation;
  times.other = std::max(elapsed - seen, 0.0);
  return times;
}

void Losses::Add(const Record& record) {
  switch (record.kind) {
    case Record::Kind::kStep:
      if (!history.first_loss && std::isfinite(record.loss)) history.first_loss = record.loss;
      last_step = record.loss;
      break;
    case Record::Kind::kValid:
      last_valid = record.loss;
      if (record.loss < history.best_valid.value_or(INFINITY)) {
        history.best_valid = record.loss;
        history.best_valid_step = record.step;
      }
      break;
    case Record::Kind::kTest:
      test = record.loss;
      break;
    case Record::Kind::kValidOther:
    case Record::Kind::kDone:
      break;
  }
}

LossFacts Losses::Facts() const {
  const auto known = [](double loss) {
    return std::isfinite(loss) ? std::optional<double>(loss) : std::nullopt;
  };
  return {.first = history.first_loss,
          .last = known(last_step),
          .best_valid = history.best_valid,
          .last_valid = known(last_valid),
          .test = known(test),
          .best_valid_step = history.best_valid_step};
}

namespace {

std::string TotalsText(const Record& record, const Tally& session, double elapsed) {
  std::string text = Counted(record.step, "step");
  if (session.steps != record.step) {
    text += fmt::format(" ({} in this session)", WithThousands(session.steps));
  }
  text += fmt::format(", {} tokens, {}", WithThousands(record.tokens), AsClock(elapsed));
  if (session.seconds > 0) {
    text +=
        fmt::format("; {} tokens/s", WithThousands(std::llround(session.tokens / session.seconds)));
  }
  const std::int64_t memory = std::max(session.memory, record.memory_bytes);
  if (memory > 0) text += fmt::format("; peak memory {} a rank", AsBytes(memory));
  return text;
}

// Shares of the session's wall clock; what no clock saw is "other".
std::string TimeText(const Tally& session, double elapsed) {
  std::string text;
  double other = elapsed;
  const auto add = [&](const char* what, double seconds, bool always) {
    if (!always && !(seconds > 0)) return;
    other -= seconds;
    text += fmt::format("{} {:.1f}%, ", what, 100 * seconds / elapsed);
  };
  add("compute", session.compute, true);
  add("communication", session.communication, true);
  add("bubble", session.bubble, false);
  add("data", session.data, true);
  add("checkpoint", session.checkpoint, true);
  add("validation", session.validation, true);
  return fmt::format("{}other {:.1f}%", text, 100 * std::max(other, 0.0) / elapsed);
}

std::string LossText(const Losses& losses) {
  std::string text;
  const auto add = [&text](const std::string& part) {
    text += fmt::format("{}{}", text.empty() ? "" : "; ", part);
  };
  if (losses.history.first_loss) {
    std::string part = fmt::format("train first {:.4f}", *losses.history.first_loss);
    if (!std::isnan(losses.last_step)) part += fmt::format(", last {:.4f}", losses.last_step);
    add(part);
  }
  if (losses.history.best_valid) {
    std::string part = "valid ";
    if (!std::isnan(losses.last_valid)) part += fmt::format("last {:.4f}, ", losses.last_valid);
    add(part + fmt::format("best {:.4f} at step {}", *losses.history.best_valid,
                           WithThousands(losses.history.best_valid_step)));
  }
  if (!std::isnan(losses.test)) add(fmt::format("test {:.4f}", losses.test));
  return text;
}

// The line about gathers of sharded parameters; empty if there were none.
std::string GathersText(const Gathers& gathers, std::int64_t steps) {
  if (!(gathers.count > 0) || steps == 0) return {};
  return fmt::format("{:.1f} a step and rank, of sharded parameters; {:.1f}% complete when needed",
                     gathers.count / static_cast<double>(steps),
                     100 * gathers.ready / gathers.count);
}

}  // namespace

std::string SummaryText(const char* how, const Record& record, const Tally& session,
                        const Losses& losses, double elapsed,
                        const std::vector<std::pair<std::string, std::string>>& files,
                        const std::vector<TrafficRow>& traffic, const Gathers& gathers) {
  std::string text = fmt::format("{:<8}{}", how, TotalsText(record, session, elapsed));
  if (elapsed > 0 && session.steps > 0) {
    text += fmt::format("\n{:<8}{}", "time", TimeText(session, elapsed));
  }
  const std::string loss = LossText(losses);
  if (!loss.empty()) text += fmt::format("\n{:<8}{}", "loss", loss);
  const std::string table = TrafficTable(traffic, session.steps, session.seconds);
  if (!table.empty()) text += "\n" + table;
  const std::string gathered = GathersText(gathers, session.steps);
  if (!gathered.empty()) text += fmt::format("\n{:<8}{}", "gathers", gathered);
  std::size_t width = 0;
  for (const auto& [what, path] : files) width = std::max(width, what.size());
  const char* word = "files";
  for (const auto& [what, path] : files) {
    text += fmt::format("\n{:<8}{:<{}}  {}", word, what, width, path);
    word = "";
  }
  return text;
}

}  // namespace trireme::report
