// Checkpoints: folders of safetensors files, written and read by all ranks together. Tensors are
// global and canonical: any layout reads the files of any other.
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

// The best interval between checkpoints on a machine that fails now and then.

// Seconds of work between two checkpoints, writing excluded, for which the expected time of a run
// is least. cost_seconds: how long writing one delays the run. mtbf_seconds: mean time between
// failures of the whole job, which come at random (exponentially distributed). J. T. Daly, "A
// higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
// Computer Systems 22 (2006) 303-312, doi:10.1016/j.future.2004.11.016, the higher-order estimate;
// its first term is J. W. Young's of 1974. Throws RunError unless both are positive and finite.
double YoungDaly(double cost_seconds, double mtbf_seconds);
inline constexpr double kLeastCost = 1e-3;  // seconds, in the place of a cost of zero

// Checkpoints that a path on the command line may mean.
struct Choice {
  std::string folder;                   // parent of the candidates
  std::vector<std::string> candidates;  // complete ones, those written last first
  std::vector<std::string> others;      // "step_00000010.tmp: it is unfinished"
  // Nothing but unfinished ones: the run ended before its first checkpoint.
  bool Unstarted() const;
};
// Serial. `path`: one checkpoint or a link to it, which is then the only candidate; or a run folder
// or its checkpoints/ folder. Complete: run.json, checksums.json and both tensor files have the
// sizes in checksums.json, and run.json its checksum. Throws InputError if there is no such folder
// or if the one checkpoint is not complete.
Choice Locate(std::string path);
// The InputError for a choice without candidates: what was looked for and what was found.
Error NoneComplete(const Choice& choice);

// Serial. Number, in the order of writing, of the last complete checkpoint of a checkpoints/
// folder; 0: there is none, or it has no number.
std::int64_t LastSequence(const std::string& folder);

// Serial. Renames a damaged checkpoint, so that it is neither taken nor counted nor removed any
// more. Returns its new path. Throws RunError.
std::string SetAside(const std::string& checkpoint);

// Collective. Returns the first candidate of `path`. Throws AgreedError (exit code 2) if there is
// none.
std::string Find(const comm::Communicator& world, const std::string& path);

// A checkpoint whose bytes are not those that were written; thrown by all ranks together.
class DamagedError : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

// A checkpoint whose folder went while it was read, as one does that its run prunes; thrown by all
// ranks together. Another choice of Locate may succeed.
class VanishedError : public AgreedError {
 public:
  using AgreedError::AgreedError;
};
// Serial. True if there is no such folder (any more): tells why a serial call has failed.
bool Vanished(const std::string& checkpoint);

// Serial. Parsed run.json of a checkpoint folder, checked against checksums.json. Throws InputError
// if it is missing or damaged.
nlohmann::json ReadRun(const std::string& checkpoint);
// Collective. The same, read by one rank. Throws AgreedError (exit code 2); VanishedError if the
// folder is gone.
nlohmann::json ReadRun(const comm::Communicator& world, const std::string& checkpoint);

// Collective. Fills this rank's blocks from one safetensors file of the checkpoint ("model" or
// "optimizer"). Names, shapes and dtypes must match the file's, except that fp32 and fp64 convert
// into each other. Each byte is read once, by one process of each node, checked against
// checksums.json, and sent to one of the ranks that need it, which sends it on to those that need
// the same. Throws AgreedError (exit code 2) naming file, tensor, expected and found;
// VanishedError; DamagedError if bytes are damaged or missing: blocks may be overwritten then.
// between: called on all ranks every few hundred megabytes per reader; may throw an AgreedError,
// which ends the reading.
void ReadTensors(const comm::Communicator& world, const std::string& checkpoint,
                 const std::string& file, const std::vector<kernels::StateBlock>& blocks,
                 const std::function<void()>& between = {});

}  // namespace trireme::checkpoint
