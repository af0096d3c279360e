// The memory of a rank's parameters: one storage each for values, gradients and masters, which the
// ownership divides among ranks. Gradient sums, the optimizer, checkpoints and the memory plan use
// the registry and know nothing else of the model.
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

// Ownership: which parameter elements a rank owns, and where they lie in its storages.

// A part of the flat range that is reduced, scattered or gathered in one transfer. Pieces do not
// overlap, follow each other in order and cover all parameters. They begin and end between
// parameters (unsharded: possibly within a very large one).
struct Piece {
  Part range;  // flat offsets
  Part own;    // the elements in `range` whose moments and update this rank owns
  // Places of element own.begin in the storages of values, (summed) gradients and moments.
  std::int64_t value = 0, gradient = 0, moment = 0;
  // Number of elements that each rank of the shard group owns, in rank order; empty: equal parts.
  std::vector<std::int64_t> counts = {};
};

struct Ownership {
  std::vector<Piece> pieces;
  bool values_sharded = false;     // the storage of values holds owned elements only
  bool gradients_sharded = false;  // the storage of gradients holds owned elements only
  int gradient_levels = 1;         // copies of the gradients' storage, for canonical sums
  // Elements of each storage; gradients: of one level.
  std::int64_t values = 0, gradients = 0, moments = 0;
};

// Ownership of all `size` elements by this rank, in one piece.
Ownership OwnAll(std::int64_t size);

// The elements of one parameter that this rank owns.
struct Owned {
  Part flat;                                         // flat offsets; empty: none
  std::int64_t value = 0, gradient = 0, moment = 0;  // places of element flat.begin, as in Piece
};

// StateBlock: a named piece of training state, as checkpoints walk it.

using Shape = std::vector<std::int64_t>;  // global, row-major

inline std::int64_t ElementCount(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

// The elements [begin, end) of the flattened global tensor, contiguous at `data` on this rank.
// `replicas` ranks hold each element, numbered by `replica`; writers may divide the work among them
// by element and replica number (other ranks' ranges may begin and end elsewhere). Every rank lists
// every tensor of the model once, in the same order; for a tensor of which it holds nothing
// (another pipeline stage's or another shard's) begin == end. So the order in a file depends on the
// model, never on the layout.
struct StateBlock {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape
  Dtype dtype = Dtype::kFloat32;
  std::int64_t begin = 0, end = 0;
  void* data = nullptr;  // (end - begin) elements; may be null when begin == end
  int replica = 0, replicas = 1;
};

// Every parameter of the model, listed once as a named, globally shaped block with a place in a
// flat range: what is known of parameters before any memory is allocated.

enum class InitialiserKind { kConstant, kNormal, kUniform };

struct Initialiser {
  InitialiserKind kind = InitialiserKind::kConstant;
  double scale = 0;  // constant: value; normal: deviation; uniform: half-width
};

// Which ranks sum a parameter's gradient, besides the data group.
enum class GradientSum {
  kNone,      // none: each rank's gradient is already complete
  kTensor,    // all tensor ranks: each saw other rows (norms under sequence parallelism)
  kKeyValue,  // the tensor ranks that share a key/value head: each saw other query heads
  kTied,      // first and last stage: one has the gradient as embedding, the other as head
};

inline constexpr std::int64_t kWhole = -1;

struct Parameter {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape, row-major; layouts slice axis 0
  Initialiser initialiser;
  bool decay = false;  // whether weight decay applies (matrices: yes; norms and biases: no)
  // Whether its gradient is computed in the input-gradient task, if weight gradients are a task of
  // their own (true for norms).
  bool early = false;
  bool adjacent = false;      // stored right after the previous parameter, as one matrix
  std::int64_t begin = 0;     // this rank's elements: [begin, end) of the flattened global tensor;
  std::int64_t end = kWhole;  // begin == end: only other ranks hold it
  int copies = 1;  // ranks of a data replica that hold these elements; this one is number `copy`
  int copy = 0;
  GradientSum sum = GradientSum::kNone;
  // Elements stored after the parameter that stay zero in values and gradients, so that products
  // may include them. Only for a held parameter with nothing adjacent to it.
  std::int64_t spare = 0;
  std::int64_t offset = 0;   // place of element `begin` in the flat range (set by Add)
  std::int32_t number = -1;  // of a block's matrix, in the model's order (set by Add); -1: none

  std::int64_t LocalSize() const { return end - begin; }  // elements, local
  bool Held() const { return end > begin; }               // by this rank
};

using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;

// Parameters that are used together, such as a layer's. Offsets are flat and local.
struct Unit {
  std::string name;    // "embedding.token", "blocks.3", "head" ...
  Part range;          // empty if other ranks hold it
  bool block = false;  // one of many equal blocks that run one after the other
};

// Every rank fills it with all parameters of the model, in the order of the forward pass.
class ParameterList {
 public:
  // Starts a unit and returns its number; parameters added from now on belong to it. If Add is
  // called first, it starts a unit without a name.
  int BeginUnit(const std::string& name, bool block = false);
  // Appends a parameter. One that only other ranks hold (begin == end) takes no storage and does
  // not change the offsets or adjacency of the others. RunError if the range is outside the tensor
  // or the copy number is impossible.
  ParameterId Add(Parameter parameter);
  // Gives a parameter a second gradient, in a flat range after all parameters; call it after the
  // last Add. Only gradients are stored there.
  void AddSecondGradient(ParameterId id);

  const std::vector<Parameter>& Parameters() const { return parameters_; }
  const std::vector<Unit>& Units() const { return units_; }
  int UnitOf(ParameterId id) const { return unit_of_.at(static_cast<std::size_t>(id)); }
  std::int64_t Size() const { return size_; }  // flat elements of all parameters, padding included
  std::int64_t GradientSize() const { return size_ + second_size_; }  // with second gradients
  Part SecondRange() const { return {size_, size_ + second_size_}; }  // of second gradients, if any
  ParameterId SecondOf() const { return second_; }  // the parameter that has one, or kNoParameter
  // Early gradients have a compact storage: its number of elements, and a parameter's first.
  std::int64_t EarlySize() const { return early_size_; }
  std::int64_t EarlyOffset(ParameterId id) const {
    return early_at_.at(static_cast<std::size_t>(id));
  }

 private:
  bool FollowsItsGroup(const Parameter& parameter) const;
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_;            // [parameters]
  std::vector<std::int64_t> early_at_;  // [parameters]: place in the early storage
  ParameterId second_ = kNoParameter;
  std::int64_t size_ = 0, second_size_ = 0, early_size_ = 0;
  std::int32_t matrices_ = 0;  // of blocks
};

// DropConnect (Wan et al. 2013): the elements of the blocks' matrices that a training step drops.
struct WeightDropout {
  double probability = 0;  // 0: none
  std::uint32_t seed = 0;
  std::int64_t step = 0;  // from 0
};
// to = the elements [elements.begin, elements.end) of a flattened matrix after dropout; to may be
// from. Also serves their gradients. from, to: [1, elements].
void DropElements(const device::Stream& stream, const WeightDropout& by, const Parameter& matrix,
                  Part elements, const Matrix& from, const Matrix& to);

class Registry {
 public:
  Registry() = default;  // no parameters
  // Allocates values and (with `gradients`) gradients in the stream's memory, zeroed. Gradients
  // have the type SumTypeOf(dtype). If that differs from dtype, and with `gradients`, owned
  // elements also have masters in it: updates change the masters, checkpoints store them, and the
  // values are the masters rounded.
  Registry(ParameterList list, Dtype dtype, Ownership ownership, bool gradients = true,
           const device::Stream& stream = {});
  // The same, with all parameters owned by this rank.
  Registry(const ParameterList& list, Dtype dtype, bool gradients = true,
           const device::Stream& stream = {});

  // Sets every owned (unsharded: every held) element from its global coordinates (rule 2), so that
  // all layouts get the same weights. Does nothing on a planned stream. after_piece (may be empty)
  // is called after every piece of at most 2^24 elements, InitialPieces() times in all.
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

  // A parameter as a matrix: rows are axis 0 (the local part), columns all other axes; a vector is
  // one row. If only other ranks hold it: Empty(), with 0 rows. With `count` > 1: the matrix of
  // that many adjacent parameters, one below the other. RunError if a range is not of whole rows,
  // or if a sharded unit has no memory bound (not gathered, or not to be written).
  Matrix Value(ParameterId id, int count = 1) const;
  Matrix Gradient(ParameterId id, int count = 1) const;
  Matrix SecondGradient(ParameterId id) const;  // the (first) gradient if there is no second one

  // Binds a sharded unit to memory for its whole range, starting at range.begin: for gathered
  // values, or for gradients. null: unbinds. Unsharded storages need no binding.
  void BindValues(int unit, void* base);
  void BindGradients(int unit, void* base);
  // Chooses to which level (copy) of unsharded storage the unit's gradients go.
  void BindGradientLevel(int unit, int level);
  // While `early` is set, gradients of the unit's `early` parameters go to a small storage of their
  // own, because the unit's memory is not there yet. Sharded gradients only.
  void BindEarly(int unit, bool early);
  // Moves these early gradients to the unit's bound gradients: calls take(from, to, count) for each
  // parameter, which must add and clear `from`. Elements are of SumType().
  void TakeEarly(int unit, FunctionRef<void(void* from, void* to, std::int64_t count)> take) const;

  // Clears the gradients: level 0 and the early ones. Other levels are zero once they are added up.
  void ZeroGradients();
  // Says that the gradients are zero already: the next ZeroGradients does nothing.
  void GradientsCleared() { gradients_cleared_ = true; }
  // Clears the gradients at once, even if an update was going to clear them.
  void DropGradients();

  void* Values() const { return values_.get(); }
  // [owned elements] of SumType(), laid out like the moments; null if there are no masters.
  void* Masters() const { return masters_.get(); }
  void* Gradients() const { return gradients_.get(); }  // level 0
  void* GradientLevel(int level) const;                 // storage of that level
  // Bytes of the storages.
  std::int64_t ValueBytes() const;     // with masters
  std::int64_t GradientBytes() const;  // all levels and the early gradients

  // Blocks for a checkpoint, in the stream's memory: of the masters if there are any, else of the
  // values. This rank is number `rank` of the `ranks` ranks of the data group, in which `sharers`
  // consecutive ranks together hold one copy of sharded state.
  std::vector<StateBlock> ValueBlocks(int rank, int ranks, int sharers) const;
  // The same for the values themselves (Type()), even if there are masters.
  std::vector<StateBlock> StoredValueBlocks(int rank, int ranks, int sharers) const;
  // Blocks of a storage that is laid out like the moments; each name gets `prefix`.
  std::vector<StateBlock> MomentBlocks(void* storage, const std::string& prefix, int rank,
                                       int ranks, int sharers) const;
  // Blocks of the summed gradients: the owned elements.
  std::vector<StateBlock> GradientBlocks(int rank, int ranks, int sharers) const;

 private:
  // The view of `count` parameters (without data) and the flat offset of its first element.
  std::pair<Matrix, std::int64_t> ViewOf(ParameterId id, int count, Dtype dtype) const;
  // Calls visit for each piece that Initialise sets of a parameter, with the piece's address.
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
  device::Buffer masters_;                         // local, [ownership.moments], or null
  // Local, [levels, ownership.gradients]: sums over valid tokens (rule 3).
  device::Buffer gradients_;
  bool gradients_cleared_ = false;
  device::Buffer early_gradients_;  // [list.EarlySize()], sharded gradients only
};

}  // namespace trireme::kernels
