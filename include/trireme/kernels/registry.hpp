// The storages of a rank's parameters: values, gradients and masters, in one memory each, as the
// ownership cuts them. Gradient sums, the optimizer, checkpoints and the memory plan walk the
// registry and know nothing else of the model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// Ownership: the elements of its parameters that a rank owns, and their places in its storages.

// Part of the flat range that is summed, scattered or gathered in one transfer. Pieces do not
// overlap, follow each other in order, cover all parameters, and begin and end between parameters
// (or, unsharded, within a very large one).
struct Piece {
  Part range;  // flat offsets
  Part own;    // of these, the elements whose moments and update are this rank's
  // Place of element own.begin in the storages of values, gradients (after their sum) and moments;
  // elements.
  std::int64_t value = 0, gradient = 0, moment = 0;
  // Elements that each rank of the shard group owns, in order; empty: cut evenly.
  std::vector<std::int64_t> counts = {};
};

struct Ownership {
  std::vector<Piece> pieces;
  bool values_sharded = false;     // storage of values holds owned elements only
  bool gradients_sharded = false;  // storage of gradients holds owned elements only
  int gradient_levels = 1;         // copies of the gradients' storage: canonical sums
  std::int64_t values = 0, gradients = 0, moments = 0;  // elements of the storages; of one level
};

// All `size` elements are this rank's, in one piece.
Ownership OwnAll(std::int64_t size);

// The owned elements of one parameter.
struct Owned {
  Part flat;                                         // flat offsets; empty: none
  std::int64_t value = 0, gradient = 0, moment = 0;  // of element flat.begin, as in Piece
};

// StateBlock: a named piece of training state, as checkpoints walk it.

using Shape = std::vector<std::int64_t>;  // global, row-major

inline std::int64_t ElementCount(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

// The elements [begin, end) of the flattened global tensor, held contiguously at `data` on this
// rank. Each element is held by `replicas` ranks, each with another number `replica` (a writer may
// split the work among them by number and place in the tensor; the ranges of ranks that are sharded
// differently may begin and end elsewhere). A list of blocks names every tensor of the model once
// and in the same order on every rank: a rank that holds nothing of a tensor (another pipeline
// stage's, another shard's) lists it with begin == end. So the order in a file is a property of the
// model, never of the layout.
struct StateBlock {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape
  Dtype dtype = Dtype::kFloat32;
  std::int64_t begin = 0, end = 0;
  void* data = nullptr;  // (end - begin) elements; may be null when begin == end
  int replica = 0, replicas = 1;
};

// Every parameter of the model once, as a named, globally shaped block with a place in a flat
// range: what is known of the parameters before any memory exists.

enum class InitialiserKind { kConstant, kNormal, kUniform };

struct Initialiser {
  InitialiserKind kind = InitialiserKind::kConstant;
  double scale = 0;  // the constant; the standard deviation; the half-width
};

// Ranks over which a parameter's gradient is summed, besides the data group.
enum class GradientSum {
  kNone,      // none: the gradient of a rank is complete
  kTensor,    // tensor ranks, each of which saw other rows (norms under sequence parallelism)
  kKeyValue,  // tensor ranks that share a key/value head, each of which saw other query heads
  kTied,      // first and last stage: gradient as embedding, gradient as head
};

inline constexpr std::int64_t kWhole = -1;

struct Parameter {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape, row-major; layouts slice axis 0
  Initialiser initialiser;
  bool decay = false;  // takes weight decay (matrices do; norms and biases do not)
  // Gradient found in the input-gradient task, where weight gradients are a task of their own
  // (norms).
  bool early = false;
  bool adjacent = false;      // stored right after its predecessor, so that both are one matrix
  std::int64_t begin = 0;     // elements of this rank: [begin, end) of the flattened global tensor;
  std::int64_t end = kWhole;  // begin == end: held by other ranks only
  int copies = 1;  // ranks of one data replica that hold these elements; this is number `copy`
  int copy = 0;
  GradientSum sum = GradientSum::kNone;
  // Elements after it in the flat storage that stay zero, in values and gradients: products may
  // take them along. Only of a held parameter to which nothing is adjacent.
  std::int64_t spare = 0;
  std::int64_t offset = 0;  // of element `begin` in the flat range (set by Add)

  std::int64_t LocalSize() const { return end - begin; }  // elements, local
  bool Held() const { return end > begin; }               // by this rank
};

using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;

// Parameters that are used together, a layer's. Flat offsets, local.
struct Unit {
  std::string name;    // "embedding.token", "blocks.3", "head" ...
  Part range;          // empty if other ranks hold it
  bool block = false;  // one of many alike, used one after the other
};

// Filled in the order of the forward pass with every parameter of the model, on every rank.
class ParameterList {
 public:
  // Starts a unit, to which parameters added from here on belong; returns its number. The first Add
  // without one starts a unit without a name.
  int BeginUnit(const std::string& name, bool block = false);
  // Appends a parameter. A parameter held by other ranks only (begin == end) takes no storage and
  // does not change offsets or adjacency of the others. RunError for a range outside of the tensor
  // or an impossible copy.
  ParameterId Add(Parameter parameter);
  // Gives a parameter a second gradient with a flat range of its own after all parameters; after
  // the last Add. Only gradients are stored there.
  void AddSecondGradient(ParameterId id);

  const std::vector<Parameter>& Parameters() const { return parameters_; }
  const std::vector<Unit>& Units() const { return units_; }
  int UnitOf(ParameterId id) const { return unit_of_.at(static_cast<std::size_t>(id)); }
  std::int64_t Size() const { return size_; }  // flat elements of all parameters, padding included
  std::int64_t GradientSize() const { return size_ + second_size_; }  // with second gradients
  Part SecondRange() const { return {size_, size_ + second_size_}; }  // flat; empty: there is none
  ParameterId SecondOf() const { return second_; }                    // or kNoParameter
  // Early gradients have a compact storage of their own: their elements, and a parameter's first.
  std::int64_t EarlySize() const { return early_size_; }
  std::int64_t EarlyOffset(ParameterId id) const {
    return early_at_.at(static_cast<std::size_t>(id));
  }

 private:
  bool FollowsItsGroup(const Parameter& parameter) const;
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_;            // [parameters]
  std::vector<std::int64_t> early_at_;  // [parameters]: in the early storage
  ParameterId second_ = kNoParameter;
  std::int64_t size_ = 0, second_size_ = 0, early_size_ = 0;
};

class Registry {
 public:
  Registry() = default;  // of no parameters
  // Allocates values and, with `gradients`, gradients, zeroed, in the stream's memory. Gradients
  // are of SumTypeOf(dtype). If that is another type, and with gradients, the owned elements'
  // values are kept in it too: the masters, which updates move and checkpoints hold, and of which
  // the values are roundings.
  Registry(ParameterList list, Dtype dtype, Ownership ownership, bool gradients = true,
           const device::Stream& stream = {});
  // All parameters are this rank's.
  Registry(const ParameterList& list, Dtype dtype, bool gradients = true,
           const device::Stream& stream = {});

  // Sets every owned (or, unsharded, held) element from its global coordinates (rule 2): the same
  // weights in every layout. Nothing on a planned stream. after_piece (may be empty) is called
  // InitialPieces() times, each time after at most 2^24 elements.
  void Initialise(std::uint32_t seed, const std::function<void()>& after_piece = {});
  std::int64_t InitialPieces() const;

  const ParameterList& List() const { return list_; }
  const std::vector<Parameter>& Parameters() const { return list_.Parameters(); }
  const std::vector<Unit>& Units() const { return list_.Units(); }
  int UnitOf(ParameterId id) const { return list_.UnitOf(id); }
  std::int64_t Size() const { return list_.Size(); }
  std::int64_t GradientSize() const { return list_.GradientSize(); }
  Part SecondRange() const { return list_.SecondRange(); }
  ParameterId SecondOf() const { return list_.SecondOf(); }
  const Ownership& Owns() const { return ownership_; }
  Owned OwnedOf(ParameterId id) const;
  Dtype Type() const { return dtype_; }                // of values
  Dtype SumType() const { return SumTypeOf(dtype_); }  // of gradients, moments and masters

  // A parameter as a matrix: axis 0 (the local part) are rows, the other axes columns; a vector is
  // one row; one held by other ranks is Empty(), with no rows. With `count` > 1, the matrix of that
  // many adjacent parameters, rows added up. RunError if a range is not of whole rows, or if the
  // memory of a sharded unit is absent (not gathered, or not to be written).
  Matrix Value(ParameterId id, int count = 1) const;
  Matrix Gradient(ParameterId id, int count = 1) const;
  Matrix SecondGradient(ParameterId id) const;  // the gradient itself if there is no second

  // Binds a unit's whole range, from range.begin on, to memory that holds gathered values or
  // collects gradients; null: unbinds. Unsharded storages need no binding.
  void BindValues(int unit, void* base);
  void BindGradients(int unit, void* base);
  // Selects the level (copy) of unsharded storage for the unit's gradients.
  void BindGradientLevel(int unit, int level);
  // Gradients of `early` parameters of the unit go to a small storage of their own (sharded
  // gradients only), because the unit's memory is not there yet.
  void BindEarly(int unit, bool early);
  // Moves the unit's part of that storage to its bound gradients: take(from, to, count) for each
  // parameter adds and clears. Elements of SumType().
  void TakeEarly(int unit, FunctionRef<void(void* from, void* to, std::int64_t count)> take) const;

  // Clears the gradients: level 0 and the early ones; other levels are zero once added up.
  void ZeroGradients();
  // Gradients are zero: the next ZeroGradients has nothing to do.
  void GradientsCleared() { gradients_cleared_ = true; }
  // Clears them now, whatever they hold and whoever was to clear them.
  void DropGradients();

  void* Values() const { return values_.get(); }
  // [owned elements], laid out like the moments, of SumType(); null if the values serve.
  void* Masters() const { return masters_.get(); }
  void* Gradients() const { return gradients_.get(); }  // level 0
  void* GradientLevel(int level) const;                 // storage of that copy
  // Bytes that the buffers take.
  std::int64_t ValueBytes() const;     // with masters
  std::int64_t GradientBytes() const;  // all levels; with the early gradients'

  // Blocks for a checkpoint, in the stream's memory. rank of `ranks`: this rank's place in the data
  // group, of whose ranks `sharers` consecutive ones share one copy of what is sharded.
  std::vector<StateBlock> ValueBlocks(int rank, int ranks, int sharers) const;  // or masters
  // The values themselves, of Type(), beside masters too.
  std::vector<StateBlock> StoredValueBlocks(int rank, int ranks, int sharers) const;
  // Blocks of a storage laid out like the moments; names get `prefix`.
  std::vector<StateBlock> MomentBlocks(void* storage, const std::string& prefix, int rank,
                                       int ranks, int sharers) const;
  // The summed gradients, as far as they are owned.
  std::vector<StateBlock> GradientBlocks(int rank, int ranks, int sharers) const;

 private:
  // Shape of the view of `count` parameters and the flat offset of its first element.
  std::pair<Matrix, std::int64_t> ViewOf(ParameterId id, int count, Dtype dtype) const;
  // Visits the global elements of each parameter that Initialise sets, in pieces, with their place.
  void EachInitialPiece(
      FunctionRef<void(const Parameter&, Part elements, Dtype, void* values)> visit) const;
  void Initialise(const Parameter& parameter, std::uint32_t seed, Part elements, Dtype dtype,
                  void* values) const;
  std::vector<StateBlock> OwnedBlocks(void* storage, Dtype dtype, std::int64_t Owned::*place,
                                      const std::string& prefix, int rank, int ranks,
                                      int sharers) const;
  ParameterList list_;
  Dtype dtype_ = Dtype::kFloat32;
  Ownership ownership_;
  device::Stream stream_;
  std::vector<void*> value_base_, gradient_base_;  // [units]
  std::vector<int> gradient_level_;                // [units]
  std::vector<bool> early_;                        // [units]
  device::Buffer values_;                          // local, [ownership.values]
  device::Buffer masters_;                         // local, [ownership.moments] or none
  // Local, [levels, ownership.gradients]: sums over valid tokens (rule 3).
  device::Buffer gradients_;
  bool gradients_cleared_ = false;
  device::Buffer early_gradients_;  // [list.EarlySize()], sharded gradients only
};

}  // namespace trireme::kernels
