// TensorGroup: transfers of the residual stream, which each tensor rank holds whole or by rows.
#include "trireme/parallel/tensor_group.hpp"

#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::parallel {

namespace {

// Checks that `shard` has the rows `part` of `full` and that both are dense, as transfers need.
void TensorGroupCheck(const kernels::Matrix& full, const kernels::Matrix& shard, const Part& part,
                      bool sharded) {
  const auto dense = [](const kernels::Matrix& matrix) {
    return matrix.stride == matrix.columns || matrix.rows <= 1;
  };
  if (!dense(full) || !dense(shard)) {
    throw RunError("tensor group: a matrix has gaps between its rows");
  }
  if (shard.rows != part.Size() || shard.columns != full.columns || shard.dtype != full.dtype) {
    throw RunError("tensor group: a shard does not have this rank's rows of the whole");
  }
  if (!sharded && shard.data != full.data) {
    throw RunError("tensor group: without sharding, the shard is the whole");
  }
}

// Elements of each rank's rows.
comm::Counts RowCounts(const kernels::Matrix& full) {
  return comm::Counts::Cut(full.Size(), full.columns);
}

}  // namespace

TensorGroup::TensorGroup(const comm::Collectives& collectives, bool sequence_parallel)
    : collectives_(collectives), sequence_parallel_(sequence_parallel) {}

TensorGroup::TensorGroup(const comm::Collectives& collectives, bool sequence_parallel, int slices,
                         TreeCollectives tree)
    : collectives_(collectives),
      sequence_parallel_(sequence_parallel),
      canonical_(true),
      slices_(slices / collectives.Size()),
      tree_(std::move(tree)) {}

void TensorGroup::Reduce(const kernels::Matrix& full, const kernels::Matrix& shard) const {
  TensorGroupCheck(full, shard, Rows(full.rows), Sharded());
  if (canonical_ && Sharded()) {
    tree_.ReduceScatter(full.dtype, full.data, shard.data, RowCounts(full));
  } else if (canonical_) {
    tree_.AllReduce(full.dtype, full.data, full.Size());
  } else if (Sharded()) {
    collectives_.ReduceScatter(full.dtype, full.data, shard.data, RowCounts(full));
  } else {
    collectives_.AllReduce(full.dtype, full.data, full.Size());
  }
}

comm::Request TensorGroup::StartReduce(const kernels::Matrix& full,
                                       const kernels::Matrix& shard) const {
  if (canonical_) {
    Reduce(full, shard);
    return {};
  }
  TensorGroupCheck(full, shard, Rows(full.rows), Sharded());
  if (Sharded()) {
    return collectives_.StartReduceScatter(full.dtype, full.data, shard.data, RowCounts(full));
  }
  return collectives_.StartAllReduce(full.dtype, full.data, full.Size());
}

void TensorGroup::Gather(const kernels::Matrix& shard, const kernels::Matrix& full) const {
  TensorGroupCheck(full, shard, Rows(full.rows), Sharded());
  if (Sharded()) collectives_.AllGather(full.dtype, shard.data, full.data, RowCounts(full));
}

comm::Request TensorGroup::StartGather(const kernels::Matrix& shard,
                                       const kernels::Matrix& full) const {
  TensorGroupCheck(full, shard, Rows(full.rows), Sharded());
  if (!Sharded()) return {};
  return collectives_.StartAllGather(full.dtype, shard.data, full.data, RowCounts(full));
}

}  // namespace trireme::parallel
