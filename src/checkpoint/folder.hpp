// The folder that holds a run's checkpoints: names, completeness, links, and the removal of old
// ones. Plain POSIX work of one rank.
#ifndef TRIREME_SRC_CHECKPOINT_FOLDER_HPP_
#define TRIREME_SRC_CHECKPOINT_FOLDER_HPP_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checksums.hpp"

namespace trireme::checkpoint {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kChecksumsFile = "checksums.json";
inline constexpr const char* kTemporaryEnding = ".tmp";  // being written, or being removed
inline constexpr const char* kReplacedEnding = ".old";  // moved away while its successor is renamed

std::string StepName(std::int64_t step);                             // "step_00001200"
std::optional<std::int64_t> ParseStepName(const std::string& name);  // exactly such a name

// The checksums of a checkpoint. Throws InputError when the file is missing or damaged.
Checksums ReadChecksums(const std::string& checkpoint);

// Why a checkpoint's folder is not complete: "model.safetensors has 10 bytes instead of 200"; empty
// if it is.
std::string WhyIncomplete(const std::string& checkpoint);

// Names in `folder` that begin with "step_", sorted downward. Throws InputError when it cannot be
// read.
std::vector<std::string> ListSteps(const std::string& folder);

// Removes the leftovers of a killed run: temporary folders, and a replaced checkpoint whose
// successor is in place (without one it gets its name back).
void RemoveLeftovers(const std::string& folder);

// Renames the finished temporary folder; an older checkpoint of that name makes way first.
void Publish(const std::string& folder, const std::string& name);

// Removes all but the `keep` complete checkpoints that were written last (0 keeps all), whatever
// their steps: a run may have been continued from an earlier one. Spares the targets of the links
// best and latest.
void Prune(const std::string& folder, std::int64_t keep);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_FOLDER_HPP_
