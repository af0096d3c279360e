// The [model] section: keys, presets and checks; parameter counts, costs, rotary angles.
#include "trireme/model/options.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/files.hpp"
#include "trireme/deck/keys.hpp"
#include "trireme/deck/schema.hpp"

namespace trireme::model {

namespace {

// Presets: known models, as values for keys of [model] that a deck leaves out.

using PresetValues = std::vector<std::pair<std::string, std::string>>;  // key, value

// The values of "key=value key=value ...".
PresetValues Values(const std::string& text) {
  PresetValues values;
  for (const std::string& word : WordsIn(text)) {
    const std::size_t at = word.find('=');
    values.emplace_back(word.substr(0, at), word.substr(at + 1));
  }
  return values;
}

// The JSC course's Transformer (layers of Vaswani et al. 2017) for WikiText-2, but causal.
constexpr const char* kJsc =
    "dim=128 heads=4 layers=2 ffn=2048 norm=layernorm norm_position=post activation=relu "
    "position=sinusoidal bias=yes tie_embeddings=no scale_embedding=yes dropout=0.1 "
    "attention_dropout=0.1 ffn_dropout=0.1 init=xavier";

// GPT-2 (Radford et al. 2019): widths of table 2; dropout as in the published code.
PresetValues Gpt2(int dim, int heads, int layers) {
  return Values(fmt::format(
      "dim={} heads={} layers={} ffn={} max_positions=1024 norm=layernorm norm_position=pre "
      "activation=gelu position=learned bias=yes tie_embeddings=yes dropout=0.1 "
      "attention_dropout=0.1 init=gpt2",
      dim, heads, layers, 4 * dim));
}

// Llama (Touvron et al. 2023) shrunk to course sizes: RMSNorm, SwiGLU, rotary positions, no biases.
PresetValues Llama(int dim, int heads, int kv_heads, int layers, int ffn) {
  return Values(fmt::format(
      "dim={} heads={} kv_heads={} layers={} ffn={} max_positions=2048 norm=rmsnorm "
      "norm_position=pre activation=swiglu position=rope bias=no tie_embeddings=yes init=gpt2",
      dim, heads, kv_heads, layers, ffn));
}

// Llama 3 (Grattafiori et al. 2024, table 3; 3.2's model cards for the two smaller ones). Rotary
// scaling of versions 3.1 and 3.2: contexts of 131,072 tokens after training on 8,192.
PresetValues Llama3(int dim, int heads, int layers, int ffn, int factor, bool tied) {
  constexpr int kHeadDim = 128, kSmallest = 2048;
  return Values(fmt::format(
      "dim={} heads={} kv_heads=8 head_dim={} layers={} ffn={} max_positions=131072 "
      "rope_theta=500000 rope_scaling=llama3 rope_factor={} rope_original_positions=8192 "
      "rope_low_frequency_factor=1 rope_high_frequency_factor=4 norm_epsilon=1e-5 norm=rmsnorm "
      "norm_position=pre activation=swiglu position=rope bias=no tie_embeddings={} init=gpt2",
      dim, heads, dim == kSmallest ? kHeadDim / 2 : kHeadDim, layers, ffn, factor,
      tied ? "yes" : "no"));
}

// By name, in help's order.
const std::vector<std::pair<std::string, PresetValues>>& Presets() {
  static const std::vector<std::pair<std::string, PresetValues>> presets = {
      {"jsc", Values(kJsc)},
      {"gpt2_124m", Gpt2(768, 12, 12)},
      {"gpt2_355m", Gpt2(1024, 16, 24)},
      {"gpt2_774m", Gpt2(1280, 20, 36)},
      {"gpt2_1558m", Gpt2(1600, 25, 48)},
      {"llama_5m", Llama(128, 4, 2, 4, 384)},
      {"llama_15m", Llama(288, 6, 6, 6, 768)},
      {"llama_42m", Llama(512, 8, 8, 8, 1376)},
      {"llama_110m", Llama(768, 12, 12, 12, 2048)},
      {"llama3_1b", Llama3(2048, 32, 16, 8192, 32, true)},
      {"llama3_3b", Llama3(3072, 24, 28, 8192, 32, true)},
      {"llama3_8b", Llama3(4096, 32, 32, 14336, 8, false)},
      {"llama3_70b", Llama3(8192, 64, 80, 28672, 8, false)}};
  return presets;
}

constexpr deck::Names<2> kModelKinds = {"decoder", "encoder_decoder"};
constexpr deck::Names<2> kNorms = {"layernorm", "rmsnorm"};
constexpr deck::Names<2> kNormPositions = {"pre", "post"};
constexpr deck::Names<3> kActivations = {"relu", "gelu", "swiglu"};
constexpr deck::Names<3> kPositions = {"sinusoidal", "learned", "rope"};
constexpr deck::Names<4> kRopeScalings = {"none", "linear", "yarn", "llama3"};
constexpr deck::Names<3> kInits = {"normal", "gpt2", "xavier"};
constexpr deck::Names<2> kParametrizations = {"standard", "mup"};
constexpr deck::Names<3> kRecomputes = {"none", "selective", "full"};

constexpr double kMostParameters = 1e14;  // keeps byte counts within 64 bits

// Checks the keys of muP.
void CheckParametrization(const deck::Deck& deck, const Options& o) {
  constexpr const char* kParametrization = "model.parametrization";
  const bool standard = o.parametrization == Parametrization::kStandard;
  for (const char* key : {"model.mup_base", "model.mup_base_head_dim"}) {
    deck.RefuseUnused(standard, key, "belongs to model.parametrization = mup",
                      "Leave it out, or choose that parametrization.");
  }
  if (standard) return;
  if (o.mup_base == 0) {
    throw deck.Complain(kParametrization, "mup needs model.mup_base",
                        "Give the model.dim of the model whose learning rate you tuned.");
  }
  if (o.init == Init::kXavier || o.scale_embedding) {
    throw deck.Complain(
        kParametrization,
        fmt::format("mup does not go together with {}, which scales with the "
                    "width in a way of its own",
                    o.scale_embedding ? "model.scale_embedding = yes" : "model.init = xavier"),
        o.scale_embedding ? "Use model.scale_embedding = no and a larger model.init_deviation."
                          : "Use model.init = normal or gpt2.");
  }
}

// Checks what must divide what. asked: the options as the deck states them.
void OptionsCheck(const deck::Deck& deck, const Options& asked, const Options& o) {
  if (o.head_dim * o.heads != o.dim && asked.head_dim == 0) {
    throw deck.Complain("model.heads",
                        fmt::format("{} heads do not divide model.dim = {}", o.heads, o.dim),
                        "Choose a divisor of model.dim, or set model.head_dim.");
  }
  if (o.heads % o.kv_heads != 0) {
    throw deck.Complain("model.kv_heads", fmt::format("must divide model.heads = {}", o.heads));
  }
  if (o.position == Position::kRope && o.head_dim % 2 != 0) {
    throw deck.Complain("model.position",
                        fmt::format("rotary positions need an even head_dim, not {}", o.head_dim));
  }
  CheckRopeScaling(deck, o);
}

}  // namespace

const char* NameOf(Recompute recompute) {
  return kRecomputes.at(static_cast<std::size_t>(recompute));
}

const char* NameOf(RopeScaling scaling) {
  return kRopeScalings.at(static_cast<std::size_t>(scaling));
}

namespace {

void BindRope(deck::Keys keys, Options& o) {
  using deck::AtLeast, deck::Between, deck::Above;
  keys.Real("model.rope_theta", o.rope_theta, Above(0), "", "Base of the rotary positions' angles.")
      .Choice("model.rope_scaling", o.rope_scaling, kRopeScalings,
              "Fits rotary positions to sequences longer than those of an earlier training. "
              "linear: divides positions by rope_factor; yarn: does so only for feature pairs that "
              "make few turns in rope_original_positions, and multiplies cosines and sines by "
              "rope_attention_factor; llama3: by wavelength, as Llama 3.1.")
      .Real("model.rope_factor", o.rope_factor, AtLeast(0), "",
            "How many times longer sequences may become; at least 1. 0: not given.")
      .Integer("model.rope_original_positions", o.rope_original_positions, Between(0, 1 << 28),
               "tokens", "Longest sequence of the earlier training (yarn, llama3). 0: not given.")
      .Real("model.rope_low_frequency_factor", o.rope_low_frequency_factor, Above(0), "",
            "llama3: pairs with fewer turns in the original positions are slowed by rope_factor.")
      .Real("model.rope_high_frequency_factor", o.rope_high_frequency_factor, Above(0), "",
            "llama3: pairs with more turns in the original positions stay as they are.")
      .Real("model.rope_beta_fast", o.rope_beta_fast, Above(0), "turns",
            "yarn: pairs with more turns in the original positions stay as they are.")
      .Real("model.rope_beta_slow", o.rope_beta_slow, Above(0), "turns",
            "yarn: pairs with fewer turns in the original positions are slowed by rope_factor.")
      .Real("model.rope_attention_factor", o.rope_attention_factor, AtLeast(0), "",
            "yarn: multiplies cosines and sines. 0: 0.1 ln(rope_factor) + 1.");
}

void BindTraining(deck::Keys keys, Options& o) {
  using deck::AtLeast, deck::Between;
  constexpr double kMostDropout = 0.99;  // draws have 16 bits: close to 1, all would be dropped
  keys.Real("model.dropout", o.dropout, Between(0, kMostDropout), "",
            "Probability of dropping an element of the embedding and of the residual branches.")
      .Real("model.attention_dropout", o.attention_dropout, Between(0, kMostDropout), "",
            "The same for attention weights.")
      .Real("model.ffn_dropout", o.ffn_dropout, Between(0, kMostDropout), "",
            "The same for the feed-forward layer's hidden activations.")
      .Real("model.word_dropout", o.word_dropout, Between(0, kMostDropout), "",
            "Probability of dropping a word from a window: its token vectors are zero wherever it "
            "stands there (Gal and Ghahramani 2016), before positions are added.")
      .Real("model.layer_dropout", o.layer_dropout, Between(0, kMostDropout), "",
            "Stochastic depth (Huang et al. 2016): probability of dropping a residual branch of "
            "the last block for a whole window; block l of L has l / L of it. In encoder and "
            "decoder l and L are each stack's own.")
      .Real("model.weight_dropout", o.weight_dropout, Between(0, kMostDropout), "",
            "DropConnect (Wan et al. 2013): probability of dropping an element of the blocks' "
            "matrices for a whole step. Costs a copy of each matrix per product. On GPUs steps are "
            "then not recorded as graphs; not with fp8.")
      .Choice("model.init", o.init, kInits,
              "normal: all matrices normal, with init_deviation; gpt2: likewise, residual "
              "projections divided by sqrt(2 layers); xavier: uniform, by fan-in and fan-out.")
      .Real("model.init_deviation", o.init_deviation, AtLeast(0), "",
            "Standard deviation for init = normal and gpt2.")
      .Choice(
          "model.parametrization", o.parametrization, kParametrizations,
          "mup: the learning rate that is best for a narrow model is best for a wide one, too "
          "(Yang et al. 2022). With m = model.dim / model.mup_base, matrices of the blocks "
          "begin 1 / sqrt(m) as large and have 1 / m of the learning rate and m times the decay "
          "(muon: sqrt(m) in place of m), and logits are divided by m. adamw, lion and muon "
          "only.")
      .Real("model.mup_base", o.mup_base, AtLeast(0), "features",
            "mup: model.dim of the model whose learning rate was tuned; its ffn and heads are as "
            "much smaller. 0: not given.")
      .Real("model.mup_base_head_dim", o.mup_base_head_dim, AtLeast(0), "features",
            "mup: the tuned model's head_dim. If this model's is larger, attention scores are "
            "divided by head_dim / sqrt(this) instead of sqrt(head_dim). 0: the same.")
      .Integer("model.sampled_softmax", o.sampled_softmax, AtLeast(0), "words",
               "Train with a softmax over so many words: half of them the most frequent (the "
               "lowest ids), half drawn anew for each step, with weights that keep the sum's "
               "expectation (Jean et al. 2015); losses of evaluations take the whole vocabulary. "
               "Only on CPUs. 0: the whole vocabulary always.")
      .Choice(
          "model.recompute", o.recompute, kRecomputes,
          "What the backward pass computes again to save memory. none: nothing; selective: norms "
          "and activations, but no matrix products; full: everything but each block's input.");
}

void Bind(deck::Keys keys, Options& o) {
  std::vector<std::string> presets = {"none"};
  for (const auto& [name, settings] : Presets()) presets.push_back(name);
  using deck::Between, deck::Above;
  keys.Section("model", "The architecture. A preset gives values to keys that the deck leaves out.")
      .Choice("model.preset", o.preset, presets,
              "A known model. jsc: that of the JSC course; gpt2_*: GPT-2 by parameters; llama_*: "
              "Llama shrunk to a few million parameters; llama3_*: Llama 3.2 (1b, 3b) and 3.1 (8b, "
              "70b). Keys that are given take precedence.")
      .Choice("model.kind", o.kind, kModelKinds,
              "decoder: a language model. encoder_decoder: translates; data.file holds pairs.")
      .Integer("model.vocabulary", o.asked_vocabulary, Between(0, 1 << 24), "tokens",
               "Rows of the token embedding and of the head. Rows beyond the token file's "
               "vocabulary are never a target, never generated. 0: as many as that vocabulary.")
      .Integer("model.dim", o.dim, Between(1, 1 << 20), "features", "Width of the residual stream.")
      .Integer("model.heads", o.heads, Between(1, 4095), "", "Query heads.")
      .Integer("model.kv_heads", o.kv_heads, Between(0, 4095), "",
               "Key and value heads (grouped-query); must divide heads. 0: as many as heads.")
      .Integer("model.head_dim", o.head_dim, Between(0, 65536), "features",
               "Width of a head. 0: dim / heads.")
      .Integer("model.layers", o.layers, Between(1, 4095), "blocks",
               "Transformer blocks; with kind = encoder_decoder, the decoder's.")
      .Integer("model.encoder_layers", o.encoder_layers, Between(0, 2048), "blocks",
               "Blocks of the encoder (encoder_decoder). 0: as many as layers.")
      .Switch("model.shared_vocabulary", o.shared_vocabulary,
              "One embedding table for source and target texts (encoder_decoder).")
      .Integer("model.ffn", o.ffn, Between(1, 1 << 22), "features",
               "Hidden width of the feed-forward layer.")
      .Integer("model.max_positions", o.max_positions, Between(1, 1 << 28), "tokens",
               "Rows of the learned position table: the longest sequence.")
      .Real("model.norm_epsilon", o.norm_epsilon, Above(0), "", "Added to the variance in a norm.")
      .Choice("model.norm", o.norm, kNorms, "LayerNorm, or RMSNorm (no mean, no bias).")
      .Choice(
          "model.norm_position", o.norm_position, kNormPositions,
          "pre: norms before each sub-layer and before the head; post: after each residual sum.")
      .Choice("model.activation", o.activation, kActivations,
              "Activation of the feed-forward layer; gelu is its tanh form, swiglu is gated.")
      .Choice("model.position", o.position, kPositions,
              "How the model knows positions. sinusoidal, learned: vectors added to the embedding, "
              "fixed or trained; rope: rotations of queries and keys.")
      .Switch(
          "model.qk_norm", o.qk_norm,
          "RMSNorm of each head's queries and keys before their rotation, with learned weights.")
      .Switch("model.bias", o.bias,
              "Biases in linear layers and LayerNorm; the head never has one.")
      .Switch("model.qkv_bias", o.qkv_bias,
              "Biases of queries, keys and values. Left out: as model.bias.")
      .Switch("model.tie_embeddings", o.tie_embeddings,
              "The head uses the token embedding's weights.")
      .Switch("model.scale_embedding", o.scale_embedding, "Scales token embeddings by sqrt(dim).");
  BindRope(keys, o);
  BindTraining(keys, o);
}

}  // namespace

std::vector<Setting> SettingsOf(const Options& o) {
  const auto among = [](const std::string& name, const char* words) {
    return std::ranges::count(WordsIn(words), name) > 0;
  };
  deck::Schema schema;
  deck::Declare(schema, Bind, o);
  std::vector<Setting> settings;
  for (const deck::Key& key : schema.Keys()) {
    const std::string name = key.name.substr(key.name.find('.') + 1);
    if (among(name, "preset recompute")) continue;
    if (!o.Translates() && among(name, "kind encoder_layers shared_vocabulary")) continue;
    Setting& setting = settings.emplace_back();
    setting.name = name;
    setting.of_function = !among(name,
                                 "dropout attention_dropout ffn_dropout word_dropout "
                                 "layer_dropout weight_dropout init init_deviation "
                                 "sampled_softmax");
    setting.of_rotation = name.starts_with("rope_");
    setting.value = key.fallback;
    if (key.kind == deck::KeyKind::kSwitch) setting.value = key.fallback == "yes";
    if (key.kind == deck::KeyKind::kInteger) setting.value = std::int64_t{std::stoll(key.fallback)};
    if (key.kind == deck::KeyKind::kReal) setting.value = std::stod(key.fallback);
  }
  return settings;
}

void Declare(deck::Schema& schema) {
  Options defaults;
  defaults.kv_heads = defaults.head_dim = 0;  // 0: derived from heads and dim
  deck::Declare(schema, Bind, defaults);
}

void Supply(deck::Deck& deck, const std::vector<std::pair<std::string, std::string>>& values,
            const std::string& origin) {
  std::string scaling;
  for (const auto& [name, value] : values) {
    if (name == "rope_scaling") scaling = value;
  }
  const bool other =
      deck.Given("model.rope_scaling") && NameOf(deck::Read(deck, Bind).rope_scaling) != scaling;
  for (const auto& [name, value] : values) {
    const bool number = name.starts_with("rope_") && name != "rope_theta" && name != "rope_scaling";
    if (!number || !other) deck.Supply("model." + name, value, origin);
  }
}

void ResolvePreset(deck::Deck& deck) {
  const std::string preset = deck::Read(deck, Bind).preset;
  for (const auto& [name, settings] : Presets()) {
    if (name == preset) Supply(deck, settings, "preset " + name);
  }
}

void Resolve(deck::Deck& deck) {
  ResolvePreset(deck);
  const Options o = deck::Read(deck, Bind);
  if (o.kv_heads == 0) deck.Supply("model.kv_heads", std::to_string(o.heads), "model.heads");
  if (o.head_dim == 0 && o.dim % o.heads == 0) {
    deck.Supply("model.head_dim", std::to_string(o.dim / o.heads), "model.dim / model.heads");
  }
  if (deck.Where("model.qkv_bias") == "default") {
    deck.Supply("model.qkv_bias", o.bias ? "yes" : "no", "model.bias");
  }
}

// Refuses keys that the other kind of model has.
static void CheckKind(const deck::Deck& deck, const Options& o) {
  constexpr std::int64_t kMostBlocks = 4095;
  if (!o.Translates()) {
    const bool layers = o.encoder_layers != 0;
    if (!layers && o.shared_vocabulary) return;
    throw deck.Complain(layers ? "model.encoder_layers" : "model.shared_vocabulary",
                        "belongs to model.kind = encoder_decoder", "Remove this key.");
  }
  if (o.Blocks() > kMostBlocks) {
    throw deck.Complain(
        "model.encoder_layers",
        fmt::format("more than {} blocks with model.layers = {}", kMostBlocks, o.layers));
  }
}

Options Read(const deck::Deck& deck) {
  const Options asked = deck::Read(deck, Bind);
  Options o = asked;
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.head_dim == 0) o.head_dim = o.dim / o.heads;
  if (deck.Where("model.qkv_bias") == "default") o.qkv_bias = o.bias;
  if (o.Translates() && o.encoder_layers == 0) o.encoder_layers = o.layers;
  CheckKind(deck, o);
  OptionsCheck(deck, asked, o);
  CheckParametrization(deck, o);
  return o;
}

Options WithVocabulary(const Options& options, std::int64_t types, const deck::Deck& deck) {
  Options o = options;
  o.types = types;
  o.vocabulary = o.asked_vocabulary > 0 ? o.asked_vocabulary : types;
  if (types > o.vocabulary) {
    throw deck.Complain("model.vocabulary", fmt::format("the token file has {} types", types),
                        "Each needs a row: give a token file of the model's own tokenizer, or "
                        "raise model.vocabulary.");
  }
  const auto product = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(a) * static_cast<double>(b);
  };
  const double blocks =
      static_cast<double>(o.Blocks()) * product(o.dim, std::max(o.heads * o.head_dim, o.ffn));
  if (blocks + product(o.vocabulary, o.dim) <= kMostParameters) return o;
  throw deck.Complain("model.dim", "the model has more parameters than can be addressed",
                      "Lower model.layers, model.dim, model.ffn or model.head_dim.");
}

// What follows from the options: factors of muP, number of parameters, operations, costs of parts.

double Options::WidthFactor() const {
  return parametrization == Parametrization::kMup ? static_cast<double>(dim) / mup_base : 1;
}

double Options::ScoreDivisor() const {
  if (mup_base_head_dim == 0) return 0;
  const auto d = static_cast<double>(head_dim);
  return std::sqrt(d * d / mup_base_head_dim);
}

namespace {

// Elements of one attention's query and output matrices, of its key and value matrices, and of all
// matrices of a block without cross-attention.
std::int64_t QueryMatrices(const Options& o) { return o.dim * o.head_dim * 2 * o.heads; }
std::int64_t KeyMatrices(const Options& o) { return o.dim * o.head_dim * 2 * o.kv_heads; }
std::int64_t BlockMatrices(const Options& o) {
  const std::int64_t up = o.activation == Activation::kSwiglu ? 2 : 1;
  return QueryMatrices(o) + KeyMatrices(o) + (up + 1) * o.dim * o.ffn;
}
// Number of blocks with cross-attention.
std::int64_t CrossBlocks(const Options& o) { return o.Translates() ? o.layers : 0; }

// Operations of one query that sees `keys` keys in one block, forward and backward.
double AttentionFlops(const Options& o, double keys) {
  return 12 * static_cast<double>(o.heads * o.head_dim) * keys;
}

}  // namespace

std::int64_t ParameterCount(const Options& o) {
  const bool norm_bias = o.bias && o.norm == Norm::kLayerNorm;
  const std::int64_t norm = o.dim * (norm_bias ? 2 : 1);
  const std::int64_t up = o.activation == Activation::kSwiglu ? 2 : 1;
  const std::int64_t biases = o.bias ? 2 * o.dim + up * o.ffn : 0;
  const std::int64_t projections = o.qkv_bias ? o.head_dim * (o.heads + 2 * o.kv_heads) : 0;
  const std::int64_t of_heads = projections + (o.qk_norm ? 2 * o.head_dim : 0);
  std::int64_t count = o.Blocks() * (BlockMatrices(o) + biases + of_heads + 2 * norm);
  count += CrossBlocks(o) *
           (QueryMatrices(o) + KeyMatrices(o) + projections + (o.bias ? o.dim : 0) + norm);
  count += o.vocabulary * o.dim * (o.tie_embeddings ? 1 : 2) + o.SourceVocabulary() * o.dim;
  if (o.position == Position::kLearned) count += o.Streams() * o.max_positions * o.dim;
  if (o.norm_position == NormPosition::kPre) count += o.Streams() * norm;
  return count;
}

// Words over which the training loss takes its softmax.
static std::int64_t LossWords(const Options& o) {
  return o.sampled_softmax == 0 ? o.vocabulary : std::min(o.sampled_softmax, o.vocabulary);
}

PartCosts CostsPerToken(const Options& o, std::int64_t sequence_length) {
  // Reading and writing a few rows costs about as much as this many operations per element.
  constexpr double kEmbeddingWork = 100;
  const double blocks = static_cast<double>(o.Blocks()), dim = static_cast<double>(o.dim);
  PartCosts costs;
  costs.head = 6 * static_cast<double>(LossWords(o)) * dim;
  costs.block = (FlopsPerToken(o, sequence_length) - costs.head) / blocks;
  // Adds a second forward pass, a third of the cost without recomputation.
  if (o.recompute == Recompute::kFull) costs.block *= 4.0 / 3;
  costs.embedding = kEmbeddingWork * dim * o.Streams();
  return costs;
}

double FlopsPerToken(const Options& o, std::int64_t sequence_length) {
  if (o.Translates()) {
    return PairFlops(o, sequence_length, sequence_length) / static_cast<double>(sequence_length);
  }
  const double matrices = static_cast<double>(o.layers * BlockMatrices(o) + LossWords(o) * o.dim);
  const double attention = static_cast<double>(o.layers * o.heads * o.head_dim) *
                           static_cast<double>(sequence_length + 1);
  return 6 * matrices + 6 * attention;
}

double FlopsPerTokenOf(const Options& o, double mean_keys) {
  const double matrices = static_cast<double>(o.layers * BlockMatrices(o) + LossWords(o) * o.dim);
  return 6 * matrices + static_cast<double>(o.layers) * AttentionFlops(o, mean_keys);
}

double PairFlops(const Options& o, std::int64_t source_length, std::int64_t target_length) {
  const auto s = static_cast<double>(source_length), t = static_cast<double>(target_length);
  const auto encoders = static_cast<double>(o.encoder_layers),
             decoders = static_cast<double>(o.layers),
             block = static_cast<double>(BlockMatrices(o));
  const double source = 6 * (encoders * block + decoders * static_cast<double>(KeyMatrices(o)));
  const double target = 6 * (decoders * (block + static_cast<double>(QueryMatrices(o))) +
                             static_cast<double>(LossWords(o) * o.dim));
  return s * (source + encoders * AttentionFlops(o, s)) +
         t * (target + decoders * (AttentionFlops(o, (t + 1) / 2) + AttentionFlops(o, s)));
}

// RopeAngles: frequencies for each kind of scaling, in double precision; checks of its numbers.

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Weight of the interpolated frequency for pair i: 0 up to `low`, 1 from `high` on, linear between.
struct Ramp {
  double low, high;
  double At(double i) const { return std::clamp((i - low) / (high - low), 0.0, 1.0); }
};

// The (fractional) index of the pair that turns `turns` times within the original positions:
// equation 17 of Peng et al. 2023, solved for the dimension.
double PairOfTurns(const Options& o, double turns) {
  const auto positions = static_cast<double>(o.rope_original_positions);
  return static_cast<double>(o.head_dim) * std::log(positions / (turns * kTurn)) /
         (2 * std::log(o.rope_theta));
}

Ramp YarnRamp(const Options& o) {
  constexpr double kLeastWidth = 0.001;  // as in the published code; avoids division by zero
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
  struct Number {
    const char* key;
    bool given, read, needed;  // whether the deck gives it; its kind of scaling reads, needs it
  };
  const auto number = [&](const char* key, auto member, bool read, bool needed = false) {
    return Number{key, o.*member != plain.*member, read, needed};
  };
  for (const Number& each :
       {number("model.rope_factor", &Options::rope_factor, scaled, true),
        number("model.rope_original_positions", &Options::rope_original_positions, yarn || llama3,
               true),
        number("model.rope_low_frequency_factor", &Options::rope_low_frequency_factor, llama3),
        number("model.rope_high_frequency_factor", &Options::rope_high_frequency_factor, llama3),
        number("model.rope_beta_fast", &Options::rope_beta_fast, yarn),
        number("model.rope_beta_slow", &Options::rope_beta_slow, yarn),
        number("model.rope_attention_factor", &Options::rope_attention_factor, yarn)}) {
    if (each.given && !each.read) {
      throw deck.Complain(each.key, fmt::format("is not a number of {} = {}", kKey, kind),
                          "Leave it out, or choose the scaling that it belongs to.");
    }
    if (each.read && each.needed && !each.given) {
      throw deck.Complain(kKey, fmt::format("needs {}", each.key),
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
