// Converts a model folder's weights into a checkpoint's tensors, and a checkpoint's into a model
// folder's, in parts: no rank holds more than a few MiB per thread, and one tensor.
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

// Listing: the safetensors files of a model folder, and the tensors in them.

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

struct ListedFile {
  std::string name;  // without a folder
  checkpoint::TensorFile contents;
};

struct Listing {
  std::vector<ListedFile> files;  // sorted by name
  bool indexed = false;           // kIndexFile lists the files
  std::int64_t parameters = 0;    // total_parameters of kIndexFile; 0: not given
};

// Serial. Reads the headers of kSingleFile, or of the files that kIndexFile names. Throws
// InputError for a folder without them (pickled weights are not read), for a missing file, and for
// an index that contradicts the files.
Listing Inspect(const std::string& folder);

// The InputError for a folder that lacks a part of a model. It says `lacks`, such as "has no
// config.json", or, judging by the names of its files, what the folder is instead.
Error NotAModel(const std::string& folder, const std::string& lacks);

// The listing as text, offsets included, for the other ranks and for the run folder.
std::string ToText(const Listing& listing);
Listing FromText(const std::string& text, const std::string& path);

// The text of kIndexFile for this listing.
std::string IndexText(const Listing& listing);

// Companions: the files beside the weights in a model folder (tokenizer, configuration, licence).
// And the creation of folders that appear complete or not at all.

// kRunPart: name of the subfolder of a run folder that keeps an imported model's companions.
// kListingFile: name of the list of imported tensors in that subfolder.
inline constexpr const char* kRunPart = "hf";
inline constexpr const char* kListingFile = "trireme_weights.json";

// Serial. Copies the companions in `from`, but no subfolders, to the existing folder `to`, and
// syncs them.
void CopyCompanions(const std::string& from, const std::string& to);

// Serial. Total bytes of the companions in a folder.
std::int64_t CompanionBytes(const std::string& folder);

// Serial. Copies the subfolder kRunPart of run folder `from` to run folder `to`, if it exists.
void CopyRunPart(const std::string& from, const std::string& to);

// Collective. Creates `folder` under a temporary name beside it: calls fill(temporary), which is
// collective, once that folder exists; then world rank 0 syncs and renames it. If one of these
// fails, nothing is left. AgreedError (exit code 2) if `folder` exists and is not empty.
void MakeFolderWhole(const comm::Communicator& world, const std::string& folder,
                     const std::function<void(const std::string& temporary)>& fill);

// Serial. Creates a folder and syncs its parent. Throws RunError.
void MakeFolder(const std::string& folder);

// Serial. Writes a text file durably, in place of an existing one.
void WriteText(const std::string& path, const std::string& text);

// Peak memory that a rank needs while weights pass through it, in bytes.
struct PassingMemory {
  std::int64_t buffers = 0;  // pieces that its threads work on
  std::int64_t tensor = 0;   // the largest tensor that it holds whole
};

// The weights of a model folder, for import.
class WeightSource {
 public:
  // Throws an InputError that names the tensors at fault unless the listing has the model's tensors
  // in readable shapes and types, and no others except buffers and a copy of a tied embedding.
  WeightSource(const std::string& folder, Listing listing, Family family,
               const model::Options& options);
  ~WeightSource();
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  // The parts of all parameters that rank `rank` of `ranks` reads, cut evenly. Tensors that are
  // stored transposed are not cut. The blocks' `data` must not be read: Read returns the contents.
  std::vector<kernels::StateBlock> Blocks(int rank, int ranks) const;
  // A checkpoint::ReadBlock: copies elements [first, last) of a block's parameter to `to`. Throws
  // InputError that names an element if it is not finite. Several threads may call it.
  void Read(const kernels::StateBlock& block, std::int64_t first, std::int64_t last, void* to);
  // Throws InputError if the folder has a head besides a tied embedding and the two differ.
  // Compares only this rank's share.
  void CheckTiedHead(int rank, int ranks) const;

  std::int64_t Bytes() const;               // of all tensors to read
  PassingMemory Memory(int threads) const;  // of Read in `threads` threads
  const Listing& Files() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Names, types and places of all tensors that an export writes.
struct ExportPlan {
  Listing listing;
  std::vector<std::string> headers;  // of the listing's files, in order
};
// The tensors of `source` except buffers, in the types that `options` asks for.
ExportPlan PlanLike(const Listing& source, Family family, const model::Options& model,
                    const Options& options);
// The tensors and files that transformers would write for this model.
ExportPlan PlanAfresh(Family family, const model::Options& model, const Options& options);

// A rank's share of the weights to write, and its number of threads.
struct Share {
  int rank = 0, ranks = 1;
  int threads = 1;
};

// Memory that WriteShare needs with `threads` threads.
PassingMemory ExportMemory(const ExportPlan& plan, Family family, const model::Options& model,
                           const checkpoint::TensorReader& reader, int threads);

// Writes and syncs this rank's share of the tensors in the plan's files in `folder`, which must
// have their sizes and headers already. Throws InputError for a weight beyond the type's range,
// whatever the reader throws, and RunError for a full disk.
void WriteShare(const ExportPlan& plan, Family family, const model::Options& model,
                const checkpoint::TensorReader& reader, const std::string& folder,
                const Share& share);

}  // namespace trireme::hf
