// Angles of rotary positions, plain (Su et al. 2021) or scaled for sequences longer than those that
// a model was trained on.
#ifndef TRIREME_MODEL_ROPE_ANGLES_HPP_
#define TRIREME_MODEL_ROPE_ANGLES_HPP_

#include <vector>

#include "trireme/model/options.hpp"

namespace trireme::model {

struct RopeAngles {
  std::vector<double> frequencies;  // [head_dim / 2], radians per position
  double magnitude = 1;             // factor of cosines and sines; its square multiplies scores
};

// With theta_i = rope_theta^(-2 i / head_dim), L = rope_original_positions, s = rope_factor:
//   kNone    theta_i
//   kLinear  theta_i / s (Chen et al. 2023, arXiv:2306.15595)
//   kYarn    theta_i / s for pairs of few turns in L positions, theta_i for those of many, a linear
//            ramp over i between; magnitude 0.1 ln s + 1 (Peng et al. 2023, arXiv:2309.00071,
//            sections 3.2 to 3.4; bounds rounded outwards as in their published code)
//   kLlama3  theta_i / s for wavelengths above L / low factor, theta_i below L / high factor,
//            between them a mean by L / wavelength (Llama 3.1's published code)
RopeAngles RopeAnglesOf(const Options& options);

// Throws InputError with the deck's line for numbers that the kind of scaling needs and does not
// have, and for numbers of other kinds.
void CheckRopeScaling(const deck::Deck& deck, const Options& options);

}  // namespace trireme::model

#endif  // TRIREME_MODEL_ROPE_ANGLES_HPP_
