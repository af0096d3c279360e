// The keys of [generate].
#include "trireme/driver/options.hpp"

#include <limits>

namespace trireme::driver {

void DeclareGenerate(input::Schema& schema) {
  using input::AtLeast, input::Between;
  constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
  schema.Section("generate", "Continuing a prompt (job.task = generate).")
      .Text("generate.prompt", "", "Text to continue. Empty: start after an <eos>.")
      .Integer("generate.tokens", 100, AtLeast(1), "tokens", "How many to add.")
      .Real("generate.temperature", 0.8, AtLeast(0), "", "0: greedy, always the likeliest.")
      .Integer("generate.top_k", 0, AtLeast(0), "tokens", "Draw from the k likeliest. 0: from all.")
      .Real("generate.top_p", 1, {0, 1, true, false}, "",
            "Draw from the fewest tokens that hold this much probability.")
      .Integer("generate.seed", 1, Between(0, kLargestSeed), "", "Of the draws.");
}

GenerateOptions ReadGenerate(const input::Deck& deck) {
  return {.prompt = deck.Text("generate.prompt"),
          .tokens = deck.Integer("generate.tokens"),
          .temperature = deck.Real("generate.temperature"),
          .top_k = deck.Integer("generate.top_k"),
          .top_p = deck.Real("generate.top_p"),
          .seed = static_cast<std::uint32_t>(deck.Integer("generate.seed"))};
}

}  // namespace trireme::driver
