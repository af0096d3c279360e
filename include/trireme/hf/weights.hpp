// Weights of a model folder as a checkpoint's tensors, and of a checkpoint as a model folder's:
// read and written in parts, so that no rank holds more than a few MiB and one tensor.
#ifndef TRIREME_HF_WEIGHTS_HPP_
#define TRIREME_HF_WEIGHTS_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/listing.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::hf {

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

#endif  // TRIREME_HF_WEIGHTS_HPP_
