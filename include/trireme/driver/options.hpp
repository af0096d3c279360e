// The [generate] section.
#ifndef TRIREME_DRIVER_OPTIONS_HPP_
#define TRIREME_DRIVER_OPTIONS_HPP_

#include <cstdint>
#include <string>

#include "trireme/input/deck.hpp"

namespace trireme::driver {

struct GenerateOptions {
  std::string prompt;       // text to continue; empty: generation starts after an <eos>
  std::int64_t tokens = 0;  // to add
  double temperature = 1;   // 0: greedy
  std::int64_t top_k = 0;   // 0: all
  double top_p = 1;         // nucleus (Holtzman et al. 2020)
  std::uint32_t seed = 1;   // of the draws
};

void DeclareGenerate(input::Schema& schema);  // [generate]

GenerateOptions ReadGenerate(const input::Deck& deck);

}  // namespace trireme::driver

#endif  // TRIREME_DRIVER_OPTIONS_HPP_
