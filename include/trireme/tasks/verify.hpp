// Verification: trains a small version of the deck, for seconds, on these ranks and on one rank
// alone, and compares the results tensor by tensor.
#pragma once

#include <string>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// The deck's set-up with all features but small sizes: fewer and narrower layers, fewer tokens,
// windows, micro-batches and steps. Divided among ranks, each size leaves the remainder that the
// deck's leaves. Weights and rates are set so that every gradient matters, and clipping acts if
// the deck clips.
train::TrainingOptions Shrink(const train::TrainingOptions& deck, const comm::GridShape& grid);

// Tokens for a shrunk set-up: an epoch of two steps; the second step and one window are short.
data::TokenData VerificationTokens(const train::TrainingOptions& small);

struct VerifiedQuantity {
  std::string name;
  double difference = 0;  // largest relative difference; infinite if a value is not finite
  double tolerance = 0;   // 0: all bits must be equal
  bool Within() const { return difference <= tolerance; }
};

// Differences in rule 4's measure (doc/reference/numerics.md), largest over steps and ranks.
struct VerifiedTensor {
  std::string name;
  double gradient = 0, weights = 0;
  double Largest() const { return gradient > weights ? gradient : weights; }
};

struct Verification {
  std::vector<VerifiedQuantity> quantities;
  std::vector<VerifiedTensor> tensors;  // in the order of the forward pass
  double tolerance = 0;                 // for the tensors
  // The first quantity over its tolerance, in the order of a training run (loss of step 1, its
  // gradients in forward order, ...); empty: all passed.
  std::string failure;
  std::string hint;  // the probable cause
  bool Passed() const { return failure.empty(); }
};

// Collective over the grid's world. Trains `small` on the grid and, on every rank, alone. Compares
// losses in `precision`; in fp64 also losses, gradients, weights and a resumed run, whose
// checkpoint is written in `folder`. AgreedError (exit code 1) if a run cannot go on.
Verification Verify(const comm::ProcessGrid& grid, const train::TrainingOptions& small,
                    const device::Stream& stream, Dtype precision, const std::string& folder);

// The table as printed.
std::string Describe(const Verification& verification);
// Sizes that were reduced: "layers 12 -> 4, dim 768 -> 48". indent: blanks before further lines.
std::string DescribeShrinking(const train::TrainingOptions& deck,
                              const train::TrainingOptions& small, std::size_t indent);

// Collective. World rank 0 prints the table and the verdict. AgreedError (exit code 1) on all
// ranks, naming the first quantity over its tolerance.
void Judge(const Verification& verification, const comm::Communicator& world, double seconds);

// job.task = verify.
ExitCode RunVerify(app::Job& job);

}  // namespace trireme::tasks
