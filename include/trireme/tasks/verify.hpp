// Verification: does the deck's layout, on these ranks, compute what one rank computes? On a deck
// shrunk to seconds, tensor by tensor.
#pragma once

#include <string>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// The deck's set-up with everything but its size: fewer and narrower layers, fewer tokens, windows,
// micro-batches and steps, each with the remainder that the grid leaves of the deck's. Weights and
// rates become large enough for every gradient to matter, and clipping acts where the deck clips.
train::TrainingOptions Shrink(const train::TrainingOptions& deck, const comm::GridShape& grid);

// Tokens for a shrunk set-up: an epoch of two steps, the second short, one window short.
data::TokenData VerificationTokens(const train::TrainingOptions& small);

struct VerifiedQuantity {
  std::string name;
  double difference = 0;  // the largest, relative; infinite where something is not finite
  double tolerance = 0;   // 0: the same bits are wanted
  bool Within() const { return difference <= tolerance; }
};

// Differences in rule 4's measure (doc/reference/numerics.md), the largest of all steps and ranks.
struct VerifiedTensor {
  std::string name;
  double gradient = 0, weights = 0;
  double Largest() const { return gradient > weights ? gradient : weights; }
};

struct Verification {
  std::vector<VerifiedQuantity> quantities;
  std::vector<VerifiedTensor> tensors;  // in the order of the forward pass
  double tolerance = 0;                 // of the tensors
  // First quantity over its tolerance, in the order of a training run (loss of step 1, its
  // gradients in forward order, ...); empty: all passed.
  std::string failure;
  std::string hint;  // probable cause
  bool Passed() const { return failure.empty(); }
};

// Collective over the grid's world. Trains `small` on the grid and, on every rank, alone, and
// compares: losses in `precision`; in fp64 losses, gradients, weights and a resumed run, whose
// checkpoint goes into `folder`. AgreedError (exit code 1) if a run cannot go on.
Verification Verify(const comm::ProcessGrid& grid, const train::TrainingOptions& small,
                    const device::Stream& stream, Dtype precision, const std::string& folder);

// The table, as it is printed.
std::string Describe(const Verification& verification);
// Sizes that became smaller: "layers 12 -> 4, dim 768 -> 48". Lines but the first begin with
// `indent` blanks.
std::string DescribeShrinking(const train::TrainingOptions& deck,
                              const train::TrainingOptions& small, std::size_t indent);

// Collective. World rank 0 prints the table and the verdict. AgreedError (exit code 1) on all ranks
// with the first quantity over its tolerance.
void Judge(const Verification& verification, const comm::Communicator& world, double seconds);

// job.task = verify.
ExitCode RunVerify(app::Job& job);

}  // namespace trireme::tasks
