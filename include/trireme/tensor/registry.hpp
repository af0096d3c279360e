// The parameter registry: every parameter once, as a named, globally shaped block. Initialisation,
// gradient sums, the optimizer, checkpoints and the memory plan walk it and know nothing else of
// the model. A rank's parameters have flat offsets in the order of registration; which of these
// elements it owns, and where values, gradients and moments lie in its storages, says an Ownership.
#ifndef TRIREME_TENSOR_REGISTRY_HPP_
#define TRIREME_TENSOR_REGISTRY_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tensor/matrix.hpp"
#include "trireme/tensor/state_block.hpp"

namespace trireme::tensor {

enum class InitialiserKind { kConstant, kNormal, kUniform };

struct Initialiser {
  InitialiserKind kind = InitialiserKind::kConstant;
  double scale = 0;  // the constant; the standard deviation; the half-width
};

// Over which ranks, besides the data group, a parameter's gradient has to be summed.
enum class GradientSum {
  kNone,      // this rank's is complete
  kTensor,    // each tensor rank saw other rows (norms under sequence parallelism)
  kKeyValue,  // tensor ranks that share a key/value head: each saw other query heads
  kTied,      // first and last stage: as embedding, as head
};

inline constexpr std::int64_t kWhole = -1;

struct Parameter {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape, row-major, axis 0 is the one that layouts slice
  Initialiser initialiser;
  bool decay = false;  // takes weight decay (matrices do; norms and biases do not)
  // Where weight gradients are a task of their own: found in the input-gradient task already
  // (norms).
  bool early = false;
  bool adjacent = false;      // stored right behind its predecessor, so that both are one matrix
  std::int64_t begin = 0;     // this rank's elements [begin, end) of the flattened global tensor;
  std::int64_t end = kWhole;  // begin == end: held by other ranks only
  int copies = 1;  // ranks of one data replica that hold these elements; this is number `copy`
  int copy = 0;
  GradientSum sum = GradientSum::kNone;
  // Elements behind it in the flat storage that stay zero, in values and gradients: products may
  // take them along. Of one that is held; nothing is adjacent to it.
  std::int64_t spare = 0;
  std::int64_t offset = 0;  // of element `begin` in the flat storage (set by Add)

  std::int64_t LocalSize() const { return end - begin; }  // elements, local
  bool Held() const { return end > begin; }               // by this rank
};

using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;

// A unit: parameters that are used together, a layer's. Flat offsets, local.
struct Unit {
  std::string name;    // "embedding.token", "blocks.3", "head" ...
  Part range;          // empty where other ranks hold it
  bool block = false;  // one of many alike, used one after the other
};

// Part of the flat range that is summed, scattered or gathered in one transfer. Pieces do not
// overlap, follow each other in order, cover all parameters, and begin and end between parameters
// (or, unsharded, within a very large one).
struct Piece {
  Part range;  // flat offsets
  Part own;    // of these, the elements whose moments and update are this rank's
  // Where element own.begin lies in the storages of values, gradients (after their sum) and
  // moments; elements.
  std::int64_t value = 0, gradient = 0, moment = 0;
};

// What of a rank's parameters it owns, and how much it stores.
struct Ownership {
  std::vector<Piece> pieces;
  bool values_sharded = false;     // storage of values holds owned elements only
  bool gradients_sharded = false;  // storage of gradients holds owned elements only
  int gradient_levels = 1;         // copies of the gradients' storage: canonical sums
  std::int64_t values = 0, gradients = 0, moments = 0;  // elements of the storages, a level
};
// Everything is this rank's, in one piece.
Ownership OwnAll(std::int64_t size);

// The owned elements of one parameter.
struct Owned {
  Part flat;                                         // flat offsets; empty: none
  std::int64_t value = 0, gradient = 0, moment = 0;  // of element flat.begin, as in Piece
};

class Registry {
 public:
  // Parameters added from here on belong to a new unit, whose number it returns. The first Add
  // without one begins one of no name.
  int BeginUnit(const std::string& name, bool block = false);
  // Registered in the order of the forward pass, every parameter of the model on every rank, those
  // that other ranks hold with begin == end: these take no storage, and leave offsets and adjacency
  // of the others as if they were not there. Throws RunError for a range outside of the tensor or a
  // copy that is none.
  ParameterId Add(Parameter parameter);
  // A second gradient of a parameter, with a flat range of its own behind all parameters: after the
  // last Add. Nothing but gradients is stored there.
  void AddSecondGradient(ParameterId id);

  // Where the storages lie; before the first of the next three. The default is the CPU.
  void UseStream(const device::Stream& stream) { stream_ = stream; }
  // Allocates values and, where wanted, gradients, zeroed. Once, after the last Add. Without an
  // ownership everything is this rank's. Gradients are of SumTypeOf(dtype); where that is another
  // type, and with gradients, the owned elements' values are kept in it too: the masters, which
  // updates move and checkpoints hold, and of which the values are roundings.
  void Allocate(Dtype dtype, bool gradients = true);
  void Allocate(Dtype dtype, bool gradients, Ownership ownership);
  // The same without memory: for plans. Allocate may follow.
  void Plan(Dtype dtype, Ownership ownership);
  // Every owned (or, unsharded, held) element from its global coordinates (rule 2): the same
  // weights in every layout.
  void Initialise(std::uint32_t seed);

  // A parameter as a matrix: axis 0 (the local part) are rows, the other axes columns; a vector is
  // one row; one held by other ranks is Empty(), with no rows. With `count` > 1, the matrix of that
  // many adjacent parameters, rows added up. Throws RunError where a range is not of whole rows,
  // and where the memory of a sharded unit is not there (it was not gathered, or is not to be
  // written).
  Matrix Value(ParameterId id, int count = 1) const;
  Matrix Gradient(ParameterId id, int count = 1) const;
  Matrix SecondGradient(ParameterId id) const;  // of the parameter itself where it has no second

  // Where the whole of a unit lies now: range.begin's element. Set by whoever gathers values or
  // collects gradients; null: nowhere. Unsharded storages need none.
  void BindValues(int unit, void* base);
  void BindGradients(int unit, void* base);
  // The unit's gradients go to this copy of an unsharded storage.
  void BindGradientLevel(int unit, int level);
  // Gradients of `early` parameters of the unit go to a small storage of their own (sharded
  // gradients only), because the unit's memory is not there yet.
  void BindEarly(int unit, bool early);
  // What that storage has of the unit is moved to the unit's bound gradients: take(from, to, count)
  // for each parameter adds and clears. Elements of SumType().
  void TakeEarly(int unit, FunctionRef<void(void* from, void* to, std::int64_t count)> take) const;

  const std::vector<Parameter>& Parameters() const { return parameters_; }
  const std::vector<Unit>& Units() const { return units_; }
  int UnitOf(ParameterId id) const { return unit_of_.at(static_cast<std::size_t>(id)); }
  const Ownership& Owns() const { return ownership_; }
  Owned OwnedOf(ParameterId id) const;
  std::int64_t Size() const { return size_; }  // flat elements of all parameters, padding included
  // With second gradients.
  std::int64_t GradientSize() const { return size_ + second_size_; }
  Part SecondRange() const { return {size_, size_ + second_size_}; }  // flat; empty: there is none
  ParameterId SecondOf() const { return second_; }                    // whose; or kNoParameter
  Dtype Type() const { return dtype_; }                               // of values
  Dtype SumType() const { return SumTypeOf(dtype_); }                 // of gradients and moments
  void* Values() const { return values_.get(); }
  // [owned elements], laid out like the moments, of SumType(); null where the values serve.
  void* Masters() const { return masters_.get(); }
  void* Gradients() const { return gradients_.get(); }  // level 0
  void* GradientLevel(int level) const;                 // storage of that copy
  std::int64_t ValueBytes(bool training = true) const;  // of the storages, masters included
  std::int64_t GradientBytes() const;                   // all levels; with the early gradients'
  void ZeroGradients();
  // They are zero: the next ZeroGradients has nothing to do.
  void GradientsCleared() { gradients_cleared_ = true; }

  // Blocks for a checkpoint, in the stream's memory: masters where there are any. Names get
  // `prefix`. `rank` of `ranks`: this rank's place in the data
  // group, of whose ranks `sharers` consecutive ones share one copy of what is sharded.
  std::vector<StateBlock> ValueBlocks(int rank, int ranks, int sharers) const;
  // Of a storage laid out like the moments.
  std::vector<StateBlock> MomentBlocks(void* storage, const std::string& prefix, int rank,
                                       int ranks, int sharers) const;
  // The summed gradients, where they are owned.
  std::vector<StateBlock> GradientBlocks(int rank, int ranks, int sharers) const;

 private:
  bool BehindItsGroup(const Parameter& parameter) const;
  // Shape of the view of `count` parameters and the flat offset of its first element.
  std::pair<Matrix, std::int64_t> ViewOf(ParameterId id, int count, Dtype dtype) const;
  void Initialise(const Parameter& parameter, std::uint32_t seed, Part elements, Dtype dtype,
                  void* values) const;
  std::vector<StateBlock> OwnedBlocks(void* storage, Dtype dtype, std::int64_t Owned::*place,
                                      const std::string& prefix, int rank, int ranks,
                                      int sharers) const;
  device::Stream stream_;
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_;            // [parameters]
  std::vector<std::int64_t> early_at_;  // [parameters]: in the early storage
  ParameterId second_ = kNoParameter;
  std::int64_t size_ = 0, second_size_ = 0, early_size_ = 0;
  Dtype dtype_ = Dtype::kFloat32;
  Ownership ownership_;
  std::vector<void*> value_base_, gradient_base_;  // [units]
  std::vector<int> gradient_level_;                // [units]
  std::vector<bool> early_;                        // [units]
  device::Buffer values_;                          // local, [ownership.values]
  device::Buffer masters_;                         // local, [ownership.moments] or none
  // Local, [levels, ownership.gradients]: sums over valid tokens (rule 3).
  device::Buffer gradients_;
  bool gradients_cleared_ = false;
  device::Buffer early_gradients_;  // [early_size_], sharded gradients only
};

}  // namespace trireme::tensor

#endif  // TRIREME_TENSOR_REGISTRY_HPP_
