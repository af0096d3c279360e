// The two exchanges of tensor parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022): from
// partial sums of a product to the residual stream, and from the stream to the next product.
#pragma once

#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/parallel/canonical.hpp"

namespace trireme::parallel {

class TensorGroup {
 public:
  TensorGroup() = default;  // one rank: nothing to exchange
  TensorGroup(const comm::Collectives& collectives, bool sequence_parallel);
  // Canonical: sliced dimensions are cut into `slices` for the whole group, a multiple of its size
  // and a power of two, and sums over slices follow `tree`, over the same collectives.
  TensorGroup(const comm::Collectives& collectives, bool sequence_parallel, int slices,
              TreeCollectives tree);
  std::int64_t Bytes() const { return tree_.Bytes(); }  // of the tree's exchange buffer

  int Rank() const { return collectives_.Rank(); }
  int Size() const { return collectives_.Size(); }
  // Whether the residual stream is cut by rows (sequence parallelism).
  bool Sharded() const { return sequence_parallel_ && Size() > 1; }
  const comm::Collectives& Transfers() const { return collectives_; }

  Part Slice(std::int64_t total) const { return PartOf(total, Rank(), Size()); }
  // Slices with separate sums: one, or this rank's canonical ones.
  int Slices() const { return slices_; }
  int AllSlices() const { return slices_ * Size(); }   // of the group
  int FirstSlice() const { return slices_ * Rank(); }  // of this rank
  Part SliceOf(std::int64_t total, int slice) const {  // 0 <= slice < Slices(); global
    return PartOf(total, FirstSlice() + slice, AllSlices());
  }
  bool Canonical() const { return canonical_; }
  // Rows that this rank holds of a residual stream with `rows` rows.
  Part Rows(std::int64_t rows) const { return Sharded() ? Slice(rows) : Part{0, rows}; }

  // Most rows that a rank holds of a stream of up to `rows`. (The rows of one rank may shrink as
  // the stream grows by one.)
  std::int64_t MostRows(std::int64_t rows) const {
    return Sharded() ? CeilDivide(rows, Size()) : rows;
  }

  // Sums over the group. full: [rows, columns], dense, this rank's partial sums. Sharded: `shard`
  // becomes this rank's rows of the sum (full is lost). Else full becomes the sum, and shard must
  // be full.
  void Reduce(const kernels::Matrix& full, const kernels::Matrix& shard) const;
  comm::Request StartReduce(const kernels::Matrix& full, const kernels::Matrix& shard) const;
  // Gathers all ranks' rows, from `shard` into `full`, if sharded. Else shard must be full.
  void Gather(const kernels::Matrix& shard, const kernels::Matrix& full) const;
  comm::Request StartGather(const kernels::Matrix& shard, const kernels::Matrix& full) const;

 private:
  comm::Collectives collectives_;
  bool sequence_parallel_ = false;
  bool canonical_ = false;
  int slices_ = 1;
  TreeCollectives tree_;
};

}  // namespace trireme::parallel
