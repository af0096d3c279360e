// Companions of the weights in a model folder: tokenizer, configuration, licence; and a new folder
// that appears whole or not at all.
#ifndef TRIREME_HF_COMPANIONS_HPP_
#define TRIREME_HF_COMPANIONS_HPP_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::hf {

// Names of the run folder's part that keeps an imported model's companions, and of the list of its
// tensors there.
inline constexpr const char* kRunPart = "hf";
inline constexpr const char* kListingFile = "trireme_weights.json";

// Serial. Copies the companions in `from`, none of its folders, to the existing folder `to`,
// synced.
void CopyCompanions(const std::string& from, const std::string& to);

// Serial. Bytes of all companions in a folder.
std::int64_t CompanionBytes(const std::string& folder);

// Serial. Gives the run folder `to` the part of the run folder `from`, if that has one.
void CopyRunPart(const std::string& from, const std::string& to);

// Collective. Makes `folder` by way of a temporary name beside it: fill(temporary), collective, is
// called once the empty folder is there. After it, world rank 0 syncs and renames. Whatever fails,
// nothing is left. AgreedError (exit code 2) if `folder` is there already and not empty.
void MakeFolderWhole(const comm::Communicator& world, const std::string& folder,
                     const std::function<void(const std::string& temporary)>& fill);

// Serial. Makes a folder, durable in the one above it. Throws RunError.
void MakeFolder(const std::string& folder);

// Serial. Writes a text durably; an existing file of the name is replaced.
void WriteText(const std::string& path, const std::string& text);

}  // namespace trireme::hf

#endif  // TRIREME_HF_COMPANIONS_HPP_
