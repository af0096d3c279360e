// Angles of rotary positions for the plain reference, in the steps and names of Hugging Face's
// modeling_rope_utils.py.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference_layers.hpp"

namespace trireme::test {

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
