// Matrix algebra, norms, activations, dropout and loss of the plain reference.
#include "reference_layers.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <utility>

namespace trireme::test {

Array::Array(std::int64_t r, std::int64_t c, std::vector<double> v)
    : rows(r), columns(c), values(std::move(v)) {
  if (static_cast<std::int64_t>(values.size()) != r * c) {
    throw std::invalid_argument("reference: number of values and shape disagree");
  }
}

namespace {

// Rows, columns and inner indices of a block: its parts stay in a core's cache.
constexpr std::int64_t kBlock = 64, kWide = 256;

}  // namespace

Array Transpose(const Array& a) {
  Array result(a.columns, a.rows);
#pragma omp parallel for if (a.columns > kBlock)
  for (std::int64_t block = 0; block < a.columns; block += kBlock) {
    const std::int64_t end = std::min(a.columns, block + kBlock);
    for (std::int64_t i = 0; i < a.rows; ++i) {
      for (std::int64_t j = block; j < end; ++j) result(j, i) = a(i, j);
    }
  }
  return result;
}

namespace {

// Rows [begin, end) of a b, block by block of b.
void MultiplyRows(const Array& a, const Array& b, std::int64_t begin, std::int64_t end,
                  Array& result) {
  for (std::int64_t first = 0; first < b.rows; first += kWide) {
    for (std::int64_t left = 0; left < b.columns; left += kWide) {
      const std::int64_t inner = std::min(kWide, b.rows - first);
      const std::int64_t columns = std::min(kWide, b.columns - left);
      for (std::int64_t i = begin; i < end; ++i) {
        double* to = &result(i, left);
        for (std::int64_t k = first; k < first + inner; ++k) {
          const double factor = a(i, k);
          const double* from = b.values.data() + k * b.columns + left;
#pragma omp simd
          for (std::int64_t j = 0; j < columns; ++j) to[j] += factor * from[j];
        }
      }
    }
  }
}

}  // namespace

Array Multiply(const Array& a, const Array& b) {
  if (a.columns != b.rows) throw std::invalid_argument("reference: shapes of a product disagree");
  Array result(a.rows, b.columns);
#pragma omp parallel for if (a.rows > kBlock)
  for (std::int64_t block = 0; block < a.rows; block += kBlock) {
    MultiplyRows(a, b, block, std::min(a.rows, block + kBlock), result);
  }
  return result;
}

Array Add(const Array& a, const Array& b) {
  if (a.rows != b.rows || a.columns != b.columns) {
    throw std::invalid_argument("reference: shapes of a sum disagree");
  }
  Array result = a;
  for (std::size_t i = 0; i < result.values.size(); ++i) result.values[i] += b.values[i];
  return result;
}

Array AddRow(const Array& a, const Array& row) {
  Array result = a;
  if (row.Empty()) return result;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.columns; ++j) result(i, j) += row(0, j);
  }
  return result;
}

Array SumRows(const Array& a) {
  Array result(1, a.columns);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.columns; ++j) result(0, j) += a(i, j);
  }
  return result;
}

namespace {

// Mean (0 for RMSNorm) and standard deviation (root mean square) of row i, epsilon under the root.
std::pair<double, double> Statistics(model::Norm kind, double epsilon, const Array& x,
                                     std::int64_t i) {
  const double n = static_cast<double>(x.columns);
  double mean = 0, square = 0;
  if (kind == model::Norm::kLayerNorm) {
    for (std::int64_t j = 0; j < x.columns; ++j) mean += x(i, j) / n;
  }
  for (std::int64_t j = 0; j < x.columns; ++j) square += (x(i, j) - mean) * (x(i, j) - mean) / n;
  return {mean, std::sqrt(square + epsilon)};
}

}  // namespace

Array NormForward(model::Norm kind, double epsilon, const Array& x, const Array& weight,
                  const Array& bias) {
  Array y(x.rows, x.columns);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const auto [mean, deviation] = Statistics(kind, epsilon, x, i);
    for (std::int64_t j = 0; j < x.columns; ++j) {
      y(i, j) = (x(i, j) - mean) / deviation * weight(0, j) + (bias.Empty() ? 0 : bias(0, j));
    }
  }
  return y;
}

// With z = (x - mean) / s and h = dy w:  dx = (h - [mean(h)] - z mean(h z)) / s, where the bracket
// comes from the mean's dependence on x and is absent in RMSNorm.
NormGradients NormBackward(model::Norm kind, double epsilon, const Array& x, const Array& weight,
                           const Array& output_gradient) {
  const double n = static_cast<double>(x.columns);
  NormGradients result{Array(x.rows, x.columns), Array(1, x.columns), SumRows(output_gradient)};
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const auto [mean, deviation] = Statistics(kind, epsilon, x, i);
    double mean_h = 0, mean_hz = 0;
    for (std::int64_t j = 0; j < x.columns; ++j) {
      const double z = (x(i, j) - mean) / deviation;
      const double h = output_gradient(i, j) * weight(0, j);
      mean_h += h / n;
      mean_hz += h * z / n;
      result.weight(0, j) += output_gradient(i, j) * z;
    }
    if (kind == model::Norm::kRmsNorm) mean_h = 0;
    for (std::int64_t j = 0; j < x.columns; ++j) {
      const double z = (x(i, j) - mean) / deviation;
      const double h = output_gradient(i, j) * weight(0, j);
      result.input(i, j) = (h - mean_h - z * mean_hz) / deviation;
    }
  }
  return result;
}

double Relu(double x) { return x > 0 ? x : 0; }
double ReluDerivative(double x) { return x > 0 ? 1 : 0; }

namespace {

constexpr double kGeluCubic = 0.044715;
double GeluArgument(double x) {
  return std::sqrt(2 / std::numbers::pi) * (x + kGeluCubic * x * x * x);
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

double Gelu(double x) { return 0.5 * x * (1 + std::tanh(GeluArgument(x))); }
double GeluDerivative(double x) {
  const double tanh = std::tanh(GeluArgument(x));
  const double slope = std::sqrt(2 / std::numbers::pi) * (1 + 3 * kGeluCubic * x * x);
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope;
}

double Silu(double x) { return x * Sigmoid(x); }
double SiluDerivative(double x) { return Sigmoid(x) + x * Sigmoid(x) * (1 - Sigmoid(x)); }

double DropoutFactor(const DropoutSite& site, std::uint64_t ordinal, std::int64_t position,
                     std::int64_t lane_index) {
  const auto threshold = static_cast<std::uint32_t>(std::lround(site.probability * 65536));
  const PhiloxCounter counter = {
      static_cast<std::uint32_t>(lane_index / 8), static_cast<std::uint32_t>(position),
      static_cast<std::uint32_t>(ordinal & 0xFFFFFFFFu), static_cast<std::uint32_t>(ordinal >> 32)};
  const std::uint32_t word =
      Philox(counter, site.key)[static_cast<std::size_t>(lane_index % 8 / 2)];
  const std::uint32_t lane = lane_index % 2 == 0 ? word & 0xFFFFu : word >> 16;
  return lane >= threshold ? 65536.0 / (65536.0 - threshold) : 0.0;
}

Array Dropout(const DropoutSite& site, const std::vector<std::uint64_t>& ordinals,
              std::int64_t length, const Array& x) {
  Array y = x;
  if (site.probability == 0) return y;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const std::uint64_t ordinal = ordinals.at(static_cast<std::size_t>(i / length));
    for (std::int64_t j = 0; j < x.columns; ++j) {
      y(i, j) *= DropoutFactor(site, ordinal, i % length, j);
    }
  }
  return y;
}

LossResult CrossEntropy(const Array& logits, const std::vector<std::int32_t>& targets,
                        double label_smoothing) {
  LossResult result;
  result.gradient = Array(logits.rows, logits.columns);
  const double share = label_smoothing / static_cast<double>(logits.columns);
  for (std::int64_t i = 0; i < logits.rows; ++i) {
    const std::int32_t target = targets.at(static_cast<std::size_t>(i));
    if (target < 0) continue;
    ++result.valid;
    double largest = logits(i, 0), sum = 0;
    for (std::int64_t v = 0; v < logits.columns; ++v) largest = std::max(largest, logits(i, v));
    for (std::int64_t v = 0; v < logits.columns; ++v) sum += std::exp(logits(i, v) - largest);
    const double log_sum = largest + std::log(sum);
    for (std::int64_t v = 0; v < logits.columns; ++v) {
      const double log_probability = logits(i, v) - log_sum;
      const double wanted = share + (v == target ? 1 - label_smoothing : 0);
      result.sum -= wanted * log_probability;
      result.gradient(i, v) = std::exp(log_probability) - wanted;
    }
  }
  return result;
}

}  // namespace trireme::test
