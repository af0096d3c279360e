// The plain fp64 reference: layers, attention, rotary positions.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <utility>

#include "reference.hpp"

namespace trireme::test {

// Matrix algebra, norms, activations, dropout and loss of the plain reference.

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

Array DropRows(const DropoutSite& site, const std::vector<std::uint64_t>& ordinals,
               std::int64_t length, const std::vector<std::int32_t>& words, const Array& x) {
  Array y = x;
  if (site.probability == 0) return y;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const std::int64_t word = words.empty() ? 0 : words.at(static_cast<std::size_t>(i));
    const double factor =
        DropoutFactor(site, ordinals.at(static_cast<std::size_t>(i / length)), word, 0);
    for (std::int64_t j = 0; j < x.columns; ++j) y(i, j) *= factor;
  }
  return y;
}

Array DropWeight(double probability, std::uint32_t seed, std::int64_t step, std::uint32_t number,
                 const Array& x) {
  const DropoutSite site = {probability,
                            MakeKey(seed, Purpose::kWeightDropout, number / 4096, number % 4096)};
  Array y = x;
  for (std::int64_t i = 0; probability > 0 && i < x.rows; ++i) {
    for (std::int64_t j = 0; j < x.columns; ++j) {
      y(i, j) *= DropoutFactor(site, static_cast<std::uint64_t>(step), i, j);
    }
  }
  return y;
}

LossResult CrossEntropy(const Array& logits, const std::vector<std::int32_t>& targets,
                        const LossTerms& terms) {
  LossResult result;
  result.gradient = Array(logits.rows, logits.columns);
  const double share = terms.smoothing / static_cast<double>(logits.columns);
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
      const double wanted = share + (v == target ? 1 - terms.smoothing : 0);
      result.sum -= wanted * log_probability;
      result.gradient(i, v) = std::exp(log_probability) * (1 + 2 * terms.z * log_sum) - wanted;
    }
    result.objective += terms.z * log_sum * log_sum;
  }
  result.objective += result.sum;
  return result;
}

// Rotary positions and attention of the plain reference, one query of one head at a time.

Array Rotate(const Array& x, std::int64_t head_dim, std::int64_t length, const RotaryTurns& turns,
             double direction, const std::vector<std::int32_t>& begins) {
  Array y = x;
  const std::int64_t half = head_dim / 2;
  for (std::int64_t row = 0; row < x.rows; ++row) {
    const std::int32_t begin = begins.empty() ? 0 : begins.at(static_cast<std::size_t>(row));
    const double position = static_cast<double>(row % length - begin);
    for (std::int64_t head = 0; head < x.columns / head_dim; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle =
            direction * position * turns.frequencies.at(static_cast<std::size_t>(i));
        const double cosine = turns.magnitude * std::cos(angle);
        const double sine = turns.magnitude * std::sin(angle);
        const std::int64_t first = head * head_dim + i, second = first + half;
        y(row, first) = x(row, first) * cosine - x(row, second) * sine;
        y(row, second) = x(row, first) * sine + x(row, second) * cosine;
      }
    }
  }
  return y;
}

namespace {

// One query position of one head of one sequence.
struct Site {
  std::int64_t sequence = 0, head = 0, position = 0;
  std::int64_t row = 0;                      // of the query
  std::int64_t begin = 0;                    // of its document: position of the first key
  std::int64_t first_key_row = 0, keys = 0;  // keys that it may see
  std::int64_t query_column = 0, kv_column = 0;
};

template <typename Visit>
void ForEachSite(const AttentionShape& shape, Visit visit) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(shape.ordinals.size()); ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t t = 0; t < shape.length; ++t) {
        const std::int64_t row = b * shape.length + t;
        const std::int64_t begin =
            shape.begins.empty() ? 0 : shape.begins.at(static_cast<std::size_t>(row));
        const std::int64_t present = shape.key_lengths.empty()
                                         ? shape.Keys()
                                         : shape.key_lengths.at(static_cast<std::size_t>(b));
        const std::int64_t end = shape.causal ? std::min(t + 1, present) : present;
        visit(Site{b, h, t, row, begin, b * shape.Keys() + begin, end - begin, h * shape.head_dim,
                   h / group * shape.head_dim});
      }
    }
  }
}

double Divisor(const AttentionShape& shape) {
  return shape.divisor > 0 ? shape.divisor : std::sqrt(static_cast<double>(shape.head_dim));
}

// softmax over the visible keys of q.k / divisor
std::vector<double> Weights(const AttentionShape& shape, const Site& site, const Array& query,
                            const Array& key) {
  std::vector<double> weights(static_cast<std::size_t>(site.keys));
  for (std::int64_t s = 0; s < site.keys; ++s) {
    double score = 0;
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      score +=
          query(site.row, site.query_column + d) * key(site.first_key_row + s, site.kv_column + d);
    }
    weights[static_cast<std::size_t>(s)] = score / Divisor(shape);
  }
  if (weights.empty()) return weights;
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Dropout factors of the visible keys' weights.
std::vector<double> Factors(const AttentionShape& shape, const Site& site) {
  std::vector<double> factors(static_cast<std::size_t>(site.keys), 1.0);
  if (shape.dropout == 0) return factors;
  const DropoutSite dropout = {shape.dropout, MakeKey(shape.seed, Purpose::kAttentionDropout,
                                                      static_cast<std::uint32_t>(shape.layer),
                                                      static_cast<std::uint32_t>(site.head))};
  for (std::int64_t s = 0; s < site.keys; ++s) {
    factors[static_cast<std::size_t>(s)] =
        DropoutFactor(dropout, shape.ordinals[static_cast<std::size_t>(site.sequence)],
                      site.position, site.begin + s);
  }
  return factors;
}

}  // namespace

Array AttentionForward(const AttentionShape& shape, const Array& query, const Array& key,
                       const Array& value) {
  Array output(query.rows, query.columns);
  ForEachSite(shape, [&](const Site& site) {
    const std::vector<double> weights = Weights(shape, site, query, key);
    const std::vector<double> factors = Factors(shape, site);
    for (std::int64_t s = 0; s < site.keys; ++s) {
      const auto at = static_cast<std::size_t>(s);
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        output(site.row, site.query_column + d) +=
            weights[at] * factors[at] * value(site.first_key_row + s, site.kv_column + d);
      }
    }
  });
  return output;
}

// With weights p, factors f and dp_s = f_s (do . v_s):  dscore_s = p_s (dp_s - sum_r p_r dp_r).
AttentionGradients AttentionBackward(const AttentionShape& shape, const Array& query,
                                     const Array& key, const Array& value,
                                     const Array& output_gradient) {
  AttentionGradients result{Array(query.rows, query.columns), Array(key.rows, key.columns),
                            Array(value.rows, value.columns)};
  const double scale = 1 / Divisor(shape);
  ForEachSite(shape, [&](const Site& site) {
    const std::vector<double> weights = Weights(shape, site, query, key);
    const std::vector<double> factors = Factors(shape, site);
    std::vector<double> weight_gradients(weights.size());
    double mean = 0;
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const std::int64_t row = site.first_key_row + static_cast<std::int64_t>(s);
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        const double gradient = output_gradient(site.row, site.query_column + d);
        weight_gradients[s] += factors[s] * gradient * value(row, site.kv_column + d);
        result.value(row, site.kv_column + d) += weights[s] * factors[s] * gradient;
      }
      mean += weights[s] * weight_gradients[s];
    }
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const std::int64_t row = site.first_key_row + static_cast<std::int64_t>(s);
      const double score_gradient = weights[s] * (weight_gradients[s] - mean) * scale;
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        result.query(site.row, site.query_column + d) +=
            score_gradient * key(row, site.kv_column + d);
        result.key(row, site.kv_column + d) +=
            score_gradient * query(site.row, site.query_column + d);
      }
    }
  });
  return result;
}

// Angles of rotary positions for the plain reference, in the steps and names of Hugging Face's
// modeling_rope_utils.py.

namespace {

// find_correction_dim
double CorrectionDim(double rotations, double dim, double base, double positions) {
  return (dim * std::log(positions / (rotations * 2 * std::numbers::pi))) / (2 * std::log(base));
}

RotaryTurns Yarn(const model::Options& o, const std::vector<double>& extrapolation) {
  const auto dim = static_cast<double>(o.head_dim);
  const auto positions = static_cast<double>(o.rope_original_positions);
  const double low =
      std::max(std::floor(CorrectionDim(o.rope_beta_fast, dim, o.rope_theta, positions)), 0.0);
  double high =
      std::min(std::ceil(CorrectionDim(o.rope_beta_slow, dim, o.rope_theta, positions)), dim - 1);
  if (low == high) high += 0.001;
  RotaryTurns turns;
  double i = 0;
  for (const double plain : extrapolation) {
    const double ramp = std::min(std::max((i - low) / (high - low), 0.0), 1.0);
    const double extrapolation_factor = 1 - ramp, interpolation = plain / o.rope_factor;
    turns.frequencies.push_back(interpolation * (1 - extrapolation_factor) +
                                plain * extrapolation_factor);
    i += 1;
  }
  turns.magnitude = o.rope_attention_factor;
  if (turns.magnitude == 0) turns.magnitude = 0.1 * std::log(o.rope_factor) + 1;
  return turns;
}

double Llama3(const model::Options& o, double plain) {
  const auto positions = static_cast<double>(o.rope_original_positions);
  const double low_wavelength = positions / o.rope_low_frequency_factor;
  const double high_wavelength = positions / o.rope_high_frequency_factor;
  const double wavelength = 2 * std::numbers::pi / plain;
  if (wavelength < high_wavelength) return plain;
  if (wavelength > low_wavelength) return plain / o.rope_factor;
  const double smooth = (positions / wavelength - o.rope_low_frequency_factor) /
                        (o.rope_high_frequency_factor - o.rope_low_frequency_factor);
  return (1 - smooth) * plain / o.rope_factor + smooth * plain;
}

}  // namespace

RotaryTurns PlainTurns(double theta, std::int64_t head_dim) {
  RotaryTurns turns;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
    turns.frequencies.push_back(std::pow(theta, exponent));
  }
  return turns;
}

RotaryTurns TurnsOf(const model::Options& options) {
  RotaryTurns turns = PlainTurns(options.rope_theta, options.head_dim);
  switch (options.rope_scaling) {
    case model::RopeScaling::kNone:
      break;
    case model::RopeScaling::kLinear:
      for (double& frequency : turns.frequencies) frequency /= options.rope_factor;
      break;
    case model::RopeScaling::kYarn:
      return Yarn(options, turns.frequencies);
    case model::RopeScaling::kLlama3:
      for (double& frequency : turns.frequencies) frequency = Llama3(options, frequency);
      break;
  }
  return turns;
}

}  // namespace trireme::test
