// Rotary positions and attention of the plain reference, one query of one head at a time.
#include <algorithm>
#include <cmath>

#include "reference_layers.hpp"

namespace trireme::test {

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

// softmax over the visible keys of q.k / sqrt(head_dim)
std::vector<double> Weights(const AttentionShape& shape, const Site& site, const Array& query,
                            const Array& key) {
  std::vector<double> weights(static_cast<std::size_t>(site.keys));
  for (std::int64_t s = 0; s < site.keys; ++s) {
    double score = 0;
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      score +=
          query(site.row, site.query_column + d) * key(site.first_key_row + s, site.kv_column + d);
    }
    weights[static_cast<std::size_t>(s)] = score / std::sqrt(static_cast<double>(shape.head_dim));
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
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
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

}  // namespace trireme::test
