// The folder that holds a run's checkpoints: names, completeness, links, and the removal of old
// ones. Plain POSIX work of one rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safetensors.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kChecksumsFile = "checksums.json";
inline constexpr const char* kTemporaryEnding = ".tmp";    // being written, or being removed
inline constexpr const char* kDamagedEnding = ".damaged";  // set aside: its bytes are wrong
inline constexpr const char* kReplacedEnding = ".old";  // moved away while its successor is renamed

std::string StepName(std::int64_t step);                             // "step_00001200"
std::optional<std::int64_t> ParseStepName(const std::string& name);  // exactly such a name

// Lengths that no such file of ours has.
inline constexpr std::int64_t kMostChecksumBytes = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostRunBytes = std::int64_t{64} << 20;

// The checksums of a checkpoint. Throws InputError when the file is missing or damaged.
Checksums ReadChecksums(const std::string& checkpoint);

// Reason for which a checkpoint's folder is not complete: "model.safetensors has 10 bytes instead
// of 200"; empty if it is. `run_text`, if given, takes the checked text of a complete one's
// run.json.
std::string WhyIncomplete(const std::string& checkpoint, std::string* run_text = nullptr);

// Names in `folder` that begin with "step_", sorted downward. Throws InputError when it cannot be
// read.
std::vector<std::string> ListSteps(const std::string& folder);

// A complete checkpoint of a folder.
struct Found {
  std::string name;           // may have kReplacedEnding
  std::int64_t sequence = 0;  // in the order of writing, from 1; 0: written by an older version
};
// Complete checkpoints of a folder, those written last first, whatever their steps: a run may have
// been continued from an earlier one. Those without a sequence: the target of `latest` first, then
// by the time of writing. `incomplete`, if given, takes a line for each of the others: its name,
// and why. Throws InputError if the folder cannot be read.
std::vector<Found> ListComplete(const std::string& folder,
                                std::vector<std::string>* incomplete = nullptr);

// Removes the leftovers of a killed run: temporary folders, and a replaced checkpoint whose
// successor is in place and complete (else it gets its name back, and an incomplete successor is
// set aside). Returns what could not be done, a line each: a file that another process holds open
// on NFS, say, must not keep a run from its next checkpoint. Throws InputError if the folder cannot
// be read.
std::vector<std::string> RemoveLeftovers(const std::string& folder);

// Renames the finished temporary folder, durably; an older checkpoint of that name makes way first.
void Publish(const std::string& folder, const std::string& name);

// After Publish: lets `latest`, and `best` if asked, point to the checkpoint, and removes what it
// replaced and the old ones that `retention` does not keep; the targets of links stay. Returns what
// could not be done, a line each: nothing of it is worth a run.
std::vector<std::string> TidyUp(const std::string& folder, const std::string& name, bool best,
                                const Retention& retention);

// Lines of text, such as warnings, from rank 0 to all ranks.

// Collective. Returns rank 0's lines on every rank.
std::vector<std::string> ShareLines(const comm::Communicator& world,
                                    const std::vector<std::string>& lines);

}  // namespace trireme::checkpoint
