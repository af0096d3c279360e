// Weights of a model folder as a checkpoint's tensors, and of a checkpoint as a model folder's:
// read and written in parts, so that no rank holds more than a few MiB and one tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/options.hpp"

namespace trireme::hf {

// Listing: the safetensors files of a model folder and the tensors in them.

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

// Companions of the weights in a model folder: tokenizer, configuration, licence; and a new folder
// that appears whole or not at all.

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

// Memory that a rank takes while weights pass through it, at its peak.
struct PassingMemory {
  std::int64_t buffers = 0;  // bytes of pieces in the hands of its threads
  std::int64_t tensor = 0;   // of the largest tensor that it holds as a whole
};

// Weights that import reads.
class WeightSource {
 public:
  // Throws InputError naming the tensor unless the listing holds those of the model, in shapes and
  // types that can be read, and nothing else.
  WeightSource(const std::string& folder, Listing listing, Family family,
               const model::Options& options);
  ~WeightSource();
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  // Parts of all parameters that one of `ranks` ranks reads, cut evenly. Tensors that are stored
  // transposed stay whole. `data` is not to be read: Read gives the contents.
  std::vector<kernels::StateBlock> Blocks(int rank, int ranks) const;
  // Elements [first, last) of a block's parameter. Throws InputError naming file, tensor and
  // element for one that is not finite. As of checkpoint::ReadBlock; several threads may call it.
  void Read(const kernels::StateBlock& block, std::int64_t first, std::int64_t last, void* to);
  // Throws InputError unless a head that the folder holds beside a tied embedding is the same.
  // Looks at this rank's share.
  void CheckTiedHead(int rank, int ranks) const;

  std::int64_t Bytes() const;               // of all tensors that are read
  PassingMemory Memory(int threads) const;  // of calls of Read
  const Listing& Files() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Names, types and places of all tensors that export writes.
struct ExportPlan {
  Listing listing;
  std::vector<std::string> headers;  // of the listing's files
};
// As `source` lists them, in the types that `options` asks for.
ExportPlan PlanLike(const Listing& source, Family family, const model::Options& model,
                    const Options& options);
// As transformers writes a model.
ExportPlan PlanAfresh(Family family, const model::Options& model, const Options& options);

// Part of the weights that a rank writes, with so many threads.
struct Share {
  int rank = 0, ranks = 1;
  int threads = 1;
};

// Memory of WriteShare with so many threads.
PassingMemory ExportMemory(const ExportPlan& plan, Family family, const model::Options& model,
                           const checkpoint::TensorReader& reader, int threads);

// Writes this rank's share of the tensors into the plan's files in `folder`, which have their sizes
// and headers, and syncs what it wrote. Throws InputError for a weight that is beyond the type's
// range, and what the reader throws; RunError for a full disk.
void WriteShare(const ExportPlan& plan, Family family, const model::Options& model,
                const checkpoint::TensorReader& reader, const std::string& folder,
                const Share& share);

}  // namespace trireme::hf
