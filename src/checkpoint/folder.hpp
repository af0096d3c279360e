// The folder of a run's checkpoints: names, completeness, links, and the removal of old ones. Uses
// plain POSIX calls on one rank.
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
inline constexpr const char* kReplacedEnding = ".old";     // renamed to make way for its successor

std::string StepName(std::int64_t step);                             // "step_00001200"
std::optional<std::int64_t> ParseStepName(const std::string& name);  // nullopt for any other name

inline constexpr std::int64_t kMostRunBytes = std::int64_t{64} << 20;  // limit of run.json

// The checksums of a checkpoint. Throws InputError if the file is missing or damaged.
Checksums ReadChecksums(const std::string& checkpoint);
// Those of one file, which has at least one segment. Also throws if they are not listed.
FileSums ReadSums(const std::string& checkpoint, const std::string& file);

// Why a checkpoint folder is not complete, such as "model.safetensors has 10 bytes instead of 200";
// empty if it is. run_text: if given and the checkpoint is complete, set to the text of its
// run.json.
std::string WhyIncomplete(const std::string& checkpoint, std::string* run_text = nullptr);

// Names in `folder` that begin with "step_", highest step first. Throws InputError if the folder
// cannot be read.
std::vector<std::string> ListSteps(const std::string& folder);

// A complete checkpoint of a folder.
struct Found {
  std::string name;           // may have kReplacedEnding
  std::int64_t sequence = 0;  // counts in the order of writing, from 1; 0: from an older version
};
// The complete checkpoints of a folder, last written first. (Steps do not give this order, since a
// run may continue from an earlier one.) Those without a sequence come last: first the target of
// `latest`, then by time of writing. incomplete: if given, gets a line with name and reason for
// each other entry. Throws InputError if the folder cannot be read.
std::vector<Found> ListComplete(const std::string& folder,
                                std::vector<std::string>* incomplete = nullptr);

// Removes what a killed run left: temporary folders, and a replaced checkpoint if its successor is
// in place and complete. (Otherwise the replaced one gets its name back, and an incomplete
// successor is set aside.) Returns one line per failure, which must not keep a run from its next
// checkpoint: for example a file on NFS that another process has open. Throws InputError if the
// folder cannot be read.
std::vector<std::string> RemoveLeftovers(const std::string& folder);

// Durably gives the finished temporary folder its name, after renaming an older one of that name.
void Publish(const std::string& folder, const std::string& name);

// After Publish: points `latest`, and `best` if asked, to the checkpoint; removes the one it
// replaced and old ones that neither `retention` nor a link keeps. Returns one line per failure;
// none of them is a reason to end the run.
std::vector<std::string> TidyUp(const std::string& folder, const std::string& name, bool best,
                                const Retention& retention);

// Lines of text, such as warnings, are sent from rank 0 to all ranks.

// Collective. Returns rank 0's lines on every rank.
std::vector<std::string> ShareLines(const comm::Communicator& world,
                                    const std::vector<std::string>& lines);

}  // namespace trireme::checkpoint
