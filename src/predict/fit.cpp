// Fit: least squares in the inverse speeds, for each trial of Products::half.
#include "fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace trireme::predict {

namespace {

constexpr std::array<Products Machine::*, 3> kFittedTypes = {&Machine::fp64, &Machine::fp32,
                                                             &Machine::bf16};

// The fit's unknowns: 1 / efficiency of each type of products, then these.
enum Column : std::size_t { kAttention = kFittedTypes.size(), kBytes, kKernels, kSteps, kColumns };

std::size_t NumberOf(Dtype type) {
  if (type == Dtype::kFloat64) return 0;
  return type == Dtype::kFloat32 ? 1 : 2;
}

double Flops(const Work::Product& product) { return 2 * product.m * product.n * product.k; }

double Filled(const Work::Product& product, double half) {
  return product.m / (product.m + half) * product.n / (product.n + half) * product.k /
         (product.k + half);
}

double BytesOf(const Work::Product& product, Dtype type) {
  return (product.m * product.k + product.k * product.n + product.m * product.n) *
         static_cast<double>(SizeOf(type));
}

double RateOf(const Work::Product& product, const Products& products) {
  return products.peak * products.efficiency * Filled(product, products.half);
}

// True if memory limits the product's speed; false if the memory's speed is unknown.
bool IsOfMemory(const Work::Product& product, Dtype type, const Machine& machine) {
  if (machine.memory <= 0) return false;
  return BytesOf(product, type) / machine.memory >
         Flops(product) / RateOf(product, machine.Of(type, false));
}

// A row of the fit: the factor of each unknown in the step's seconds.
std::vector<double> RowOf(const Work& work, const Machine& machine) {
  std::vector<double> row(kColumns, 0);
  const Products& products = machine.Of(work.type, false);
  for (const Work::Product& product : work.products) {
    if (IsOfMemory(product, work.type, machine)) {
      row[kBytes] += BytesOf(product, work.type);
    } else {
      row[NumberOf(work.type)] += Flops(product) / (products.peak * Filled(product, products.half));
    }
  }
  row[kAttention] = work.attention_flops / products.peak;
  row[kBytes] += work.bytes;
  row[kKernels] = work.kernels;
  row[kSteps] = 1;
  return row;
}

// Solves a x = b, a symmetric, by Gaussian elimination; false if a is singular.
bool Solve(std::vector<std::vector<double>> a, std::vector<double> b, std::vector<double>& x) {
  const std::size_t size = b.size();
  for (std::size_t at = 0; at < size; ++at) {
    if (!(std::abs(a[at][at]) > 1e-12)) return false;
    for (std::size_t below = at + 1; below < size; ++below) {
      const double factor = a[below][at] / a[at][at];
      for (std::size_t right = at; right < size; ++right) a[below][right] -= factor * a[at][right];
      b[below] -= factor * b[at];
    }
  }
  x.assign(size, 0);
  for (std::size_t at = size; at-- > 0;) {
    double rest = b[at];
    for (std::size_t right = at + 1; right < size; ++right) rest -= a[at][right] * x[right];
    x[at] = rest / a[at][at];
  }
  return true;
}

double SumOfSquares(const std::vector<std::vector<double>>& rows, const std::vector<double>& x) {
  double sum = 0;
  for (const std::vector<double>& row : rows) {
    double rest = 1;
    for (std::size_t i = 0; i < x.size(); ++i) rest -= row[i] * x[i];
    sum += rest * rest;
  }
  return sum;
}

// Stores the solution in `machine`. An unknown of 0, left out by the fit, sets no limit.
void Take(const std::vector<double>& x, Machine& machine) {
  for (std::size_t i = 0; i < kFittedTypes.size(); ++i) {
    if (x[i] > 0) (machine.*kFittedTypes[i]).efficiency = 1 / x[i];
  }
  constexpr double kFastest = 1;  // share of the peak
  machine.attention = x[kAttention] > 0 ? 1 / x[kAttention] : kFastest;
  constexpr double kNoLimit = 1e15;  // bytes/s
  machine.memory = x[kBytes] > 0 ? 1 / x[kBytes] : kNoLimit;
  machine.kernel_seconds = x[kKernels];
  machine.step_seconds = x[kSteps];
}

// Fits all but the halves, which stay as they are; returns the sum of squares.
double FitLinear(const std::vector<Observation>& observations, Machine& machine) {
  constexpr int kRounds = 3;  // each decides anew which products memory limits
  double sum = 0;
  machine.memory = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<double>> rows;
    for (const Observation& observation : observations) {
      std::vector<double> row = RowOf(observation.work, machine);
      for (double& value : row) value /= observation.seconds;
      rows.push_back(std::move(row));
    }
    const std::vector<double> x = LeastSquares(rows);
    sum = SumOfSquares(rows, x);
    Take(x, machine);
  }
  return sum;
}

// If steps exceed a peak, it was measured too low: raises all, so that efficiencies are at most 1.
void RaisePeaks(Machine& machine) {
  double most = 1;
  for (const auto products : kFittedTypes) most = std::max(most, (machine.*products).efficiency);
  most = std::max(most, machine.attention);
  for (const auto products : kFittedTypes) {
    (machine.*products).peak *= most;
    (machine.*products).efficiency /= most;
  }
  machine.attention /= most;
}

}  // namespace

double SecondsOf(const Work& work, const Machine& machine) {
  double seconds = machine.step_seconds + machine.kernel_seconds * work.kernels;
  const Products& products = machine.Of(work.type, false);
  for (const Work::Product& product : work.products) {
    seconds += std::max(Flops(product) / RateOf(product, products),
                        BytesOf(product, work.type) / machine.memory);
  }
  return seconds + work.attention_flops / (products.peak * machine.attention) +
         work.bytes / machine.memory;
}

std::vector<double> LeastSquares(const std::vector<std::vector<double>>& rows) {
  const std::size_t columns = rows.front().size();
  // Columns are scaled by their largest value, so that small ones do not count as zero.
  std::vector<double> scale(columns, 0);
  for (const std::vector<double>& row : rows) {
    for (std::size_t i = 0; i < columns; ++i) scale[i] = std::max(scale[i], row[i]);
  }
  std::vector<double> best(columns, 0);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t set = 1; set < std::size_t{1} << columns; ++set) {
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < columns; ++i) {
      if ((set >> i & 1) != 0) chosen.push_back(i);
    }
    if (std::ranges::any_of(chosen, [&](std::size_t i) { return scale[i] <= 0; })) continue;
    const std::size_t size = chosen.size();
    std::vector<std::vector<double>> a(size, std::vector<double>(size, 0));
    std::vector<double> b(size, 0), x;
    for (const std::vector<double>& row : rows) {
      for (std::size_t i = 0; i < size; ++i) {
        const double left = row[chosen[i]] / scale[chosen[i]];
        b[i] += left;
        for (std::size_t j = 0; j < size; ++j) a[i][j] += left * row[chosen[j]] / scale[chosen[j]];
      }
    }
    if (!Solve(a, b, x) || std::ranges::any_of(x, [](double value) { return value < 0; })) continue;
    std::vector<double> whole(columns, 0);
    for (std::size_t i = 0; i < size; ++i) whole[chosen[i]] = x[i] / scale[chosen[i]];
    const double sum = SumOfSquares(rows, whole);
    if (sum < least) {
      least = sum;
      best = whole;
    }
  }
  return best;
}

void Fit(const std::vector<Observation>& observations, Machine& machine) {
  constexpr std::array kHalves = {0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0};
  std::vector<Products Machine::*> types;
  for (std::size_t type = 0; type < kFittedTypes.size(); ++type) {
    const bool has = std::ranges::any_of(
        observations, [type](const Observation& each) { return NumberOf(each.work.type) == type; });
    if (has) types.push_back(kFittedTypes[type]);
  }
  // Tries all combinations, since the types share the other unknowns.
  std::size_t combinations = 1;
  for (std::size_t i = 0; i < types.size(); ++i) combinations *= kHalves.size();
  double least = std::numeric_limits<double>::infinity();
  Machine best = machine;
  for (std::size_t number = 0; number < combinations; ++number) {
    Machine trial = machine;
    std::size_t rest = number;
    for (const auto type : types) {
      (trial.*type).half = kHalves[rest % kHalves.size()];
      rest /= kHalves.size();
    }
    const double sum = FitLinear(observations, trial);
    if (sum >= least) continue;
    least = sum;
    best = trial;
  }
  RaisePeaks(best);
  machine = best;
}

}  // namespace trireme::predict
