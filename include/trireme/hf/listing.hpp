// Listing: the safetensors files of a model folder and the tensors in them.
#ifndef TRIREME_HF_LISTING_HPP_
#define TRIREME_HF_LISTING_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/tensor_file.hpp"

namespace trireme::hf {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

struct ListedFile {
  std::string name;  // without a folder
  checkpoint::TensorFile contents;
};

struct Listing {
  std::vector<ListedFile> files;  // by name
  bool indexed = false;           // kIndexFile names the files
  std::int64_t parameters = 0;    // total_parameters of kIndexFile; 0: it has none
};

// Serial. Reads the headers of the folder's files: of kSingleFile or of those that kIndexFile
// names. Throws InputError for a folder without them (pickled weights are not read), a missing
// file, and an index that says of a tensor what the files do not.
Listing Inspect(const std::string& folder);

// The InputError for a folder that lacks what makes it a model's, such as "has no config.json": it
// says so, or what the folder is instead, by the names of its files.
Error NotAModel(const std::string& folder, const std::string& lacks);

// As text, for the other ranks and for the run folder. Offsets are part of it.
std::string ToText(const Listing& listing);
Listing FromText(const std::string& text, const std::string& path);

// Text of kIndexFile.
std::string IndexText(const Listing& listing);

}  // namespace trireme::hf

#endif  // TRIREME_HF_LISTING_HPP_
