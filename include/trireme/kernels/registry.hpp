// The storages of a rank's parameters: values, gradients and masters, in one memory each, as the
// ownership cuts them. Gradient sums, the optimizer, checkpoints and the memory plan walk the
// registry and know nothing else of the model.
#ifndef TRIREME_KERNELS_REGISTRY_HPP_
#define TRIREME_KERNELS_REGISTRY_HPP_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/kernels/ownership.hpp"
#include "trireme/kernels/parameter_list.hpp"

namespace trireme::kernels {

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

#endif  // TRIREME_KERNELS_REGISTRY_HPP_
