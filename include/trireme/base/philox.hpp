// Philox4x32-10 (Salmon et al., SC11, doi:10.1145/2063384.2063405): random bits as a pure function
// of coordinates. doc/reference/numerics.md defines the layout of key and counter, which the
// functions below implement.
#pragma once

#include <array>
#include <cstdint>

namespace trireme {

// What random bits are for and, after the colon, their coordinates. Golden values depend on these
// numbers: never change them.
enum class Purpose : std::uint32_t {
  kInitialise = 1,        // initial weights: tensor, element
  kPermutation = 2,       // sample order: epoch, Feistel round
  kEmbeddingDropout = 3,  // after token + position embedding
  kAttentionDropout = 4,  // attention weights: head, query position, key position
  kResidualDropout = 5,   // output of the attention and of the feed-forward layer
  kFfnDropout = 6,        // hidden activations of the feed-forward layer
  kGenerate = 7,          // sampled tokens: number of the added token
  kHarbour = 8,           // the harbour corpus: token, split, use
  kVerify = 9,            // finite-difference directions of the tests
  kNumerals = 10,         // the built-in pairs: pair, split, attempt
  kPairOrder = 11,        // order of pairs and batches: 0 for batches, n + 1 for class n
  kCrossDropout = 12,     // weights of cross-attention: head, query position, key position
  kSampledSoftmax = 13,   // words that a step's loss looks at: step, stratum
  kWordDropout = 14,      // token vectors: window, token id
  kLayerDropout = 15,     // residual branches: window
  kWeightDropout = 16,    // the blocks' weights: step, row, column
};

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Four words of random bits for a counter and a key.
constexpr PhiloxCounter Philox(PhiloxCounter counter, PhiloxKey key) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMultiplier0) * counter[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMultiplier1) * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// Key: (seed, purpose in bits 0-7 | layer in bits 8-19 | head or site in bits 20-31).
constexpr PhiloxKey MakeKey(std::uint32_t seed, Purpose purpose, std::uint32_t layer = 0,
                            std::uint32_t head = 0) {
  return {seed,
          static_cast<std::uint32_t>(purpose) | (layer & 0xFFFu) << 8 | (head & 0xFFFu) << 20};
}

// Uniform in (0, 1], 24 bits: never zero, so that its logarithm is finite.
inline double UniformFrom(std::uint32_t bits) { return ((bits >> 8) + 1) * 0x1.0p-24; }

}  // namespace trireme
