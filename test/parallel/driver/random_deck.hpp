// Decks drawn at random: what the tests of layouts share.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_RANDOM_DECK_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_RANDOM_DECK_HPP_

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

namespace trireme::test {

inline int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// The same draws on every rank.
class Draw {
 public:
  explicit Draw(int seed) : engine_(static_cast<std::uint64_t>(seed)) {}
  // Uniform in [least, most]; no distribution of the library, whose draws are its own affair.
  int Between(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Between(0, static_cast<int>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// Architecture and sizes, as the lines of [model]; each kind of head in at least `slices` of them
// (norms of heads only with one, as run.canonical has it).
inline std::string ModelKeys(Draw& draw, int length, int slices = 1) {
  const int heads = std::max(slices, draw.Of({1, 2, 3, 4, 4, 5, 6, 8, 8}));
  int kv_heads = draw.Between(slices, heads);
  while (heads % kv_heads != 0) ++kv_heads;
  const char* position = draw.Of({"sinusoidal", "learned", "rope"});
  const int head_dim = std::string(position) == "rope" ? draw.Of({2, 4}) : draw.Between(1, 5);
  // A LayerNorm of one or two features gives 0 or +-1 whatever comes in: gradients of noise.
  constexpr int kLeastDim = 5;
  const bool plain = draw.Between(0, 1) == 0 && heads * head_dim >= kLeastDim;
  std::string keys = fmt::format(
      "heads={}\nkv_heads={}\nhead_dim={}\ndim={}\nlayers={}\nffn={}\nmax_positions={}\n", heads,
      kv_heads, head_dim, plain ? heads * head_dim : draw.Between(kLeastDim, 19),
      draw.Between(1, 7), draw.Between(8, 23), length + draw.Between(0, 2));
  keys += fmt::format("position={}\nnorm={}\nnorm_position={}\nactivation={}\nbias={}\n", position,
                      draw.Of({"layernorm", "rmsnorm"}), draw.Of({"pre", "post"}),
                      draw.Of({"relu", "gelu", "swiglu"}), draw.Of({"yes", "no"}));
  keys += fmt::format("qkv_bias={}\nqk_norm={}\n", draw.Of({"yes", "no"}),
                      slices == 1 ? draw.Of({"yes", "no", "no"}) : "no");
  if (std::string(position) == "rope") {
    keys += draw.Of({"", "", "rope_scaling=linear\nrope_factor=3\n",
                     "rope_scaling=yarn\nrope_factor=4\nrope_original_positions=40\n",
                     "rope_scaling=llama3\nrope_factor=8\nrope_original_positions=20\n"});
  }
  keys += fmt::format("tie_embeddings={}\nscale_embedding={}\ninit={}\ninit_deviation=0.2\n",
                      draw.Of({"yes", "no"}), draw.Of({"yes", "no"}),
                      draw.Of({"normal", "gpt2", "xavier"}));
  for (const char* key : {"dropout", "attention_dropout", "ffn_dropout"}) {
    keys += fmt::format("{}={}\n", key, draw.Of({"0", "0.1", "0.3"}));
  }
  // Dropout may leave nothing of a row of a few features: with a small epsilon the norm multiplies
  // its gradient by hundreds, block after block, and rounding shows (on one rank too, from one
  // micro-batch size to another).
  keys += "norm_epsilon=1e-2\n";
  return keys + fmt::format("recompute={}\n", draw.Of({"none", "selective", "full"}));
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_RANDOM_DECK_HPP_
