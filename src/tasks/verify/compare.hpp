// Differences between this rank's tensors and the same tensors of another run, on the grid or
// alone.
#ifndef TRIREME_SRC_TASKS_VERIFY_COMPARE_HPP_
#define TRIREME_SRC_TASKS_VERIFY_COMPARE_HPP_

#include <string>
#include <vector>

#include "trireme/comm/process_grid.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::tasks {

// |got - wanted| / max(|got|, |wanted|); infinite if undefined.
double RelativeDifference(double got, double wanted);

struct Differences {
  std::vector<double> all;   // [tensors]: the largest of all copies, the same on every rank
  std::vector<double> mine;  // [tensors]: this rank's part of it
  std::vector<bool> silent;  // [tensors]: so small that no mistake of a factor would show
};

// Collective over the grid's world. Rule 4's |t - t'| / max(|t|, rms(all) sqrt(n)) of each tensor
// t in fp64; infinite where a value is not finite or the ranks that make up one copy of the model
// (the replicas of a shard group) do not hold all of a tensor. held: this rank's blocks; whole: the
// same tensors, all of each.
Differences Compare(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                    const std::vector<kernels::StateBlock>& whole);

// Collective. The largest relative difference of elements of this rank's blocks from those of
// `wanted`, which hold the same or more, in the same precision; 0 only where all bits are the same.
Differences CompareBits(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                        const std::vector<kernels::StateBlock>& wanted);

// Collective. "rank 3 (pipeline 0, data 1, context 0, tensor 1)": where `mine` is largest.
std::string WhereLargest(const comm::ProcessGrid& grid, double mine);

// Collective. GradientSum of every parameter, from the ranks that hold it.
std::vector<kernels::GradientSum> GatherSums(const comm::ProcessGrid& grid,
                                            const kernels::Registry& registry);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_VERIFY_COMPARE_HPP_
