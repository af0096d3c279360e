// The two transfers of tensor parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022): partial
// sums of a product are reduced to the residual stream; later the stream is gathered.
#pragma once

#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/parallel/canonical.hpp"

namespace trireme::parallel {

class TensorGroup {
 public:
  TensorGroup() = default;  // one rank: no transfers
  TensorGroup(const comm::Collectives& collectives, bool sequence_parallel);
  // For canonical sums (run.canonical). slices: number of slices that the group cuts dimensions
  // into, a power of two and a multiple of its size. tree: sums over the same `collectives`.
  TensorGroup(const comm::Collectives& collectives, bool sequence_parallel, int slices,
              TreeCollectives tree);
  std::int64_t Bytes() const { return tree_.Bytes(); }  // of the tree's exchange buffer

  int Rank() const { return collectives_.Rank(); }
  int Size() const { return collectives_.Size(); }
  // Whether the residual stream is cut by rows (sequence parallelism).
  bool Sharded() const { return sequence_parallel_ && Size() > 1; }
  const comm::Collectives& Transfers() const { return collectives_; }

  Part Slice(std::int64_t total) const { return PartOf(total, Rank(), Size()); }
  // Slices of this rank, each with a sum of its own: one unless canonical.
  int Slices() const { return slices_; }
  int AllSlices() const { return slices_ * Size(); }   // slices of the group
  int FirstSlice() const { return slices_ * Rank(); }  // this rank's first slice
  Part SliceOf(std::int64_t total, int slice) const {  // 0 <= slice < Slices(); a part of `total`
    return PartOf(total, FirstSlice() + slice, AllSlices());
  }
  bool Canonical() const { return canonical_; }
  // The rows that this rank holds of a residual stream with `rows` rows.
  Part Rows(std::int64_t rows) const { return Sharded() ? Slice(rows) : Part{0, rows}; }

  // The most rows that any rank holds of a stream of up to `rows` rows. (A particular rank may hold
  // fewer rows of a stream that is longer by one.)
  std::int64_t MostRows(std::int64_t rows) const {
    return Sharded() ? CeilDivide(rows, Size()) : rows;
  }

  // Sums over the group. full: [rows, columns], dense, this rank's partial sums. If Sharded(),
  // `shard` is overwritten with this rank's rows of the sum, and `full` is lost. Otherwise `full`
  // becomes the sum, and `shard` must be the same matrix.
  void Reduce(const kernels::Matrix& full, const kernels::Matrix& shard) const;
  comm::Request StartReduce(const kernels::Matrix& full, const kernels::Matrix& shard) const;
  // If Sharded(), gathers all ranks' rows from `shard` into `full`; else both must be the same.
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
