// What layers work with: the pass of one entry (where to run, which parameters, memory and
// samples), the interface of sub-layers, the shared scratch, and the registration of parameters.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/parallel/ring_attention.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

// Called with ranges of a product's rows as soon as they are complete (kernels/linear.hpp).
using RowsDone = FunctionRef<void(const Part& rows)>;

// Scratch shared by all layers; its content is valid only within one call of a layer.
struct Workspace {
  kernels::Matrix attention;   // scratch of attention's kernels; blocks of the ring
  kernels::Matrix reduction;   // partial sums over blocks of rows
  kernels::Matrix tile;        // scratch of the vocabulary's loss (HeadLayer::AllocateTile)
  kernels::Matrix statistics;  // fp64 [slices, kSoftmaxStatistics tile rows]
  kernels::Matrix losses;      // fp64 [1, tile rows]
  kernels::Matrix slices;      // canonical: [levels rows, dim], partial sums over slices
  kernels::Matrix norm_parts;  // canonical: [slices, 2 dim], norms' gradients, one row per slice
  kernels::Matrix dropped_weight;  // with model.weight_dropout: [1, elements], see Pass::Weight
  // With model.sampled_softmax: [most words, dim], rows of the head's weight and their gradient.
  kernels::Matrix sampled_weight, sampled_gradient;
  kernels::SampledWords sampled_words;
};

// How a pass uses a cache of keys and values (KeyValueCache).
struct CachedPass {
  const class KeyValueCache* cache = nullptr;  // null: no cache
  kernels::CachedRows rows;
  kernels::CachedRows source_rows;                 // encoder-decoder: last source positions
  std::span<const std::int64_t> asked;             // rows whose logits are wanted
  std::int64_t first = 0;                          // number of rows wanted in earlier entries
  bool continues = false;                          // attend to the cache; products are thin
  const kernels::PackedWeights* packed = nullptr;  // for thin products
};

// Arenas by how long a matrix is needed. Each phase of a pass sets its own arenas, so that layers
// need no extra code for recomputation and the delayed weight gradients of zero-bubble schedules.
struct Lifetimes {
  device::Arena* weight = nullptr;    // up to the weight gradient
  device::Arena* input = nullptr;     // up to the input gradient
  device::Arena* cheap = nullptr;     // up to the weight gradient; cheap to recompute
  device::Arena* backward = nullptr;  // from the input gradient to the weight gradient
  device::Arena* scratch = nullptr;   // up to the end of the block
};

// The encoder's output as the decoder's blocks read it, and the gradient that they add to.
struct SourceStream {
  std::int64_t length = 0;                    // S, padding included; 0: no source texts
  const std::int32_t* key_lengths = nullptr;  // [sequences]: lengths without padding
  kernels::Matrix memory;                     // [rows, dim]: the encoder's output on this rank
  kernels::Matrix dmemory;                    // [rows, dim]: its gradient so far
};

// State of one pass; may be copied. Pointers are null or outlive the pass.
struct Pass {
  device::Stream stream;
  const kernels::Registry* registry = nullptr;
  const parallel::TensorGroup* tensor = nullptr;
  const parallel::RingAttention* ring = nullptr;
  const std::function<void()>* progress = nullptr;  // lets transfers progress; may be empty
  Lifetimes lives;
  Workspace workspace;
  const data::Entry* batch = nullptr;  // null: a dry pass, which only allocates
  StagedBatches::Entry tokens;         // arrays of `batch`, in the stream's memory
  kernels::Matrix rope;                // table of rotary positions [length, head_dim], or Empty()
  double* losses = nullptr;            // [tokens], nats, in host memory (pinned for a GPU)
  std::int64_t sequences = 0;          // B, of this entry
  std::int64_t length = 0;             // T, or this context rank's part of it
  Positions positions;                 // of each sequence, on this rank
  CachedPass cached;                   // use of a cache
  SourceStream source;                 // of an encoder-decoder
  std::uint32_t seed = 0;
  double weight_dropout = 0;
  bool training = false;     // dropout is on
  bool causal = true;        // false (encoder): positions see later ones
  bool weights_too = false;  // backward: compute weight gradients right after input gradients

  bool Dry() const { return batch == nullptr; }  // only allocates
  std::int64_t Tokens() const { return sequences * length; }
  std::int64_t SourceTokens() const { return sequences * source.length; }
  void Progress() const {
    if (progress != nullptr && *progress) (*progress)();
  }
  // Rows of the residual stream on this rank: all tokens, or a shard. Dry: the most of any rank.
  Part Rows() const { return Dry() ? Part{0, tensor->MostRows(Tokens())} : tensor->Rows(Tokens()); }
  // The same for the source texts.
  Part SourceRows() const {
    return Dry() ? Part{0, tensor->MostRows(SourceTokens())} : tensor->Rows(SourceTokens());
  }
  Dtype Type() const { return registry->Type(); }
  kernels::Matrix Allocate(device::Arena* arena, std::int64_t rows, std::int64_t columns) const {
    return kernels::Allocate(*arena, Type(), rows, columns);
  }
  // Allocates a matrix of sums or statistics, whose type is at least fp32.
  kernels::Matrix AllocateSums(device::Arena* arena, std::int64_t rows,
                               std::int64_t columns) const {
    return kernels::Allocate(*arena, registry->SumType(), rows, columns);
  }
  // Room for the transposed operand of an fp8 product, if the weight gradient that needs it follows
  // in the same pass of the block; else empty: transposes are not kept between passes.
  kernels::Fp8Transpose AllocateTranspose(std::int64_t rows, std::int64_t columns) const {
    if (!stream.fp8 || !weights_too || lives.backward == nullptr) return {};
    return {lives.backward->Allocate(rows * columns)};
  }
  kernels::Matrix Value(kernels::ParameterId id, int count = 1) const {
    return id == kernels::kNoParameter ? kernels::Matrix{} : registry->Value(id, count);
  }
  // A block's matrix, or `count` adjacent ones, as products read it: with weight dropout, what the
  // step keeps of it, in memory that the next call overwrites.
  kernels::Matrix Weight(kernels::ParameterId id, int count = 1) const {
    const kernels::Matrix value = Value(id, count);
    if (!training || weight_dropout == 0) return value;
    kernels::Matrix kept = workspace.dropped_weight.Columns(0, value.Size());
    kernels::Matrix from = value;
    from.rows = 1;
    from.columns = value.Size();
    std::int64_t at = 0;
    for (kernels::ParameterId each = id; each < id + count; ++each) {
      const auto& matrix = registry->Parameters().at(static_cast<std::size_t>(each));
      const std::int64_t size = matrix.LocalSize();
      kernels::DropElements(stream, {weight_dropout, seed, batch->step}, matrix,
                            {matrix.begin, matrix.end}, from.Columns(at, size),
                            kept.Columns(at, size));
      at += size;
    }
    kept.rows = value.rows;
    kept.columns = kept.stride = value.columns;
    return kept;
  }
  // Gradients of a bias as wide as dy. alike: every tensor rank holds the whole bias.
  kernels::BiasGradients BiasGradients(kernels::ParameterId id, int count, bool alike) const {
    return {.parts = {{0, Gradient(id, count)}},
            .scratch = workspace.reduction,
            .alike = alike && tensor->Size() > 1};
  }
  // Marks a product as thin (few rows) if the pass continues texts.
  kernels::Linear Thin(kernels::Linear linear) const {
    linear.thin = cached.continues;
    linear.packed = cached.packed;
    return linear;
  }
  kernels::Matrix Gradient(kernels::ParameterId id, int count = 1) const {
    return id == kernels::kNoParameter ? kernels::Matrix{} : registry->Gradient(id, count);
  }
  // The dropout of a matrix whose row 0 is row `first_row` of the entry.
  kernels::Dropout MakeDropout(double probability, Purpose purpose, std::uint32_t layer,
                               std::uint32_t site = 0, std::int64_t first_row = 0,
                               std::int64_t first_feature = 0) const {
    return {training ? probability : 0.0,
            seed,
            purpose,
            layer,
            site,
            tokens.ordinals,
            length,
            first_row,
            first_feature,
            positions};
  }
};

// A sub-layer of a block (attention, cross-attention, feed-forward): y = f(x), without the output's
// bias, which the residual addition adds. x, y, dy, dx: [tokens, dim]. y and dx are overwritten
// (partial sums on tensor ranks); weight gradients are accumulated.
class SubLayer {
 public:
  // Matrices kept for one entry; each kind of sub-layer adds its own.
  struct Saved {
    virtual ~Saved() = default;
    kernels::Matrix x;   // [tokens, dim], input; the caller's memory
    kernels::Matrix dy;  // [tokens, dim], gradient of the output; the caller's memory
  };
  virtual ~SubLayer() = default;

  // Called once per slot of activations, not per training step.
  virtual std::unique_ptr<Saved> MakeSaved() const = 0;
  virtual void Allocate(const Pass& pass, Saved& saved) const = 0;  // what Forward fills
  // Allocates only the `cheap` matrices, which RecomputeCheap then computes.
  virtual void AllocateCheap(const Pass& /*pass*/, Saved& /*saved*/) const {}
  virtual void AllocateBackward(const Pass& pass, Saved& saved) const = 0;
  // then: called with ranges of rows of y as soon as they are complete.
  virtual void Forward(const Pass& pass, const kernels::Matrix& x, Saved& saved,
                       const kernels::Matrix& y, RowsDone then) const = 0;
  virtual void RecomputeCheap(const Pass& /*pass*/, Saved& /*saved*/) const {}
  virtual void BackwardInput(const Pass& pass, const kernels::Matrix& dy, Saved& saved,
                             const kernels::Matrix& dx) const = 0;
  // pending: a transfer that is tested between the products, so that it progresses.
  virtual void BackwardWeight(const Pass& pass, const Saved& saved,
                              comm::Request& pending) const = 0;
  virtual kernels::ParameterId OutputBias() const = 0;  // [dim], or kNoParameter
  // Appends the linear layers that Pass::Thin makes thin.
  virtual void AddLayers(const kernels::Registry& /*registry*/,
                         std::vector<kernels::Linear>& /*layers*/) const {}
};

// Initial values of a model's parameters, and the part of each that this rank holds.

// Initialiser of a rows x columns matrix. residual: its product is added to the residual stream.
// kXavier: uniform, half-width sqrt(6 / (rows + columns)) (Glorot and Bengio 2010). kGpt2: residual
// projections are scaled by 1 / sqrt(2 blocks) (Radford et al. 2019, section 2.3).
inline kernels::Initialiser MatrixInitialiser(const Options& options, std::int64_t rows,
                                              std::int64_t columns, bool residual) {
  if (options.init == Init::kXavier) {
    return {kernels::InitialiserKind::kUniform,
            std::sqrt(6.0 / static_cast<double>(rows + columns))};
  }
  const bool scaled = residual && options.init == Init::kGpt2;
  const double divisor = scaled ? std::sqrt(2.0 * static_cast<double>(options.Blocks())) : 1.0;
  return {kernels::InitialiserKind::kNormal, options.init_deviation / divisor};
}

inline kernels::Parameter WeightOf(const Options& options, const std::string& name,
                                   std::int64_t rows, std::int64_t columns, bool residual = false,
                                   bool adjacent = false) {
  kernels::Parameter parameter;
  parameter.name = name + ".weight";
  parameter.shape = {rows, columns};
  parameter.initialiser = MatrixInitialiser(options, rows, columns, residual);
  parameter.decay = true;
  parameter.adjacent = adjacent;
  return parameter;
}

inline kernels::Parameter VectorOf(const std::string& name, std::int64_t size, double value,
                                   bool adjacent = false) {
  kernels::Parameter parameter;
  parameter.name = name;
  parameter.shape = {size};
  parameter.initialiser = {kernels::InitialiserKind::kConstant, value};
  parameter.adjacent = adjacent;
  return parameter;
}

inline kernels::Parameter BiasOf(const std::string& name, std::int64_t size,
                                 bool adjacent = false) {
  return VectorOf(name + ".bias", size, 0, adjacent);
}

// Registers rows `part` of a parameter (a vector's elements). copies: tensor ranks that hold them.
inline kernels::ParameterId AddSlice(const ParameterPlace& place, kernels::Parameter parameter,
                                     Part part, int copies = 1,
                                     kernels::GradientSum sum = kernels::GradientSum::kNone) {
  const std::int64_t row = kernels::ElementCount(parameter.shape) / parameter.shape[0];
  const std::vector<kernels::Unit>& units = place.parameters.Units();
  if (parameter.decay && !units.empty() && units.back().block) {  // a matrix of a block
    parameter.initialiser.scale /= std::sqrt(place.options.WidthFactor());
  }
  parameter.begin = place.held ? part.begin * row : 0;
  parameter.end = place.held ? part.end * row : 0;
  if (place.held) {
    parameter.copies = copies;
    parameter.copy = place.tensor.Rank() % copies;
    parameter.sum = sum;
  }
  return place.parameters.Add(std::move(parameter));
}

// Registers a parameter that every tensor rank holds whole.
inline kernels::ParameterId AddWhole(const ParameterPlace& place, kernels::Parameter parameter,
                                     kernels::GradientSum sum = kernels::GradientSum::kNone) {
  const Part whole{0, parameter.shape[0]};
  return AddSlice(place, std::move(parameter), whole, place.tensor.Size(), sum);
}

// Sums over slices of the contracted dimension (heads, hidden features, vocabulary). The fast mode
// has one slice, hence one product; canonical slices are added in the fixed tree
// (doc/reference/numerics.md).

// Levels of scratch that SumSlices needs: log2(slices), rounded up.
inline int SliceLevels(int slices) {
  int levels = 0;
  while ((1 << levels) < slices) ++levels;
  return levels;
}

// y = sum of this rank's slices [begin, begin + count). product(slice, out): overwrites `out` with
// one slice's product. y: [rows, dim], with at most as many rows as the workspace was made for.
template <typename Product>
void SumSlices(const Pass& pass, const kernels::Matrix& y, const Product& product, int begin,
               int count, int level) {
  if (count == 1) return product(begin, y);
  const std::int64_t most = pass.workspace.slices.rows / SliceLevels(pass.tensor->Slices());
  const kernels::Matrix right = pass.workspace.slices.Rows(level * most, y.rows);
  SumSlices(pass, y, product, begin, count / 2, level + 1);
  SumSlices(pass, right, product, begin + count / 2, count / 2, level + 1);
  kernels::Add(pass.stream, right, y);
}
template <typename Product>
void SumSlices(const Pass& pass, const kernels::Matrix& y, const Product& product) {
  SumSlices(pass, y, product, 0, pass.tensor->Slices(), 0);
}

}  // namespace trireme::model
