// Csv: names and values of the columns, in one place.
#include "table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <utility>

namespace trireme::tasks {

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

}  // namespace trireme::tasks
