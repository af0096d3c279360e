// Measures of difference between a layout's tensors and those of one rank.
#include "compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

namespace trireme::tasks {

namespace {

constexpr double kSilent = 1e-12;  // of the measure's scale: key biases' gradients are rounding
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A NaN would get lost in a maximum.
double Finite(double difference) { return std::isfinite(difference) ? difference : kInfinite; }

std::span<const double> Elements(const kernels::StateBlock& block) {
  return {static_cast<const double*>(block.data),
          static_cast<std::size_t>(block.end - block.begin)};
}

double Squares(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// Of the elements of `held` from the same ones of `wanted`, which has these and perhaps others; 0
// only where all bits are the same.
template <typename T>
double LargestDifference(const kernels::StateBlock& held, const kernels::StateBlock& wanted) {
  if (held.end == held.begin) return 0;
  if (held.begin < wanted.begin || held.end > wanted.end) return kInfinite;
  const auto* mine = static_cast<const T*>(held.data);
  const auto* other = static_cast<const T*>(wanted.data) + (held.begin - wanted.begin);
  const std::int64_t count = held.end - held.begin;
  if (std::memcmp(mine, other, static_cast<std::size_t>(count) * sizeof(T)) == 0) return 0;
  double worst = std::numeric_limits<double>::min();  // zeros of two signs
  for (std::int64_t j = 0; j < count; ++j) {
    worst = std::max(worst, RelativeDifference(mine[j], other[j]));
  }
  return worst;
}

void MaxOverWorld(const comm::ProcessGrid& grid, std::vector<double>& values) {
  for (double& value : values) value = Finite(value);
  grid.Over(comm::Group::kWorld)
      .AllReduce(Dtype::kFloat64, values.data(), std::ssize(values), comm::Reduction::kMax);
}

}  // namespace

double RelativeDifference(double got, double wanted) {
  if (got == wanted) return 0;
  return Finite(std::abs(got - wanted) / std::max(std::abs(got), std::abs(wanted)));
}

Differences Compare(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                    const std::vector<kernels::StateBlock>& whole) {
  double squares = 0, count = 0;
  for (const kernels::StateBlock& tensor : whole) {
    squares += Squares(Elements(tensor));
    count += static_cast<double>(tensor.end - tensor.begin);
  }
  Differences result;
  std::vector<double> sums, scales;  // of squared differences; of elements, each once
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const std::span<const double> mine = Elements(held[i]), all = Elements(whole[i]);
    double difference = 0;
    for (std::size_t j = 0; j < mine.size(); ++j) {
      const double d = mine[j] - all[static_cast<std::size_t>(held[i].begin) + j];
      difference += d * d;
    }
    const double size = static_cast<double>(all.size());
    // Not below the smallest normal number: all may be zero.
    const double scale =
        std::max({Squares(all), squares / count * size, std::numeric_limits<double>::min()});
    scales.push_back(scale);
    sums.push_back(difference / scale);
    result.mine.push_back(Finite(std::sqrt(difference / scale)));
    result.silent.push_back(Squares(all) < kSilent * kSilent * scale);
  }
  // A copy of the model is on the replicas of a shard group. Copies within these all count, so that
  // none can hide behind another.
  std::vector<double> elements(whole.size());
  for (std::size_t i = 0; i < held.size(); ++i) {
    const int within = held[i].replicas / grid.SameShard().Size();
    elements[i] = static_cast<double>(held[i].end - held[i].begin) / std::max(within, 1);
  }
  for (const comm::Communicator* group : {&grid.Shard(), &grid.Replica()}) {
    group->Sum(sums);
    group->Sum(elements);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const bool complete =
        std::abs(elements[i] - static_cast<double>(Elements(whole[i]).size())) < 0.5;
    result.all.push_back(complete ? std::sqrt(sums[i]) : kInfinite);
  }
  MaxOverWorld(grid, result.all);
  return result;
}

Differences CompareBits(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                        const std::vector<kernels::StateBlock>& wanted) {
  Differences result;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const kernels::StateBlock& block = held[i];
    result.mine.push_back(DispatchDtype(block.dtype, [&](auto zero) {
      return LargestDifference<decltype(zero)>(block, wanted[i]);
    }));
  }
  result.all = result.mine;
  MaxOverWorld(grid, result.all);
  return result;
}

std::string WhereLargest(const comm::ProcessGrid& grid, double mine) {
  const comm::Communicator& world = grid.World();
  const bool here = mine >= world.Max(mine);
  const std::int64_t rank =
      world.Min(here ? std::int64_t{world.Rank()} : std::int64_t{world.Size()});
  const comm::GridShape at = comm::Locate(static_cast<int>(rank), grid.Shape());
  return fmt::format("rank {} (pipeline {}, data {}, context {}, tensor {})", rank, at.pipeline,
                     at.data, at.context, at.tensor);
}

std::vector<kernels::GradientSum> GatherSums(const comm::ProcessGrid& grid,
                                            const kernels::Registry& registry) {
  std::vector<double> kinds;
  for (const kernels::Parameter& parameter : registry.Parameters()) {
    kinds.push_back(parameter.Held() ? static_cast<double>(parameter.sum) : 0.0);
  }
  MaxOverWorld(grid, kinds);
  std::vector<kernels::GradientSum> sums;
  for (const double kind : kinds)
    sums.push_back(static_cast<kernels::GradientSum>(std::lround(kind)));
  return sums;
}

}  // namespace trireme::tasks
