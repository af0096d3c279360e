// Checkpoints: folders of safetensors files, written and read by all ranks together. Tensors are
// stored whole and independent of the layout: any layout reads the files of any other.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// The best interval between checkpoints on a machine that sometimes fails.

// Seconds of work between two checkpoints (writing excluded) that minimise the expected time of a
// run. cost_seconds: how long writing one delays the run. mtbf_seconds: mean time between failures
// of the whole job, which are random (exponentially distributed). J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
// Systems 22 (2006) 303-312, doi:10.1016/j.future.2004.11.016, the higher-order estimate; its first
// term is J. W. Young's of 1974. Throws RunError unless both are positive and finite.
double YoungDaly(double cost_seconds, double mtbf_seconds);
inline constexpr double kLeastCost = 1e-3;  // seconds; used where the cost is zero

// The checkpoints that a path on the command line may mean.
struct Choice {
  std::string folder;                   // parent of the candidates
  std::vector<std::string> candidates;  // complete ones, last written first
  std::vector<std::string> others;  // what is no candidate: "step_00000010.tmp: it is unfinished"
  // True if there are only unfinished ones: the run ended before its first checkpoint.
  bool Unstarted() const;
};
// Serial. path: one checkpoint or a link to it, which is then the only candidate; or a run folder
// or its checkpoints/ folder. A checkpoint is complete if run.json and both tensor files have the
// sizes in checksums.json, and run.json has its checksum. Throws InputError if the folder does not
// exist, or if the one checkpoint is not complete.
Choice Locate(std::string path);
// The InputError for a choice without candidates: what was looked for, and what was found.
Error NoneComplete(const Choice& choice);

// Serial. Sequence number of the checkpoint that was written last among the complete ones in a
// checkpoints/ folder; 0: there is none, or it has no number. Throws InputError if the folder
// exists and cannot be listed.
std::int64_t LastSequence(const std::string& folder);

// Serial. Renames a damaged checkpoint, so that it is no longer read, counted or removed. Returns
// its new path. Throws RunError.
std::string SetAside(const std::string& checkpoint);

// Collective. Returns the first candidate (see Choice) of `path`. Throws AgreedError (exit code 2)
// if there is none.
std::string Find(const comm::Communicator& world, const std::string& path);

// The checkpoint's bytes differ from those that were written. Thrown by all ranks together.
class DamagedError : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

// The checkpoint's folder was removed while it was being read, for example pruned by its own run.
// Thrown by all ranks together. Another candidate of Locate may succeed.
class VanishedError : public AgreedError {
 public:
  using AgreedError::AgreedError;
};
// Serial. True if there is no such folder (any more), which may be why a serial call has failed.
bool Vanished(const std::string& checkpoint);

// Serial. The parsed run.json of a checkpoint, checked against checksums.json. Throws InputError if
// it is missing or damaged.
nlohmann::json ReadRun(const std::string& checkpoint);
// Collective. The same, read by one rank. Throws AgreedError (exit code 2), or VanishedError if the
// folder is gone.
nlohmann::json ReadRun(const comm::Communicator& world, const std::string& checkpoint);

// "optimizer" has averaged weights (optimizer.average) under the parameters' names with this
// prefix. ReadTensors and TensorReader take them alone, without the prefix, for a file of the name
// kAverage.
inline constexpr const char* kAveragePrefix = "average.";
inline constexpr const char* kAverage = "average";

// Collective. Fills this rank's blocks from one safetensors file of the checkpoint ("model",
// "optimizer", or kAverage; averages that no block asks for are left out). Names, shapes and dtypes
// must match the file's, except that fp32 and fp64 are converted into each other. One process of
// each node reads its share of the bytes (each byte is read once), checks them against
// checksums.json, and sends them to one of the ranks that need them, which sends them on to the
// others that need the same. Throws an AgreedError (exit code 2) that names file, tensor, expected
// and found; VanishedError; or DamagedError if bytes are damaged or missing: blocks may be
// overwritten then. between: called on all ranks every few hundred MB per reader; may throw an
// AgreedError, which ends the reading.
void ReadTensors(const comm::Communicator& world, const std::string& checkpoint,
                 const std::string& file, const std::vector<kernels::StateBlock>& blocks,
                 const std::function<void()>& between = {});

// Serial. Whether the checkpoint has averaged weights. Throws InputError if its file is damaged.
bool HasAverages(const std::string& checkpoint);
// Collective. Reads the weights with which the checkpoint's model is used: their averages if it has
// some, else the parameters. Returns whether they are averages. Throws like ReadTensors.
bool ReadWeights(const comm::Communicator& world, const std::string& checkpoint,
                 const std::vector<kernels::StateBlock>& blocks,
                 const std::function<void()>& between = {});

}  // namespace trireme::checkpoint
