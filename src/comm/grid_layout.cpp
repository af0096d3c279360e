// The deck's [grid]: its keys, and what a user is told when a layout does not fit the job.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {

namespace {

constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;  // of an axis

// The deck's numbers, which may be far too large; data = 0 is what is left.
struct Asked {
  std::int64_t data = 0, tensor = 1, pipeline = 1;
};

// Saturates: products of a deck's numbers are only compared.
std::int64_t Times(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a > kMost / b ? kMost : a * b;
}

bool Divides(std::int64_t part, std::int64_t whole) { return whole % part == 0; }

std::string Count(std::int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

// The divisors of `whole` next to `near`, itself not among them, that `fits` accepts: one below and
// one above, where there are.
template <typename Fits>
std::vector<std::int64_t> NearestDivisors(std::int64_t whole, std::int64_t near, Fits fits) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t divisor = 1; divisor <= whole; ++divisor) {
    if (!Divides(divisor, whole) || !fits(divisor)) continue;
    if (divisor < near) below = divisor;
    if (divisor > near && above == 0) above = divisor;
  }
  std::vector<std::int64_t> result;
  if (below > 0) result.push_back(below);
  if (above > 0) result.push_back(above);
  return result;
}

// "grid.tensor = 2 or 4 with grid.pipeline = 2"; the other axis unnamed where it is 1.
template <typename Fits>
std::string OneAxis(const std::string& axis, std::int64_t value, const std::string& other,
                    std::int64_t kept, std::int64_t ranks, Fits fits) {
  const auto values = NearestDivisors(ranks / kept, value, fits);
  if (values.empty()) return {};
  std::string text = fmt::format("grid.{} = {}", axis, fmt::join(values, " or "));
  if (kept > 1) text += fmt::format(" with grid.{} = {}", other, kept);
  return text;
}

// Both axes changed: the tensor sizes next to the one asked for, each with the pipeline size below
// the one asked for (1 always fits).
std::string BothAxes(const Asked& asked, std::int64_t ranks, const Allowed& allowed) {
  std::vector<std::string> pairs;
  for (const std::int64_t tensor :
       NearestDivisors(ranks, asked.tensor, [&](std::int64_t t) { return allowed(t, 1); })) {
    const auto stages = NearestDivisors(ranks / tensor, asked.pipeline,
                                        [&](std::int64_t p) { return allowed(tensor, p); });
    const std::int64_t pipeline = stages.empty() ? 1 : stages.front();
    pairs.push_back(fmt::format("grid.tensor = {} with grid.pipeline = {}", tensor, pipeline));
  }
  return fmt::format("{}", fmt::join(pairs, ", "));
}

// Numbers of ranks that the layout fills with some data axis: the nearest below and above.
std::string NearestRanks(std::int64_t unit, std::int64_t ranks) {
  const std::int64_t below = ranks / unit * unit;
  if (below == 0) return Count(unit);
  return fmt::format("{} or {}", below, Count(Times(ranks / unit + 1, unit)));
}

// grid.tensor x grid.pipeline does not divide the ranks, whatever the data axis is.
[[noreturn]] void RefuseModelAxes(const input::Deck& deck, const Asked& asked, std::int64_t ranks,
                                  const Allowed& allowed) {
  const bool tensor_fits = Divides(asked.tensor, ranks);
  const bool pipeline_fits = Divides(asked.pipeline, ranks);
  const std::string blamed = tensor_fits && !pipeline_fits ? "grid.pipeline" : "grid.tensor";
  std::vector<std::string> named, fits;
  if (asked.tensor > 1) named.push_back(fmt::format("grid.tensor = {}", asked.tensor));
  if (asked.pipeline > 1) named.push_back(fmt::format("grid.pipeline = {}", asked.pipeline));
  // An axis of one that was not asked for is no remedy to name.
  if (pipeline_fits && asked.tensor > 1) {
    fits.push_back(OneAxis("tensor", asked.tensor, "pipeline", asked.pipeline, ranks,
                           [&](std::int64_t t) { return allowed(t, asked.pipeline); }));
  }
  if (tensor_fits && asked.pipeline > 1) {
    fits.push_back(OneAxis("pipeline", asked.pipeline, "tensor", asked.tensor, ranks,
                           [&](std::int64_t p) { return allowed(asked.tensor, p); }));
  }
  std::erase(fits, "");
  if (fits.empty()) fits.push_back(BothAxes(asked, ranks, allowed));
  const std::int64_t unit = Times(asked.tensor, asked.pipeline);
  const std::string data = asked.data == 0 ? "" : "grid.data = 0 and ";
  std::string start;  // other sizes of the job; none that the model could not use
  if (allowed(asked.tensor, asked.pipeline) &&
      Times(unit, std::max<std::int64_t>(asked.data, 1)) <= kMostRanks) {
    start =
        fmt::format("; or start the job with {}",
                    asked.data == 0 ? NearestRanks(unit, ranks) : Count(Times(unit, asked.data)));
  }
  throw InputError(fmt::format("{}: {} does not divide {}", deck.Where(blamed),
                               fmt::join(named, " x "), Count(ranks)),
                   fmt::format("What fits: {}{}{}.", data, fmt::join(fits, ", or "), start));
}

void CheckSequenceParallel(const input::Deck& deck, const Asked& asked) {
  const std::string key = "grid.sequence_parallel";
  if (!deck.Switch(key) || !deck.Given(key) || asked.tensor > 1) return;
  throw deck.Complain(key, "it cuts the rows over the tensor group, which has one rank",
                      "What fits: grid.tensor >= 2, or grid.sequence_parallel = no.");
}

}  // namespace

void DeclareGrid(input::Schema& schema) {
  schema.Section("grid", "How the MPI ranks share the work.");
  schema.Integer("grid.data", 0, input::Between(0, kMostRanks), "ranks",
                 "Ranks along the data axis: replicas of the model, each of which takes its part "
                 "of every batch. 0 takes what tensor and pipeline leave of the job's ranks.");
  schema.Integer("grid.tensor", 1, input::Between(1, kMostRanks), "ranks",
                 "Ranks along the tensor axis: each holds its heads, hidden features and "
                 "vocabulary rows of every layer. Neighbours in the world, so best on one node.");
  schema.Integer("grid.pipeline", 1, input::Between(1, kMostRanks), "ranks",
                 "Ranks along the pipeline axis (stages): each holds some of the layers.");
  schema.Switch("grid.sequence_parallel", false,
                "Norms, dropout and residuals on a shard of the rows of each tensor rank: "
                "reduce-scatter and all-gather instead of all-reduce, and less memory. Needs "
                "grid.tensor >= 2.");
}

GridShape ReadGrid(const input::Deck& deck, int ranks, const Allowed& given) {
  const Allowed allowed = given ? given : [](std::int64_t, std::int64_t) { return true; };
  const Asked asked{deck.Integer("grid.data"), deck.Integer("grid.tensor"),
                    deck.Integer("grid.pipeline")};
  const std::int64_t unit = Times(asked.tensor, asked.pipeline);
  if (!Divides(unit, ranks)) RefuseModelAxes(deck, asked, ranks, allowed);
  const std::int64_t left = ranks / unit;
  if (asked.data != 0 && asked.data != left) {
    const std::string all = Count(Times(unit, asked.data));
    throw deck.Complain(
        "grid.data", fmt::format("the grid has {}, the job has {}", all, ranks),
        fmt::format("What fits: grid.data = {}, or 0 (what is left); or start the job with {}.",
                    left, all));
  }
  CheckSequenceParallel(deck, asked);
  GridShape shape;
  shape.data = static_cast<int>(left);
  shape.tensor = static_cast<int>(asked.tensor);
  shape.pipeline = static_cast<int>(asked.pipeline);
  return shape;
}

}  // namespace trireme::comm
