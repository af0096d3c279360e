// The plain fp64 reference: a model, its parameters, and its training.
#include <cmath>
#include <random>
#include <utility>

#include "reference.hpp"

namespace trireme::test {

// The plain reference model: a forward pass that keeps every input, and a backward pass that walks
// them in reverse.

namespace {

// Arrays that one block's forward pass leaves for its backward pass. All [tokens, ...].
struct Saved {
  Array attention_input;     // of the attention branch, before its pre-norm
  Array projected;           // input of query, key and value
  Array query, key, value;   // after rotation
  Array query_raw, key_raw;  // before the norms of heads
  Array mixed;               // attention's result, before the output projection
  Array attention_sum;       // post-norm only: what the norm after attention reads
  Array ffn_input;           // of the feed-forward branch, before its pre-norm
  Array expanded;            // input of gate and up
  Array gate, up, hidden;    // hidden: after activation and dropout
  Array ffn_sum;             // post-norm only
};

class Reference {
 public:
  Reference(const model::Options& options, const Parameters& parameters, const data::Entry& batch,
            std::uint32_t seed, bool training, bool causal)
      : options_(options), batch_(batch), seed_(seed), training_(training), causal_(causal) {
    for (const auto& [name, extents] : ParameterShapes(options)) {
      const bool matrix = extents.size() == 2;
      const std::int64_t rows = matrix ? extents[0] : 1, columns = extents.back();
      if (matrix && name.starts_with("blocks.")) number_.emplace(name, number_.size());
      weights_.emplace(name, DropWeights(name, Array(rows, columns, parameters.at(name))));
      gradients_.emplace(name, Array(rows, columns));
    }
    saved_.resize(static_cast<std::size_t>(options.layers));
  }

  ReferenceResult Run(const LossTerms& terms) {
    Array x = Embed();
    ReferenceResult result;
    for (std::int64_t layer = 0; layer < options_.layers; ++layer) {
      x = BlockForward(layer, x);
      result.blocks.push_back(x.values);
    }
    const Array normed = OverWidth(PreNorm() ? NormOf("norm", x) : x);
    const Array& head = weights_.at(HeadName());
    const Array logits = Multiply(normed, Transpose(head));
    const LossResult loss = CrossEntropy(Sampled(logits), batch_.targets, terms);

    Accumulate(HeadName(), Multiply(Transpose(loss.gradient), normed));
    Array gradient = OverWidth(Multiply(loss.gradient, head));
    if (PreNorm()) gradient = NormGradient("norm", x, gradient);
    for (std::int64_t layer = options_.layers; layer-- > 0;) {
      gradient = BlockBackward(layer, gradient);
    }
    EmbedBackward(gradient);

    result.loss_sum = loss.sum;
    result.objective = loss.objective;
    result.valid = loss.valid;
    result.logits = logits.values;
    result.relu_on = relu_on_;
    for (auto& [name, array] : gradients_) result.gradients[name] = DropWeights(name, array).values;
    return result;
  }

 private:
  // Logits of muP are divided by how many times the model is wider than its base.
  Array OverWidth(Array x) const {
    if (options_.parametrization != model::Parametrization::kMup) return x;
    for (double& value : x.values) value *= options_.mup_base / static_cast<double>(options_.dim);
    return x;
  }

  // What a sampled softmax makes of the logits: ln(1 / probability) is added to those of the words
  // that the step looks at, and other words are gone; a row's target stays as it is.
  Array Sampled(const Array& logits) const {
    constexpr double kGone = -1e4;
    if (!training_ || options_.sampled_softmax == 0) return logits;
    const std::int64_t frequent = options_.sampled_softmax / 2;
    const std::int64_t strata = options_.sampled_softmax - frequent;
    const std::int64_t others = logits.columns - frequent;
    std::vector<double> added(static_cast<std::size_t>(logits.columns), kGone);
    std::fill_n(added.begin(), frequent, 0.0);
    for (std::int64_t i = 0; i < strata; ++i) {
      const std::int64_t begin = frequent + i * others / strata;
      const std::int64_t size = frequent + (i + 1) * others / strata - begin;
      const std::uint64_t bits =
          Philox({static_cast<std::uint32_t>(i), 0, static_cast<std::uint32_t>(batch_.step), 0},
                 {seed_, static_cast<std::uint32_t>(Purpose::kSampledSoftmax)})[0];
      const std::int64_t drawn =
          begin + static_cast<std::int64_t>(bits * static_cast<std::uint64_t>(size) >> 32);
      added[static_cast<std::size_t>(drawn)] = std::log(static_cast<double>(size));
    }
    Array seen = logits;
    for (std::int64_t row = 0; row < logits.rows; ++row) {
      for (std::int64_t word = 0; word < logits.columns; ++word) {
        if (word == batch_.targets[static_cast<std::size_t>(row)]) continue;
        seen(row, word) += added[static_cast<std::size_t>(word)];
      }
    }
    return seen;
  }

  // A parameter or its gradient: of a block's matrix what the step keeps.
  Array DropWeights(const std::string& name, const Array& x) const {
    const auto found = number_.find(name);
    if (!training_ || found == number_.end()) return x;
    return DropWeight(options_.weight_dropout, seed_, batch_.step,
                      static_cast<std::uint32_t>(found->second), x);
  }

  bool PreNorm() const { return options_.norm_position == model::NormPosition::kPre; }
  std::string HeadName() const {
    return options_.tie_embeddings ? "embedding.token.weight" : "head.weight";
  }
  static std::string Block(std::int64_t layer, const std::string& rest) {
    return "blocks." + std::to_string(layer) + "." + rest;
  }
  Array Bias(const std::string& name) const {
    const auto found = weights_.find(name + ".bias");
    return found == weights_.end() ? Array() : found->second;
  }
  void Accumulate(const std::string& name, const Array& gradient) {
    const auto found = gradients_.find(name);
    if (found != gradients_.end()) found->second = Add(found->second, gradient);
  }

  Array DropOut(double probability, Purpose purpose, std::int64_t layer, std::uint32_t site,
                const Array& x) const {
    const PhiloxKey key = MakeKey(seed_, purpose, static_cast<std::uint32_t>(layer), site);
    return Dropout({training_ ? probability : 0, key}, batch_.ordinals, batch_.length, x);
  }
  // Of a branch, or of its gradient: elements, then the branch as a whole.
  Array DropBranch(std::int64_t layer, std::uint32_t site, const Array& x) const {
    const Array y = DropOut(options_.dropout, Purpose::kResidualDropout, layer, site, x);
    const double share = static_cast<double>(layer + 1) / static_cast<double>(options_.layers);
    const PhiloxKey key =
        MakeKey(seed_, Purpose::kLayerDropout, static_cast<std::uint32_t>(layer), site);
    return DropRows({training_ ? options_.layer_dropout * share : 0, key}, batch_.ordinals,
                    batch_.length, {}, y);
  }
  Array DropWords(const Array& x) const {
    return DropRows({training_ ? options_.word_dropout : 0, MakeKey(seed_, Purpose::kWordDropout)},
                    batch_.ordinals, batch_.length, batch_.inputs, x);
  }

  Array NormOf(const std::string& name, const Array& x) const {
    return NormForward(options_.norm, options_.norm_epsilon, x, weights_.at(name + ".weight"),
                       Bias(name));
  }
  Array NormGradient(const std::string& name, const Array& x, const Array& gradient) {
    const NormGradients g = NormBackward(options_.norm, options_.norm_epsilon, x,
                                         weights_.at(name + ".weight"), gradient);
    Accumulate(name + ".weight", g.weight);
    if (!Bias(name).Empty()) Accumulate(name + ".bias", g.bias);
    return g.input;
  }

  // y = x W^T + b
  Array OutputMajor(const std::string& name, const Array& x) const {
    return AddRow(Multiply(x, Transpose(weights_.at(name + ".weight"))), Bias(name));
  }
  Array OutputMajorGradient(const std::string& name, const Array& x, const Array& gradient) {
    Accumulate(name + ".weight", Multiply(Transpose(gradient), x));
    Accumulate(name + ".bias", SumRows(gradient));
    return Multiply(gradient, weights_.at(name + ".weight"));
  }
  // y = x W + b
  Array InputMajor(const std::string& name, const Array& x) const {
    return AddRow(Multiply(x, weights_.at(name + ".weight")), Bias(name));
  }
  Array InputMajorGradient(const std::string& name, const Array& x, const Array& gradient) {
    Accumulate(name + ".weight", Multiply(Transpose(x), gradient));
    Accumulate(name + ".bias", SumRows(gradient));
    return Multiply(gradient, Transpose(weights_.at(name + ".weight")));
  }

  double EmbeddingScale() const {
    return options_.scale_embedding ? std::sqrt(static_cast<double>(options_.dim)) : 1.0;
  }
  // Of a row in its document.
  std::int64_t PositionOf(std::int64_t row) const {
    const std::int64_t position = row % batch_.length;
    return batch_.begins.empty() ? position
                                 : position - batch_.begins.at(static_cast<std::size_t>(row));
  }
  double PositionValue(std::int64_t t, std::int64_t feature) const {
    if (options_.position == model::Position::kRope) return 0;
    if (options_.position == model::Position::kLearned) {
      return weights_.at("embedding.position.weight")(t, feature);
    }
    const double pair = static_cast<double>(feature - feature % 2);
    const double angle =
        static_cast<double>(t) / std::pow(10000.0, pair / static_cast<double>(options_.dim));
    return feature % 2 == 0 ? std::sin(angle) : std::cos(angle);
  }
  Array Embed() const {
    const Array& table = weights_.at("embedding.token.weight");
    Array x(batch_.sequences * batch_.length, options_.dim);
    for (std::int64_t i = 0; i < x.rows; ++i) {
      const std::int64_t token = batch_.inputs.at(static_cast<std::size_t>(i));
      for (std::int64_t j = 0; j < x.columns; ++j) {
        x(i, j) = table(token, j) * EmbeddingScale();
      }
    }
    x = DropWords(x);
    for (std::int64_t i = 0; i < x.rows; ++i) {
      for (std::int64_t j = 0; j < x.columns; ++j) x(i, j) += PositionValue(PositionOf(i), j);
    }
    return DropOut(options_.dropout, Purpose::kEmbeddingDropout, 0, 0, x);
  }
  void EmbedBackward(const Array& output_gradient) {
    const Array gradient =
        DropOut(options_.dropout, Purpose::kEmbeddingDropout, 0, 0, output_gradient);
    const Array of_words = DropWords(gradient);
    Array& table = gradients_.at("embedding.token.weight");
    const bool learned = options_.position == model::Position::kLearned;
    for (std::int64_t i = 0; i < gradient.rows; ++i) {
      const std::int64_t token = batch_.inputs.at(static_cast<std::size_t>(i));
      for (std::int64_t j = 0; j < gradient.columns; ++j) {
        table(token, j) += of_words(i, j) * EmbeddingScale();
        if (learned) {
          gradients_.at("embedding.position.weight")(PositionOf(i), j) += gradient(i, j);
        }
      }
    }
  }

  // Pre-norm: x + branch(norm(x)). Post-norm: norm(x + branch(x)).
  Array BlockForward(std::int64_t layer, const Array& x) {
    Saved& saved = saved_[static_cast<std::size_t>(layer)];
    const std::string attention_norm = Block(layer, "attention.norm");
    const std::string ffn_norm = Block(layer, "ffn.norm");
    saved.attention_input = x;
    Array sum = Add(x, AttentionBranch(layer, PreNorm() ? NormOf(attention_norm, x) : x));
    saved.attention_sum = sum;
    saved.ffn_input = PreNorm() ? sum : NormOf(attention_norm, sum);
    const Array& y = saved.ffn_input;
    saved.ffn_sum = Add(y, FfnBranch(layer, PreNorm() ? NormOf(ffn_norm, y) : y));
    return PreNorm() ? saved.ffn_sum : NormOf(ffn_norm, saved.ffn_sum);
  }
  Array BlockBackward(std::int64_t layer, const Array& output_gradient) {
    const Saved& saved = saved_[static_cast<std::size_t>(layer)];
    const std::string attention_norm = Block(layer, "attention.norm");
    const std::string ffn_norm = Block(layer, "ffn.norm");
    if (PreNorm()) {
      const Array through_ffn =
          NormGradient(ffn_norm, saved.ffn_input, FfnGradient(layer, output_gradient));
      const Array middle = Add(output_gradient, through_ffn);
      return Add(middle, NormGradient(attention_norm, saved.attention_input,
                                      AttentionGradient(layer, middle)));
    }
    const Array ffn_sum = NormGradient(ffn_norm, saved.ffn_sum, output_gradient);
    const Array middle = Add(ffn_sum, FfnGradient(layer, ffn_sum));
    const Array attention_sum = NormGradient(attention_norm, saved.attention_sum, middle);
    return Add(attention_sum, AttentionGradient(layer, attention_sum));
  }

  AttentionShape Shape(std::int64_t layer) const {
    AttentionShape shape{options_.heads,
                         options_.kv_heads,
                         options_.head_dim,
                         batch_.length,
                         causal_,
                         training_ ? options_.attention_dropout : 0,
                         seed_,
                         layer,
                         batch_.ordinals,
                         batch_.begins};
    if (options_.mup_base_head_dim > 0) {
      shape.divisor =
          static_cast<double>(options_.head_dim) / std::sqrt(options_.mup_base_head_dim);
    }
    return shape;
  }
  Array Rotated(const Array& x, double direction) const {
    if (options_.position != model::Position::kRope) return x;
    return Rotate(x, options_.head_dim, batch_.length, TurnsOf(options_), direction, batch_.begins);
  }
  // A head of a token a row: the storage is that of [tokens, heads head_dim].
  Array Heads(const Array& x) const {
    return {x.rows * x.columns / options_.head_dim, options_.head_dim, x.values};
  }
  Array HeadNorm(const std::string& name, const Array& x) const {
    if (!options_.qk_norm) return x;
    const Array y = NormForward(model::Norm::kRmsNorm, options_.norm_epsilon, Heads(x),
                                weights_.at(name + ".weight"), {});
    return {x.rows, x.columns, y.values};
  }
  Array HeadNormGradient(const std::string& name, const Array& x, const Array& gradient) {
    if (!options_.qk_norm) return gradient;
    const NormGradients g = NormBackward(model::Norm::kRmsNorm, options_.norm_epsilon, Heads(x),
                                         weights_.at(name + ".weight"), Heads(gradient));
    Accumulate(name + ".weight", g.weight);
    return {x.rows, x.columns, g.input.values};
  }
  Array AttentionBranch(std::int64_t layer, const Array& x) {
    Saved& saved = saved_[static_cast<std::size_t>(layer)];
    saved.projected = x;
    saved.query_raw = OutputMajor(Block(layer, "attention.query"), x);
    saved.key_raw = OutputMajor(Block(layer, "attention.key"), x);
    saved.query = Rotated(HeadNorm(Block(layer, "attention.query_norm"), saved.query_raw), 1);
    saved.key = Rotated(HeadNorm(Block(layer, "attention.key_norm"), saved.key_raw), 1);
    saved.value = OutputMajor(Block(layer, "attention.value"), x);
    saved.mixed = AttentionForward(Shape(layer), saved.query, saved.key, saved.value);
    const Array y = InputMajor(Block(layer, "attention.output"), saved.mixed);
    return DropBranch(layer, 0, y);
  }
  Array AttentionGradient(std::int64_t layer, const Array& output_gradient) {
    const Saved& saved = saved_[static_cast<std::size_t>(layer)];
    const Array dropped = DropBranch(layer, 0, output_gradient);
    const Array mixed = InputMajorGradient(Block(layer, "attention.output"), saved.mixed, dropped);
    const AttentionGradients g =
        AttentionBackward(Shape(layer), saved.query, saved.key, saved.value, mixed);
    const Array& x = saved.projected;
    const Array query =
        OutputMajorGradient(Block(layer, "attention.query"), x,
                            HeadNormGradient(Block(layer, "attention.query_norm"), saved.query_raw,
                                             Rotated(g.query, -1)));
    const Array key = OutputMajorGradient(
        Block(layer, "attention.key"), x,
        HeadNormGradient(Block(layer, "attention.key_norm"), saved.key_raw, Rotated(g.key, -1)));
    const Array value = OutputMajorGradient(Block(layer, "attention.value"), x, g.value);
    return Add(query, Add(key, value));
  }

  Array FfnBranch(std::int64_t layer, const Array& x) {
    Saved& saved = saved_[static_cast<std::size_t>(layer)];
    saved.expanded = x;
    saved.up = OutputMajor(Block(layer, "ffn.up"), x);
    Array activated = saved.up;
    switch (options_.activation) {
      case model::Activation::kRelu:
        for (double& value : activated.values) {
          relu_on_.push_back(value > 0);
          value = Relu(value);
        }
        break;
      case model::Activation::kGelu:
        for (double& value : activated.values) value = Gelu(value);
        break;
      case model::Activation::kSwiglu:
        saved.gate = OutputMajor(Block(layer, "ffn.gate"), x);
        for (std::size_t i = 0; i < activated.values.size(); ++i) {
          activated.values[i] *= Silu(saved.gate.values[i]);
        }
        break;
    }
    saved.hidden = DropOut(options_.ffn_dropout, Purpose::kFfnDropout, layer, 0, activated);
    const Array y = InputMajor(Block(layer, "ffn.down"), saved.hidden);
    return DropBranch(layer, 1, y);
  }
  Array FfnGradient(std::int64_t layer, const Array& output_gradient) {
    const Saved& saved = saved_[static_cast<std::size_t>(layer)];
    const Array dropped = DropBranch(layer, 1, output_gradient);
    const Array hidden = InputMajorGradient(Block(layer, "ffn.down"), saved.hidden, dropped);
    const Array activated = DropOut(options_.ffn_dropout, Purpose::kFfnDropout, layer, 0, hidden);
    Array up = activated, gate = activated;
    const bool swiglu = options_.activation == model::Activation::kSwiglu;
    for (std::size_t i = 0; i < up.values.size(); ++i) {
      if (swiglu) {
        up.values[i] *= Silu(saved.gate.values[i]);
        gate.values[i] *= saved.up.values[i] * SiluDerivative(saved.gate.values[i]);
      } else if (options_.activation == model::Activation::kGelu) {
        up.values[i] *= GeluDerivative(saved.up.values[i]);
      } else {
        up.values[i] *= ReluDerivative(saved.up.values[i]);
      }
    }
    const Array x = OutputMajorGradient(Block(layer, "ffn.up"), saved.expanded, up);
    if (!swiglu) return x;
    return Add(x, OutputMajorGradient(Block(layer, "ffn.gate"), saved.expanded, gate));
  }

  const model::Options& options_;
  const data::Entry& batch_;
  std::uint32_t seed_;
  bool training_, causal_;
  std::map<std::string, std::size_t> number_;  // of the blocks' matrices
  std::map<std::string, Array> weights_, gradients_;
  std::vector<Saved> saved_;   // [layers]
  std::vector<bool> relu_on_;  // in the order of the forward pass
};

}  // namespace

ReferenceResult RunReference(const model::Options& options, const Parameters& parameters,
                             const data::Entry& batch, std::uint32_t seed, const LossTerms& terms,
                             bool training, bool causal) {
  return Reference(options, parameters, batch, seed, training, causal).Run(terms);
}

// Names, shapes and random values of parameters and batches for the plain reference.

std::vector<std::pair<std::string, std::vector<std::int64_t>>> ParameterShapes(
    const model::Options& options) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
  const std::int64_t dim = options.dim, ffn = options.ffn;
  const std::int64_t query = options.heads * options.head_dim;
  const std::int64_t kv = options.kv_heads * options.head_dim;
  const auto norm = [&](const std::string& name) {
    shapes.push_back({name + ".weight", {dim}});
    if (options.bias && options.norm == model::Norm::kLayerNorm) {
      shapes.push_back({name + ".bias", {dim}});
    }
  };
  const auto linear = [&](const std::string& name, std::int64_t rows, std::int64_t outputs,
                          bool bias) {
    shapes.push_back({name + ".weight", {rows, dim}});
    if (bias) shapes.push_back({name + ".bias", {outputs}});
  };
  shapes.push_back({"embedding.token.weight", {options.vocabulary, dim}});
  if (options.position == model::Position::kLearned) {
    shapes.push_back({"embedding.position.weight", {options.max_positions, dim}});
  }
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer) + ".";
    norm(block + "attention.norm");
    linear(block + "attention.query", query, query, options.qkv_bias);
    linear(block + "attention.key", kv, kv, options.qkv_bias);
    linear(block + "attention.value", kv, kv, options.qkv_bias);
    if (options.qk_norm) {
      shapes.push_back({block + "attention.query_norm.weight", {options.head_dim}});
      shapes.push_back({block + "attention.key_norm.weight", {options.head_dim}});
    }
    linear(block + "attention.output", query, dim, options.bias);
    norm(block + "ffn.norm");
    if (options.activation == model::Activation::kSwiglu) {
      linear(block + "ffn.gate", ffn, ffn, options.bias);
    }
    linear(block + "ffn.up", ffn, ffn, options.bias);
    linear(block + "ffn.down", ffn, dim, options.bias);
  }
  if (options.norm_position == model::NormPosition::kPre) norm("norm");
  if (!options.tie_embeddings) shapes.push_back({"head.weight", {options.vocabulary, dim}});
  return shapes;
}

Parameters RandomParameters(const model::Options& options, std::uint32_t seed, double scale) {
  std::mt19937_64 engine(seed);
  Parameters parameters;
  for (const auto& [name, extents] : ParameterShapes(options)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count *= extent;
    const bool norm_weight = name.ends_with("norm.weight");
    std::vector<double>& values = parameters[name];
    for (std::int64_t i = 0; i < count; ++i) {
      const double uniform = static_cast<double>(engine() >> 11) * 0x1p-52 - 1;  // [-1, 1)
      values.push_back(norm_weight ? 1 + 0.3 * uniform : scale * uniform);
    }
  }
  return parameters;
}

data::Entry RandomBatch(std::int64_t vocabulary, std::int64_t sequences, std::int64_t length,
                        std::int64_t masked, std::uint32_t seed) {
  std::mt19937_64 engine(seed);
  data::Entry batch;
  batch.sequences = sequences;
  batch.length = length;
  const std::int64_t tokens = sequences * length;
  const auto draw = [&] {
    return static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(vocabulary));
  };
  for (std::int64_t i = 0; i < tokens; ++i) {
    const bool real = i < tokens - masked;
    const std::int32_t input = draw(), target = draw();
    batch.inputs.push_back(real ? input : 0);
    batch.targets.push_back(real ? target : data::kMasked);
  }
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::uint64_t ordinal = 5 + 1001 * static_cast<std::uint64_t>(b);
    batch.ordinals.push_back(b + 1 < sequences ? ordinal : ordinal + (std::uint64_t{3} << 32));
  }
  batch.valid = tokens - masked;
  batch.step = 7;
  return batch;
}

// ReferenceTraining: a step of AdamW on the reference model, tensor by tensor.

ReferenceTraining::ReferenceTraining(const model::Options& options,
                                     const train::OptimizerOptions& optimizer, Parameters start,
                                     std::uint32_t seed)
    : options_(options), optimizer_(optimizer), seed_(seed), values_(std::move(start)) {}

double ReferenceTraining::Step(const data::Entry& batch, double learning_rate) {
  ++step_;
  const ReferenceResult result = RunReference(
      options_, values_, batch, seed_, {optimizer_.label_smoothing, optimizer_.z_loss}, true);
  const auto count = static_cast<double>(result.valid);
  double squares = 0;  // of the mean's gradient
  for (const auto& [name, gradient] : result.gradients) {
    for (const double g : gradient) squares += g / count * (g / count);
  }
  const double norm = std::sqrt(squares);
  const double clip = norm > optimizer_.clip_norm ? optimizer_.clip_norm / norm : 1;
  for (const auto& [name, gradient] : result.gradients) {
    Update(name, gradient, clip / count, learning_rate);
  }
  return result.loss_sum / count;
}

// Loshchilov and Hutter 2019, algorithm 2; norms and biases do not decay.
void ReferenceTraining::Update(const std::string& name, const std::vector<double>& gradient,
                               double factor, double rate) {
  const double beta1 = optimizer_.beta1, beta2 = optimizer_.beta2;
  const bool vector = name.ends_with(".bias") || name.ends_with("norm.weight");
  const double decay = vector ? 0 : optimizer_.weight_decay;
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(step_));
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(step_));
  std::vector<double>& values = values_.at(name);
  std::vector<double>&first = first_[name], &second = second_[name];
  first.resize(values.size());
  second.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double g = gradient[i] * factor;
    first[i] = beta1 * first[i] + (1 - beta1) * g;
    second[i] = beta2 * second[i] + (1 - beta2) * g * g;
    const double step =
        first[i] / correction1 / (std::sqrt(second[i] / correction2) + optimizer_.epsilon);
    values[i] -= rate * (step + decay * values[i]);
  }
}

}  // namespace trireme::test
