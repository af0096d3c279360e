// The checks of --self-test. All are collective; each returns a detail for its line, and throws an
// AgreedError for what does not work.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/tasks/selftest.hpp"

namespace trireme::tasks {

// Throws an Error with `what` unless `condition`; within Together, so that all ranks learn of it.
void Expect(bool condition, const std::string& what, const std::string& hint = {});

// Messages between all ranks, sums, broadcasts, and the thread level.
std::string CheckMessages(const comm::Runtime& runtime);

// Random numbers, products of matrices and attention of this CPU against reference values.
std::string CheckKernels(const comm::Runtime& runtime);

// All ranks see `folder`; what is free in it.
std::string CheckFolder(const comm::Communicator& world, const std::string& folder);
// A dataset is written by all ranks through HDF5 and MPI-IO, and read back by others.
std::string CheckHdf5(const comm::Communicator& world, const std::string& folder);

// Layouts that the ranks permit: keys of the deck.
using Keys = std::vector<std::string>;
std::vector<Keys> Layouts(int ranks);

// Tasks of the program on a small deck in `folder`.
class SmallRuns {
 public:
  SmallRuns(const Setting& setting, std::string folder);

  // The built-in corpus into a token file.
  std::string Tokenize() const;
  // Gradients, updates, losses and a resumed run in fp64: on the grid and on one rank.
  std::string Verify(const Keys& layout) const;
  // A run of the whole small deck; its losses against recorded ones. `device`: as run.device.
  std::string Train(const Keys& layout, const std::string& name, const std::string& device) const;
  // A run to the middle, then on from its checkpoint in another layout; losses as recorded.
  std::string Resume(const Keys& first, const Keys& second) const;
  // The same text from two layouts, without a random choice.
  std::string Generate(const Keys& first, const Keys& second) const;

 private:
  void Run(const Keys& keys, const std::string& resume,
           const std::function<ExitCode(app::Job&)>& task) const;
  double CompareLosses(const std::string& run) const;

  const Setting& setting_;
  const comm::Communicator& world_;
  std::string folder_;
};

}  // namespace trireme::tasks
