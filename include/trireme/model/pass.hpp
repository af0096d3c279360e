// What layers are made of and work with: a pass of one entry (where to run, which parameters, whose
// memory, which samples), the scratch that all share, and the registration of parameters.
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
#include "trireme/data/batch.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/parallel/ring_attention.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

// Called with ranges of rows of a product as they are complete (kernels/linear.hpp).
using RowsDone = FunctionRef<void(const Part& rows)>;

// Scratch shared by all layers; nothing in it outlives one call of a layer.
struct Workspace {
  kernels::Matrix attention;   // panels of scores, a pair per thread; blocks that go round a ring
  kernels::Matrix reduction;   // partial sums over blocks of rows
  kernels::Matrix tile;        // scratch of the vocabulary's loss (HeadLayer::AllocateTile)
  kernels::Matrix statistics;  // fp64 [slices, 4 kTileTokens]: softmax statistics of all slices
  kernels::Matrix losses;      // fp64 [1, kTileTokens]
  kernels::Matrix slices;      // canonical, [levels rows, dim]: partial sums over slices
  kernels::Matrix norm_parts;  // canonical, [slices, 2 dim]: norms' gradients by parts of the rows
};

// A pass' use of a cache of keys and values (KeyValueCache).
struct CachedPass {
  const class KeyValueCache* cache = nullptr;  // null: nothing is kept
  kernels::CachedRows rows;
  kernels::CachedRows source_rows;                 // of an encoder-decoder: the source texts' last
  std::span<const std::int64_t> asked;             // rows of the entry whose logits are wanted
  std::int64_t first = 0;                          // row of the first one's logits
  bool continues = false;                          // attends to what is kept; thin products
  const kernels::PackedWeights* packed = nullptr;  // for thin products
};

// How long a matrix is needed. Each lifetime has its own arena in each phase of a pass, so that
// recomputation and the delayed weight gradients of zero-bubble schedules need no other code.
struct Lifetimes {
  device::Arena* weight = nullptr;    // up to the weight gradient
  device::Arena* input = nullptr;     // up to the input gradient
  device::Arena* cheap = nullptr;     // up to the weight gradient, but cheap to compute again
  device::Arena* backward = nullptr;  // from the input gradient to the weight gradient
  device::Arena* scratch = nullptr;   // up to the end of the block
};

// Source texts as a decoder's blocks read them, and the gradient that they add to.
struct SourceStream {
  std::int64_t length = 0;                    // S, padding included; 0: there are none
  const std::int32_t* key_lengths = nullptr;  // [sequences]: without padding
  kernels::Matrix memory;                     // [rows, dim]: the encoder's output on this rank
  kernels::Matrix dmemory;                    // likewise: its gradient so far
};

// State of one pass; copied freely. Pointers are null or outlive the pass.
struct Pass {
  device::Stream stream;
  const kernels::Registry* registry = nullptr;
  const parallel::TensorGroup* tensor = nullptr;
  const parallel::RingAttention* ring = nullptr;
  const std::function<void()>* progress = nullptr;  // chances for transfers; may be empty
  Lifetimes lives;
  Workspace workspace;
  const data::Entry* batch = nullptr;  // null while the memory plan is measured
  StagedBatches::Entry tokens;         // arrays of `batch`, in the stream's memory
  kernels::Matrix rope;                // rotary positions: [length, head_dim], or Empty()
  double* losses = nullptr;            // [tokens], nats, on the host; pinned for a GPU
  std::int64_t sequences = 0;          // B of this micro-batch
  std::int64_t length = 0;             // T, or what this context rank has of it
  Positions positions;                 // of the micro-batch
  CachedPass cached;                   // keys and values that are kept
  SourceStream source;                 // of a decoder that translates
  std::uint32_t seed = 0;
  bool training = false;     // dropout acts
  bool causal = true;        // false for an encoder: positions see those after them
  bool weights_too = false;  // backward: weight gradients follow each layer's input gradient

  bool Dry() const { return batch == nullptr; }  // allocations only
  std::int64_t Tokens() const { return sequences * length; }
  std::int64_t SourceTokens() const { return sequences * source.length; }
  void Progress() const {
    if (progress != nullptr && *progress) (*progress)();
  }
  // Rows of the residual stream on this rank: all tokens, or a shard of them. Dry: the most that
  // any micro-batch has.
  Part Rows() const { return Dry() ? Part{0, tensor->MostRows(Tokens())} : tensor->Rows(Tokens()); }
  // The same of the source texts.
  Part SourceRows() const {
    return Dry() ? Part{0, tensor->MostRows(SourceTokens())} : tensor->Rows(SourceTokens());
  }
  Dtype Type() const { return registry->Type(); }
  kernels::Matrix Allocate(device::Arena* arena, std::int64_t rows, std::int64_t columns) const {
    return kernels::Allocate(*arena, Type(), rows, columns);
  }
  // A matrix of sums or statistics, whose type is no narrower than fp32.
  kernels::Matrix AllocateSums(device::Arena* arena, std::int64_t rows,
                               std::int64_t columns) const {
    return kernels::Allocate(*arena, registry->SumType(), rows, columns);
  }
  // Room for the transpose of an operand of fp8 products, if the weight gradient that needs it
  // follows in the same pass of the block: nothing is kept from one pass to another.
  kernels::Fp8Transpose AllocateTranspose(std::int64_t rows, std::int64_t columns) const {
    if (!stream.fp8 || !weights_too || lives.backward == nullptr) return {};
    return {lives.backward->Allocate(rows * columns)};
  }
  kernels::Matrix Value(kernels::ParameterId id, int count = 1) const {
    return id == kernels::kNoParameter ? kernels::Matrix{} : registry->Value(id, count);
  }
  // Gradients of a bias of dy's whole width. alike: tensor ranks hold it whole.
  kernels::BiasGradients BiasGradients(kernels::ParameterId id, int count, bool alike) const {
    return {.parts = {{0, Gradient(id, count)}},
            .scratch = workspace.reduction,
            .alike = alike && tensor->Size() > 1};
  }
  // A product that is thin in a pass that continues texts.
  kernels::Linear Thin(kernels::Linear linear) const {
    linear.thin = cached.continues;
    linear.packed = cached.packed;
    return linear;
  }
  kernels::Matrix Gradient(kernels::ParameterId id, int count = 1) const {
    return id == kernels::kNoParameter ? kernels::Matrix{} : registry->Gradient(id, count);
  }
  // The dropout of a matrix whose row 0 is row `first_row` of the micro-batch.
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

// A sub-layer of a block (attention, cross-attention, feed-forward): y = f(x). The output's bias is
// left to the residual addition. x, y, dy, dx: [tokens, dim]; y and dx are overwritten (partial
// sums on tensor ranks), weight gradients are added to.
class SubLayer {
 public:
  // Matrices of one micro-batch. A kind adds its own.
  struct Saved {
    virtual ~Saved() = default;
    kernels::Matrix x;   // [tokens, dim], the caller's: input
    kernels::Matrix dy;  // [tokens, dim], the caller's: gradient of the output
  };
  virtual ~SubLayer() = default;

  // Made once per slot of activations, not per training step.
  virtual std::unique_ptr<Saved> MakeSaved() const = 0;
  virtual void Allocate(const Pass& pass, Saved& saved) const = 0;  // for Forward
  // The `cheap` matrices of Allocate alone, to be computed again by RecomputeCheap.
  virtual void AllocateCheap(const Pass& /*pass*/, Saved& /*saved*/) const {}
  virtual void AllocateBackward(const Pass& pass, Saved& saved) const = 0;
  // Calls `then` with ranges of rows of y as they are complete.
  virtual void Forward(const Pass& pass, const kernels::Matrix& x, Saved& saved,
                       const kernels::Matrix& y, RowsDone then) const = 0;
  virtual void RecomputeCheap(const Pass& /*pass*/, Saved& /*saved*/) const {}
  virtual void BackwardInput(const Pass& pass, const kernels::Matrix& dy, Saved& saved,
                             const kernels::Matrix& dx) const = 0;
  // pending: a transfer that is given chances to progress between the products.
  virtual void BackwardWeight(const Pass& pass, const Saved& saved,
                              comm::Request& pending) const = 0;
  virtual kernels::ParameterId OutputBias() const = 0;  // [dim], or kNoParameter
  // Adds the linear layers whose products Pass::Thin makes thin.
  virtual void AddLayers(const kernels::Registry& /*registry*/,
                         std::vector<kernels::Linear>& /*layers*/) const {}
};

// Initial values of a model's parameters, and the part of each that this rank holds.

// A matrix of `rows` x `columns`; `residual`: its product is added to the residual stream.
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

// Registers rows `part` of the parameter (elements of a vector); `copies` tensor ranks hold them.
inline kernels::ParameterId AddSlice(const ParameterPlace& place, kernels::Parameter parameter,
                                     Part part, int copies = 1,
                                     kernels::GradientSum sum = kernels::GradientSum::kNone) {
  const std::int64_t row = kernels::ElementCount(parameter.shape) / parameter.shape[0];
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

// Sums over slices of the contracted dimension: heads, hidden features, vocabulary. One product in
// the fast mode; canonical slices apart, joined in the fixed tree (doc/reference/numerics.md).

// Levels of scratch that SumSlices needs: log2 of the slices.
inline int SliceLevels(int slices) {
  int levels = 0;
  while ((1 << levels) < slices) ++levels;
  return levels;
}

// y = sum of this rank's slices [begin, begin + count); product(slice, out) overwrites `out` with
// one of them. y: [rows, dim], no more rows than the workspace's.
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
