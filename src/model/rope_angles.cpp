// RopeAngles: frequencies by kind of scaling, in double precision; checks of the scaling's numbers.
#include "trireme/model/rope_angles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace trireme::model {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Share of the interpolated frequency in pair i: 0 up to `low`, 1 from `high` on.
struct Ramp {
  double low, high;
  double At(double i) const { return std::clamp((i - low) / (high - low), 0.0, 1.0); }
};

// Pair (not an integer) that turns `turns` times in the original positions: equation 17 solved for
// the dimension.
double PairOfTurns(const Options& o, double turns) {
  const auto positions = static_cast<double>(o.rope_original_positions);
  return static_cast<double>(o.head_dim) * std::log(positions / (turns * kTurn)) /
         (2 * std::log(o.rope_theta));
}

Ramp YarnRamp(const Options& o) {
  constexpr double kLeastWidth = 0.001;  // of the published code, against a division by zero
  Ramp ramp{
      std::max(std::floor(PairOfTurns(o, o.rope_beta_fast)), 0.0),
      std::min(std::ceil(PairOfTurns(o, o.rope_beta_slow)), static_cast<double>(o.head_dim - 1))};
  if (ramp.low == ramp.high) ramp.high += kLeastWidth;
  return ramp;
}

double Llama3Frequency(const Options& o, double plain) {
  // Turns in the original positions, L / wavelength.
  const double turns = static_cast<double>(o.rope_original_positions) * plain / kTurn;
  if (turns < o.rope_low_frequency_factor) return plain / o.rope_factor;
  if (turns > o.rope_high_frequency_factor) return plain;
  const double share = (turns - o.rope_low_frequency_factor) /
                       (o.rope_high_frequency_factor - o.rope_low_frequency_factor);
  return (1 - share) * plain / o.rope_factor + share * plain;
}

double Scaled(const Options& o, double plain, double pair) {
  switch (o.rope_scaling) {
    case RopeScaling::kNone:
      return plain;
    case RopeScaling::kLinear:
      return plain / o.rope_factor;
    case RopeScaling::kYarn: {
      const double share = YarnRamp(o).At(pair);
      return plain / o.rope_factor * share + plain * (1 - share);
    }
    case RopeScaling::kLlama3:
      return Llama3Frequency(o, plain);
  }
  return plain;
}

// A number of [model] that some kinds of scaling read.
struct Number {
  const char* key;
  double value, otherwise;  // otherwise: its default
  bool read, needed;        // by the deck's kind
};

}  // namespace

RopeAngles RopeAnglesOf(const Options& o) {
  RopeAngles angles;
  for (std::int64_t i = 0; i < o.head_dim / 2; ++i) {
    const auto pair = static_cast<double>(i);
    const double plain = std::pow(o.rope_theta, -2.0 * pair / static_cast<double>(o.head_dim));
    angles.frequencies.push_back(Scaled(o, plain, pair));
  }
  if (o.rope_scaling != RopeScaling::kYarn) return angles;
  angles.magnitude =
      o.rope_attention_factor > 0 ? o.rope_attention_factor : 0.1 * std::log(o.rope_factor) + 1;
  return angles;
}

namespace {

constexpr const char* kKey = "model.rope_scaling";

void CheckNumbers(const deck::Deck& deck, const Options& o, const std::string& kind) {
  const Options plain;
  const bool scaled = o.rope_scaling != RopeScaling::kNone;
  const bool yarn = o.rope_scaling == RopeScaling::kYarn;
  const bool llama3 = o.rope_scaling == RopeScaling::kLlama3;
  const Number numbers[] = {
      {"model.rope_factor", o.rope_factor, plain.rope_factor, scaled, true},
      {"model.rope_original_positions", static_cast<double>(o.rope_original_positions),
       static_cast<double>(plain.rope_original_positions), yarn || llama3, true},
      {"model.rope_low_frequency_factor", o.rope_low_frequency_factor,
       plain.rope_low_frequency_factor, llama3, false},
      {"model.rope_high_frequency_factor", o.rope_high_frequency_factor,
       plain.rope_high_frequency_factor, llama3, false},
      {"model.rope_beta_fast", o.rope_beta_fast, plain.rope_beta_fast, yarn, false},
      {"model.rope_beta_slow", o.rope_beta_slow, plain.rope_beta_slow, yarn, false},
      {"model.rope_attention_factor", o.rope_attention_factor, plain.rope_attention_factor, yarn,
       false}};
  for (const Number& number : numbers) {
    if (!number.read && number.value != number.otherwise) {
      throw deck.Complain(number.key, fmt::format("is no number of {} = {}", kKey, kind),
                          "Leave it out, or choose the scaling that it belongs to.");
    }
    if (number.read && number.needed && number.value == number.otherwise) {
      throw deck.Complain(kKey, fmt::format("needs {}", number.key),
                          "`trireme --help-deck model` says what it means.");
    }
  }
}

}  // namespace

void CheckRopeScaling(const deck::Deck& deck, const Options& o) {
  const std::string kind = NameOf(o.rope_scaling);
  if (o.rope_scaling != RopeScaling::kNone && o.position != Position::kRope) {
    throw deck.Complain(kKey, "scales rotary positions, which this model does not have",
                        "What fits: model.position = rope, or model.rope_scaling = none.");
  }
  CheckNumbers(deck, o, kind);
  if (o.rope_scaling == RopeScaling::kNone) return;
  if (o.rope_factor < 1) {
    throw deck.Complain("model.rope_factor", "must be 1 or larger: sequences become longer");
  }
  if (o.rope_scaling == RopeScaling::kLlama3 &&
      o.rope_low_frequency_factor >= o.rope_high_frequency_factor) {
    throw deck.Complain("model.rope_low_frequency_factor",
                        fmt::format("must lie below model.rope_high_frequency_factor = {}",
                                    o.rope_high_frequency_factor));
  }
  if (o.rope_scaling != RopeScaling::kYarn) return;
  if (o.rope_beta_slow >= o.rope_beta_fast) {
    throw deck.Complain("model.rope_beta_slow",
                        fmt::format("must lie below model.rope_beta_fast = {}", o.rope_beta_fast));
  }
  if (o.rope_theta <= 1) {
    throw deck.Complain("model.rope_theta", "must lie above 1 for model.rope_scaling = yarn");
  }
}

}  // namespace trireme::model
