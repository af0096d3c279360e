// The [model] section as a plain struct: every choice of the architecture; what follows from it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::model {

enum class Kind { kDecoder, kEncoderDecoder };
enum class Norm { kLayerNorm, kRmsNorm };
enum class NormPosition { kPre, kPost };
enum class Activation { kRelu, kGelu, kSwiglu };  // kGelu: the tanh form
enum class Position { kSinusoidal, kLearned, kRope };
enum class RopeScaling { kNone, kLinear, kYarn, kLlama3 };  // see RopeAnglesOf
enum class Init { kNormal, kGpt2, kXavier };
enum class Parametrization { kStandard, kMup };
// What the backward pass recomputes instead of keeping. kSelective: norms and activations, no
// products (after Korthikanti et al. 2022). kFull: all but each block's input (Chen et al. 2016).
enum class Recompute { kNone, kSelective, kFull };
const char* NameOf(Recompute recompute);  // as in the deck
const char* NameOf(RopeScaling scaling);

struct Options {
  std::string preset = "none";        // "none" or a preset's name
  std::int64_t vocabulary = 0;        // rows of embedding and head
  std::int64_t asked_vocabulary = 0;  // model.vocabulary; 0: use `types`
  std::int64_t types = 0;             // token ids in the file are below this; 0: unknown
  // kEncoderDecoder: whether source and target texts share one token table; source ids are below
  // source_types (0 for kDecoder).
  Kind kind = Kind::kDecoder;
  bool shared_vocabulary = true;
  std::int64_t source_types = 0;
  std::int64_t encoder_layers = 0;
  std::int64_t dim = 128;     // width of the residual stream
  std::int64_t heads = 4;     // query heads
  std::int64_t kv_heads = 4;  // key and value heads; divides heads
  std::int64_t head_dim = 32;
  std::int64_t layers = 2;            // blocks of the decoder
  std::int64_t ffn = 512;             // hidden width of the feed-forward layer
  std::int64_t max_positions = 1024;  // rows of the learned position table
  double rope_theta = 10000;
  RopeScaling rope_scaling = RopeScaling::kNone;
  double rope_factor = 0;                    // all kinds of scaling; 0: not given
  std::int64_t rope_original_positions = 0;  // kYarn, kLlama3; 0: not given
  double rope_low_frequency_factor = 1;      // this and the next: kLlama3 only
  double rope_high_frequency_factor = 4;
  double rope_beta_fast = 32;  // this and the next two: kYarn only
  double rope_beta_slow = 1;
  double rope_attention_factor = 0;  // 0: 0.1 ln(rope_factor) + 1
  double norm_epsilon = 1e-5;
  Norm norm = Norm::kLayerNorm;
  NormPosition norm_position = NormPosition::kPre;
  Activation activation = Activation::kGelu;
  Position position = Position::kLearned;
  bool qk_norm = false;          // RMSNorm of each head's queries and keys, before the rotation
  bool bias = true;              // linear layers and LayerNorm have biases; the head never
  bool qkv_bias = true;          // queries, keys and values have biases, whatever `bias` says
  bool tie_embeddings = true;    // head.weight is embedding.token.weight
  bool scale_embedding = false;  // multiply the embedding by sqrt(dim)
  double dropout = 0;            // embedding and residual branches
  double attention_dropout = 0;  // attention weights
  double ffn_dropout = 0;        // hidden activations of the feed-forward layer
  double word_dropout = 0;       // token vectors, all of a word in a window together
  double weight_dropout = 0;     // elements of the blocks' matrices, for a whole step
  double layer_dropout = 0;      // residual branches of the last block, of a window together
  Init init = Init::kNormal;
  double init_deviation = 0.02;  // standard deviation of kNormal and kGpt2
  Parametrization parametrization = Parametrization::kStandard;
  double mup_base = 0;           // dim of the model whose rates serve this one; kMup only
  double mup_base_head_dim = 0;  // its head_dim; 0: this model's
  Recompute recompute = Recompute::kNone;
  // Words over which the training loss takes its softmax (SampledWords); 0: the whole vocabulary.
  std::int64_t sampled_softmax = 0;

  bool Translates() const { return kind == Kind::kEncoderDecoder; }
  int Streams() const { return Translates() ? 2 : 1; }  // residual streams, one per stack of blocks
  // The maximal update parametrization (muP; Yang et al. 2022, arXiv:2203.03466, table 8). How many
  // times wider than the base model, m: matrices of the blocks begin 1 / sqrt(m) as large, their
  // updates are 1 / m as large (1 / sqrt(m) by Muon; train::ReadAll), and logits are divided by m.
  // 1 without muP.
  double WidthFactor() const;
  // Attention scores are divided by this, or by sqrt(head_dim) if it is 0: it grows with head_dim,
  // and is sqrt(head_dim) at mup_base_head_dim.
  double ScoreDivisor() const;
  // Blocks of encoder and decoder, numbered together, the encoder's first.
  std::int64_t Blocks() const { return encoder_layers + layers; }
  // Rows of the source texts' own token table; 0: there is none.
  std::int64_t SourceVocabulary() const {
    return Translates() && !shared_vocabulary ? source_types : 0;
  }
};

void Declare(deck::Schema& schema);  // [model]

// Supplies keys left out: from the preset; kv_heads, head_dim, qkv_bias from heads, dim, bias.
void Resolve(deck::Deck& deck);
// Does only the first part of Resolve: the preset's values.
void ResolvePreset(deck::Deck& deck);
// Supplies values for keys that the deck leaves out. values: (key without "model.", value). origin:
// their source, for messages. Skips numbers of a rotary scaling if the deck states another kind.
void Supply(deck::Deck& deck, const std::vector<std::pair<std::string, std::string>>& values,
            const std::string& origin);

// Reads and checks all keys; the vocabulary is set later. Throws InputError with the deck's line
// for sizes that do not divide.
Options Read(const deck::Deck& deck);

// The options with the vocabulary for a token file whose ids are below `types`. Throws InputError
// with the deck's line if `types` exceeds model.vocabulary, or if there are too many parameters to
// address.
Options WithVocabulary(const Options& options, std::int64_t types, const deck::Deck& deck);

// One key of the section and its effective value.
struct Setting {
  std::string name;  // the key without "model."
  std::variant<bool, std::int64_t, double, std::string> value;
  // True if the key changes the function that the weights compute; false: only their training.
  bool of_function = true;
  // True for keys of rotary positions, which a run from given weights may change.
  bool of_rotation = false;
};
// All keys except preset and recompute, which leave no trace in a trained model.
std::vector<Setting> SettingsOf(const Options& options);

// Number of parameters; tied ones count once.
std::int64_t ParameterCount(const Options& options);
// Floating-point operations per token of a forward and backward pass: 6 x matrix parameters +
// attention at the mean causal length. Only products count.
double FlopsPerToken(const Options& options, std::int64_t sequence_length);
// The same if a query sees `mean_keys` keys on average; without documents (length + 1) / 2.
double FlopsPerTokenOf(const Options& options, double mean_keys);

// Operations for a pair of texts, padding included, of an encoder-decoder; its FlopsPerToken is per
// target token, with source texts as long as target texts.
double PairFlops(const Options& options, std::int64_t source_length, std::int64_t target_length);

// Operations per token of the parts of pipeline stages; for the embedding an estimate.
struct PartCosts {
  double block = 0, embedding = 0, head = 0;
};
PartCosts CostsPerToken(const Options& options, std::int64_t sequence_length);

// Angles of rotary positions, plain (Su et al. 2021) or scaled for longer sequences.

struct RopeAngles {
  std::vector<double> frequencies;  // [head_dim / 2], radians per position
  double magnitude = 1;             // factor of cosines and sines; scores change by its square
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

// Throws InputError with the deck's line if a number that the kind of scaling needs is missing, or
// a number of another kind is given.
void CheckRopeScaling(const deck::Deck& deck, const Options& options);

}  // namespace trireme::model
